"""Names that people give: of methods, benchmarks, options, data sets."""

import difflib
from collections.abc import Iterable


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """The message of an error about an unknown name: the closest known ones, and all of them.

    >>> unknown("method", "sketchodg", ["sgd", "sketchogd"])
    "unknown method 'sketchodg'; did you mean sketchogd? There are: sgd, sketchogd"
    """
    names = list(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"unknown {what} {word!r}; {hint}There are: {', '.join(names) or 'none'}"
