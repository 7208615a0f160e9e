"""From runs to what people look at.

* `groups`: runs that differ in their seed only belong together
* `trajectory`: accuracies along training, mean over seeds
* `reference`: published accuracies to show beside those of the runs
* `paired_tests`: the best method against every other, seed by seed
* `report`: the table, and one HTML page that opens offline
* `assets/`: the page's HTML, CSS and JavaScript
* `drawing`: colours, markers and axes that all figures share
* `figures`: figures for print
"""
