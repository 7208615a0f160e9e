"""For maintainers of this repository, not installed: from `results/` to the pages that show them.

* `make_mnist_subset`: the MNIST subset that ships inside the package
* `reproduce_all`: every run behind docs/results.md, in pieces
* `pack`: run folders into bundles in `results/`
* `evidence`: the runs in `results/`, looked up by config
* `results_tables`, `results_figures`, `results_page`: docs/results.md and the README's table
* `speed_table`: the README's table of speeds
* `results`: the command that writes or checks all of these
"""
