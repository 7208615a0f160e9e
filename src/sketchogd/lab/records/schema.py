"""What a record of a run may say: names, types, finite numbers and sizes, checked before anything is done with it.

Run folders and bundles come from other people and from disks that fail. Everything that is read from them passes here
first, so that what comes after (tables, figures, file names) may rely on it.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

DEPTH, NODES, TEXT = 12, 1_000_000, 100_000
"""Most levels and values of a record, and most characters of a text in it."""
MOST_TASKS = 2000
"""Most tasks of a run: its accuracies then take 32 MB."""
NAME = 200
"""Most characters of a name that becomes part of a file's."""
FILE_BYTES = 1 << 28
"""Most bytes of a file with records; the largest have a few megabytes."""
LARGEST = 2**63
"""Integers are below this, and accuracies far below."""


class RecordError(ValueError):
    """A run folder is damaged, of another format, or in use by another process."""


def read_text(path: Path) -> str:
    """The text of a file of records.

    Raises:
        FileNotFoundError: there is no such file.
        RecordError: it is no plain file, too large, unreadable, or not UTF-8.
    """
    try:
        size = path.stat().st_size
        if not path.is_file() or size > FILE_BYTES:
            raise RecordError(f"not a file of at most {FILE_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"unreadable: {error}") from error


def parse(text: str) -> Any:
    """The value of a JSON text: a tree of bounded size, whose numbers are finite.

    Raises:
        RecordError: the text is not JSON, too deep, too large, or has NaN or infinity.
    """

    def refuse(word: str) -> None:
        raise RecordError(f"{word} is not a number of JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except (json.JSONDecodeError, RecursionError) as error:
        raise RecordError(f"{error}") from error
    except ValueError as error:  # a number of thousands of digits
        raise RecordError(f"{error}") from error
    _require_bounded(value)
    return value


def _require_bounded(value: Any) -> None:
    """Walk a tree level by level, so that nothing is called for each level."""
    level, seen = [value], 0
    for _ in range(DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                _require(all(key.isprintable() for key in node), "a key", "printable")
                below += [*node, *node.values()]
            elif isinstance(node, list):
                below += node
            elif isinstance(node, str):
                _require(len(node) <= TEXT and _encodable(node), "a text", f"at most {TEXT:,} characters of Unicode")
            elif isinstance(node, int | float):
                _require(_finite(node), "a number", "finite, and an integer below 2^63")
        seen += len(below)
        _require(seen <= NODES, "the record", f"of at most {NODES:,} values")
        level = below
    _require(not level, "the record", f"of at most {DEPTH} levels")


def check_config(config: Any) -> None:
    """Raise RecordError unless `config` is one that a run may have; its names may become part of file names."""
    _require(isinstance(config, dict), "config", "an object")
    for key in ("benchmark", "preset"):
        _require(key not in config or is_name(config[key]), f"config.{key}", "a name without separators")
    _check_fields(config, _CONFIG, "config.")


def is_name(value: Any) -> bool:
    """Whether a value is a text that can be part of a file name: printable, without separators, not of dots only."""
    if not isinstance(value, str) or len(value) > NAME or not value.isprintable():
        return False
    return not any(sign in value for sign in "/\\:") and (not value or value.strip(". ") != "")


def check_fields(record: Mapping[str, Any]) -> None:
    """Raise RecordError unless the fields of a record that are known have values of the right form."""
    _check_fields(record, _RECORD, "")


def check_accuracy(matrix: np.ndarray, initial: np.ndarray) -> None:
    """Raise RecordError unless the accuracies are a matrix (T × T) and a row (T) of numbers; NaN is allowed."""
    shape = matrix.shape
    square = len(shape) == 2 and shape[0] == shape[1] <= MOST_TASKS
    _require(square and shape[0] > 0, "the accuracy matrix", f"T × T, not {shape}")
    _require(initial.shape == shape[:1], "the initial accuracies", f"of {shape[0]} tasks, not {initial.shape}")
    for array in (matrix, initial):
        _require(not (np.abs(array[~np.isnan(array)]) > 1e6).any(), "an accuracy", "a finite, small number")


def check_evaluations(events: list[Any], tasks: int) -> None:
    """Raise RecordError unless these are evaluations of a run of so many tasks."""
    for event in events:
        accuracy = event.get("accuracy")
        good = _whole(event.get("task")) and event["task"] < max(tasks, 1) and _whole(event.get("epoch"))
        good = good and isinstance(accuracy, list) and len(accuracy) <= max(tasks, 1)
        good = good and all(value is None or _number(value) for value in accuracy)
        _require(good, "an evaluation", "of a task of the run, with an epoch and accuracies")


def check_entry(entry: Any) -> None:
    """Raise RecordError unless this is a run as a bundle has it (`bundles`)."""
    _require(isinstance(entry, dict), "a run", "an object")
    named = {"name", "digest", "config"} <= entry.keys() and ("accuracy" in entry or "error" in entry)
    _require(named, "a run", "with name, digest, config, and accuracy or error")
    parts = entry["name"].split("/") if _text(entry["name"]) else [""]
    _require(all(part and is_name(part) for part in parts), "the name of a run", "names with / between them")
    check_config(entry["config"])
    _check_fields(entry, _RECORD, "")
    if "error" in entry:
        return
    rows = entry["accuracy"]
    T = len(rows) if isinstance(rows, list) else 0
    _require(0 < T <= MOST_TASKS and all(_row(row) and len(row) <= T for row in rows), "accuracy", "a row per task")
    _require("initial" not in entry or (_row(entry["initial"]) and len(entry["initial"]) == T), "initial", "a row")
    _check_fields(entry, _ARRAYS, "")
    known = {str(task) for task in range(1, T + 1)}
    _require(known.issuperset(entry.get("curve", {})), "curve", "of tasks of the run")


# ---------------------------------------------------------------- the forms of values


def _require(good: bool, what: str, expected: str) -> None:
    if not good:
        raise RecordError(f"{what} must be {expected}")


def _encodable(value: str) -> bool:
    """Whether a text has no half of a surrogate pair, which JSON can name and no file can hold."""
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def _label(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= NAME


def _finite(value: Any) -> bool:
    return abs(value) < LARGEST if isinstance(value, int) else math.isfinite(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def _row(value: Any) -> bool:
    """Accuracies; None where nothing was measured."""
    return isinstance(value, list) and all(each is None or (_number(each) and abs(each) <= 1e6) for each in value)


def _numbers(value: Any) -> bool:
    """A number, or a list of them, below the square root of what a float can hold."""
    return all(_number(each) and abs(each) < 1e150 for each in (value if isinstance(value, list) else [value]))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _object_of(form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))


def _optional(form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or form(value)


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or _number(value)


def _error(value: Any) -> bool:
    return isinstance(value, dict) and all(_text(value.get(key, "")) for key in ("type", "message"))


def _ledger(value: Any) -> bool:
    if not isinstance(value, dict) or not _whole(value.get("nbytes", 0)) or not _whole(value.get("host", 0)):
        return False
    entries = value.get("entries", [])
    return (
        _object_of(_whole)(value.get("kinds", {}))
        and isinstance(entries, list)
        and all(isinstance(item, dict) and _text(item.get("name")) and _whole(item.get("nbytes")) for item in entries)
        and ("nbytes" in value or not entries)
    )


def _check_fields(found: Mapping[str, Any], forms: Mapping[str, tuple[Callable[[Any], bool], str]], where: str) -> None:
    for key, (form, expected) in forms.items():
        _require(key not in found or form(found[key]), where + key, expected)


_CONFIG: dict[str, tuple[Callable[[Any], bool], str]] = {
    "method": (_label, f"a printable text of at most {NAME} characters"),
    "seed": (_scalar, "a number"),
    "epochs": (_optional(lambda value: _whole(value) and value > 0), "a whole number from 1"),
    "tasks": (_optional(_whole), "a whole number"),
    "budget": (_optional(_scalar), "a number"),
    "options": (_optional(lambda value: isinstance(value, dict)), "an object"),
}
_ARRAYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "curve": (_object_of(_row), "rows of numbers"),
    "spectra": (_object_of(_numbers), "rows of numbers"),
}
_RECORD: dict[str, tuple[Callable[[Any], bool], str]] = {
    "digest": (_text, "a text"),
    "versions": (_optional(_object_of(_optional(_text))), "an object of texts"),
    "device": (_optional(_object_of(_scalar)), "an object of texts and numbers"),
    "started": (_optional(_number), "a number of seconds"),
    "ended": (_optional(_number), "a number of seconds"),
    "timings": (_optional(_object_of(_optional(_number))), "an object of numbers"),
    "steps": (_optional(_whole), "a whole number"),
    "parameters": (_optional(_object_of(_whole)), "an object of whole numbers"),
    "results": (_optional(_object_of(_optional(_number))), "an object of numbers"),
    "ledger": (_optional(_ledger), "an object with nbytes and its parts"),
    "error": (_optional(_error), "an object with type and message"),
}
