"""The Gaussian mechanism: sums with a known sensitivity, noise, what it amounts to, and what can be read through it.

* `sums`: sums, what a unit may add to each, and their shares of the noise; `noise`: secure normal numbers
* `accounting`: ε and noise multipliers, by dp-accounting
* `histogram`: magnitudes, whose range nobody has to know; `spectra`: what noisy sums say of second moments
"""
