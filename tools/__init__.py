"""For maintainers of this repository, not installed: from runs to `results/`, and to the pages that show them.

* `make_mnist_subset`: the MNIST subset that ships inside the package
* `reproduce_all`: every run behind docs/results.md, in pieces
* `pack`: run folders into bundles in `results/`
* `evidence`: the runs in `results/`, looked up by config
* `markdown`: tables and cells as text
* `results_tables`, `results_figures`: the tables and figures of docs/results.md
* `results_page`: docs/results.md and the README's table of accuracies
* `choose`: which settings the comparison of networks uses
* `networks_page`: docs/results-networks.md
* `speed_table`: the table of speeds on docs/speed.md
* `results`: the command that writes or checks all of these
* `campaign/`: attacks on files, disks and inputs
* `site/`: the documentation site
"""
