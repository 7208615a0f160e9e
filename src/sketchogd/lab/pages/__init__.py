"""From runs to what people look at.

* `groups`: runs that differ in their seed only belong together
* `trajectory`: accuracies along training, mean over seeds
* `reference`: published accuracies to show beside those of the runs
* `paired_tests`: the best method against every other, seed by seed
* `tradeoff`: old against new accuracy over the strength of the protection
* `conclusion`: what the runs say, in a sentence per benchmark
* `tables`: the page's tables as HTML
* `downloads`: its numbers as CSV
* `report`: the table, and one HTML page that opens offline
* `assets/`: the page's HTML, CSS and JavaScript
* `drawing`: colours, markers and axes that all figures share
* `figures`: figures for print
"""
