"""What plain data from a file may be: checks of types, ranges and keys, before anything is built from it.

A check takes a value and where it stands, and raises StorageError with both if the value is another one than expected.
"""

from collections.abc import Callable, Mapping
from typing import Any

from .errors import StorageError

Check = Callable[[Any, str], None]

Fields = Mapping[str, Check]
"""What the values of a mapping may be, by their keys."""

LARGEST = 1 << 53
"""Beyond this a JSON number is no longer a whole number everywhere."""


def whole(low: int = 0, high: int = LARGEST) -> Check:
    """A whole number from `low` to `high`.

    >>> whole(1)(0, "rank")
    Traceback (most recent call last):
    sketchogd.errors.StorageError: rank is 0 in the metadata; expected a whole number from 1 to 9007199254740992
    """

    def check(value: Any, where: str) -> None:
        if not _is_int(value) or not low <= value <= high:
            raise wrong(value, where, f"a whole number from {low} to {high}")

    return check


def number(low: float = -1e300, high: float = 1e300) -> Check:
    """A finite number from `low` to `high`."""

    def check(value: Any, where: str) -> None:
        if not (_is_int(value) or isinstance(value, float)) or not low <= value <= high:
            raise wrong(value, where, f"a number from {low:g} to {high:g}")

    return check


def word(*choices: str) -> Check:
    """One of some words."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in choices:
            raise wrong(value, where, " or ".join(map(repr, choices)))

    return check


def flag(value: Any, where: str) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise wrong(value, where, "true or false")


def text(value: Any, where: str) -> None:
    """Any text."""
    if not isinstance(value, str):
        raise wrong(value, where, "a text")


def anything(value: Any, where: str) -> None:
    """Whatever it is; for what is checked elsewhere."""


def maybe(check: Check) -> Check:
    """None, or what the check accepts."""
    return lambda value, where: None if value is None else check(value, where)


def many(check: Check) -> Check:
    """A list of what the check accepts."""

    def check_all(value: Any, where: str) -> None:
        if not isinstance(value, list | tuple):
            raise wrong(value, where, "a list")
        for i, item in enumerate(value):
            check(item, f"{where}[{i}]")

    return check_all


def table(check: Check) -> Check:
    """A mapping from names to what the check accepts."""

    def check_all(value: Any, where: str) -> None:
        _require_names(value, where)
        for name, item in value.items():
            check(item, f"{where}[{_short(name)}]")

    return check_all


def record(required: Fields, optional: Fields | None = None, more: bool = False) -> Check:
    """A mapping with these keys, and with others only if there may be `more`."""
    known = {**required, **(optional or {})}

    def check_all(value: Any, where: str) -> None:
        _require_names(value, where)
        missing = [key for key in required if key not in value]
        extra = [] if more else [key for key in value if key not in known]
        if missing or extra:
            what = f"lacks {', '.join(missing[:5])}" if missing else f"has the unknown {_short(extra[0])}"
            raise StorageError(f"{where} {what}; the file is damaged or of another version of sketchogd")
        for name, check in known.items():
            if name in value:
                check(value[name], f"{where}.{name}" if where != TOP else name)

    return check_all


TOP = "the metadata"
"""Where the outermost record stands."""


def wrong(value: Any, where: str, expected: str) -> StorageError:
    """The error for a value that is not as expected."""
    return StorageError(f"{where} is {_short(value)} in the metadata; expected {expected}")


def _require_names(value: Any, where: str) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise wrong(value, where, "a mapping from names")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: Any) -> str:
    """A value in at most about 60 characters, however deep or long it is."""
    if isinstance(value, Mapping | list | tuple):
        return f"a {'mapping' if isinstance(value, Mapping) else 'list'} of {len(value)}"
    if _is_int(value) and abs(value) > 1 << 200:
        return f"a number of about {value.bit_length() * 3 // 10} digits"
    shown = ascii(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
