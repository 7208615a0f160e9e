"""Where things are on the page: CSS selectors, and JavaScript that reads them."""

SHOWN = ".bench:not([hidden])"
TIP = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
CORNER = '.bench[data-benchmark="split-mnist"] [data-kind=matrix] .panel:first-child rect.cell:nth-of-type(11)'
"""The cell of task 1 after the last of five tasks, in the first matrix."""

CELLS = (
    "[...document.querySelectorAll('.table[data-benchmark=\"split-mnist\"] tbody tr')].filter(tr => !tr.hidden)"
    ".map(tr => [...tr.children].map(cell => cell.textContent))"
)


def split(kind):
    """A selector of the chart of a figure of Split MNIST."""
    return f'.bench[data-benchmark="split-mnist"] [data-kind={kind}] svg.chart'
