"""Measurements, one script each; what they found is in `results/`. A package, since others install one of this name."""
