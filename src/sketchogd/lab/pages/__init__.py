"""From runs to what people look at.

* `paired_tests`: the best method against every other, seed by seed
* `drawing`: what all figures share
* `figures`: figures for print
* `report`: the table, and one HTML page that opens offline
* `assets/`: the page's HTML, CSS and JavaScript
"""
