"""How fast the library is, as ratios to limits measured in the same run."""
