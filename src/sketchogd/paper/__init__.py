"""What is particular to the publication of SketchOGD: its numbers, its experiments, and ours beside them.

Importing this package registers the paper's own method and measurement with the lab.

* `published`: the numbers the paper prints
* `settings`: its memory settings, and grids of runs
* `published_agem`: A-GEM as its released code has it
* `rank_errors`: what sketches of rising rank leave out of gradients, beside every bound
* `measurements`: what its figures need of a run
* `equal_bytes`, `goals`, `tuning`, `ablations`, `differences`: our own experiments
* `networks/`: networks people use
* `presets`: every experiment by its name, for `sketchogd reproduce`
"""

from sketchogd.paper import measurements, published_agem

__all__ = ["measurements", "published_agem"]
