"""Runs: a method trained on a stream, from its config to its record.

* `config`: a run, named completely
* `plugins`: methods, streams and measurements of a user
* `possible`: whether a run can be carried out, before anything is trained
* `schedules`: learning rates, and the end of a task
* `loop`: the loop over the tasks of one run
* `train`: a model or a config trained with it
* `evaluate`: output heads, and how many test examples a model gets right
* `clock`: where the time goes
* `measure`: what is measured of a learner at the end
* `recording`: what the record of a run says
* `torchrun`: one run by several processes
* `sidebyside/`: many runs in one loop
* `grid`: many runs, in one process or in several
"""
