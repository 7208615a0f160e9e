"""Runs that differ in seed and method only, trained side by side: one vectorised step for all of them.

* `partition`: which runs of a grid go together
* `stacked`: the weights of all runs as one tensor per parameter, and the passes through them
* `stored_examples`: what A-GEM and replay do at a step
* `lane`: one run of a group, and the data of all
* `frozen_features`: frozen convolutions, computed once per task
* `steps`: the steps of one task
* `group`: the loop, and the records
"""
