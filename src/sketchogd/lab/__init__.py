"""The lab: the paper's benchmarks as data, task streams, networks, metrics and records of runs.

The library (`sketchogd`) is what a user imports into their own training; the lab is built on top of it, and the library
never imports the lab. Nothing is imported here: take what is needed from the modules.

* `datasets`: labelled images, embedded, from a folder or downloaded
* `streams`: sequences of tasks made from them
* `models`: the paper's two networks
* `metrics`: what an accuracy matrix says
* `records`: a run as a folder, and which runs of a grid are still to do
"""
