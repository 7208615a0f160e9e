"""Numbers as text in a column of a table, so that they line up."""

from sketchogd.budget import format_bytes


def bytes_cell(count: float | None) -> str:
    """Bytes: as many decimals for every number of a unit.

    >>> bytes_cell(1_601_312), bytes_cell(7.7e9), bytes_cell(0), bytes_cell(None)
    ('1.6 MB', '7.70 GB', '0 B', '')
    """
    return "" if count is None else format_bytes(count, decimals=2 if count >= 10**9 else 1)


def three_decimals(value: float | None) -> str:
    """An accuracy."""
    return "" if value is None else f"{value:.3f}"


def signed(value: float | None) -> str:
    """A difference of accuracies."""
    return "" if value is None else f"{value:+.3f}"
