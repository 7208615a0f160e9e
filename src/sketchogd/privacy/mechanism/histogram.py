"""A histogram of magnitudes over sixty powers of two either way: the scale of numbers whose range nobody may know.

An example adds its weight to one bin, so that a unit changes the histogram by at most 1 in norm, whatever the numbers
are. From the noisy counts follow the mean of the numbers and of their squares, to within the width of a bin. Clipping
bounds that fit a network would have to be guessed, or looked up in the data, which costs privacy as well.
"""

import torch
from torch import Tensor

PER_OCTAVE = 2
OCTAVES = 60
BINS = 2 * OCTAVES * PER_OCTAVE
WINDOW = 4 * PER_OCTAVE
"""Numbers further than so many bins from the fullest bin are not looked for: a count there is most likely noise."""
DEVIATIONS = 3.0
"""Counts near the fullest bin below so many standard deviations of the noise are noise."""
SEEN = 5.0
"""Where no count reaches so many standard deviations, which the noise of all bins hardly ever does, nothing is seen."""


def empty(device: torch.device, signed: bool = False) -> Tensor:
    """No counts: of positive numbers and, with a sign, of negative ones after them."""
    return torch.zeros(BINS * (1 + signed), dtype=torch.float64, device=device)


def counts_of(numbers: Tensor, weights: Tensor, signed: bool = False) -> Tensor:
    """The counts that numbers (b,) with weights (b,) add; numbers that are zero count nowhere."""
    numbers = numbers.double()
    if not signed and bool((numbers < 0).any()):
        raise ValueError("these counts are of numbers that are not negative")
    place = ((numbers.abs().log2() + OCTAVES) * PER_OCTAVE).floor().clamp(0, BINS - 1).long()
    weights = torch.where(numbers == 0, 0.0, weights.double())
    return empty(numbers.device, signed).index_add_(0, place + BINS * (numbers < 0), weights)


def moments(counts: Tensor, sigma: float) -> tuple[float, float]:
    """(mean, mean square) of the numbers, from noisy counts around the fullest bin; zeros where noise hides all."""
    fullest = int(counts.argmax())
    if not float(counts[fullest]) > SEEN * sigma:
        return 0.0, 0.0
    exponents = (torch.arange(BINS, dtype=torch.float64, device=counts.device) + 0.5) / PER_OCTAVE - OCTAVES
    middles = torch.cat([2.0**exponents, -(2.0**exponents)])[: len(counts)]
    near = (torch.arange(len(counts), device=counts.device) % BINS - fullest % BINS).abs() <= WINDOW
    kept = torch.where(near & (counts > DEVIATIONS * sigma), counts, 0.0)
    n = float(kept.sum())
    return float((kept * middles).sum()) / n, float((kept * middles.square()).sum()) / n
