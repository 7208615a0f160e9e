"""Attack files, processes and inputs at random, and count what comes of it: `python -m tools.campaign --help`.

* `children`: attempts in a child process, so that a crash or a hang is counted and not suffered
* `subjects`: protections of every kind, and all their tensors
* `attempts`: a refused operation changed nothing; an accepted one goes on to work
* `forge`: metadata and tensors that lie
* `files`: damaged files (unsigned) and forged ones with a right checksum
* `kills`: SIGKILL while a memory is saved, a run trained, a page or a bundle written
* `pickles`: damaged and forged batches of CIFAR-100
* `faults`: a disk that is full, a folder that may not be written, and other faults of files
* `inputs`: batches that cannot be remembered
* `processes`: two processes that do not agree
* `page`: the counts in docs/reliability.md
"""
