"""`sketchogd protect-check FILE.py:build`: what would protect a model of your own, before training.

`build()` returns the model, or (model, optimizer). A batch, from a function named by `--batch`, is remembered by a
throw-away protection, so that coverage says what the outputs depend on and the ledger what is kept after a task.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn
from torch.optim import Optimizer

import sketchogd as so
from sketchogd.budget import format_bytes, parse_bytes
from sketchogd.cli import show
from sketchogd.cli.options import FAILED, Every, Format, Json, completion, form_of, friendly
from sketchogd.cli.show import Form
from sketchogd.lab.names import unknown
from sketchogd.lab.runs.config import OPTIMIZERS
from sketchogd.lab.runs.plugins import load_file

USUAL = ("10%", "25%", "50%", "100%", "200%")
"""Budgets that are shown where none is given; `CHOSEN` is looked at closely, or the first one that is enough."""

CHOSEN = "25%"

UNCOVERED = "not protected: no memory"
"""How the coverage of a parameter begins that was chosen and that nothing protects."""


@friendly
def protect_check(
    target: Annotated[
        str, typer.Argument(metavar="FILE:FUNCTION", help="model.py:build; the function returns the model.")
    ],
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:FUNCTION",
            help="A function that returns (inputs, targets), to see what the outputs depend on.",
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BYTES",
            help='"2MB" or "25%" of the protected parameters; repeat it to compare.',
        ),
    ] = None,
    strength: Annotated[
        float | None,
        typer.Option(metavar="X", help="As strength= of so.protect. Default: that of the library."),
    ] = None,
    optimizer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=", ".join(OPTIMIZERS) + "; for functions that return the model alone.",
            autocompletion=completion.optimizer,
        ),
    ] = "adam",
    parameters: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help='Which are protected: "encoder.*", "!head"; may be repeated. Default: all.'),
    ] = None,
    every: Every = 1,
    format: Format = Form.table,
    json_: Json = False,
) -> None:
    """What would protect a model of your own, before training: coverage, ledger, and what each budget buys.

    The exit status is 1 where a parameter that should be protected is not.
    """
    form = form_of(format, json_)
    if optimizer not in OPTIMIZERS:
        raise ValueError(unknown("optimizer", optimizer, OPTIMIZERS))
    asked = Asked(function_of(target), optimizer, parameters or None, every or 1, strength)
    wanted = budget or list(USUAL)
    examples = None if batch is None else function_of(batch)()
    rows = [asked.bought(each) for each in wanted]
    possible = [row["budget"] for row in rows if row["memory"]]
    if not possible:
        raise ValueError(rows[-1]["note"])
    close = possible[0] if budget or CHOSEN not in possible else CHOSEN
    found = asked.looked_at(close, examples)
    if form is Form.table:
        _print(target, found, rows, close, examples is None)
    else:
        covered = dict.fromkeys(("parameter", "shape", "protected"), str)
        whole = {key: found[key] for key in ("parameters", "nbytes", "memory", "reason", "coverage", "ledger")}
        whole |= {"budget": close, "budgets": rows, "warnings": found["warnings"]}
        show.table(f"{target} within {close}", found["coverage"], covered, form, whole)
    if any(row["protected"].startswith(UNCOVERED) for row in found["coverage"]):
        raise typer.Exit(FAILED)


@dataclass(frozen=True)
class Asked:
    """What is asked about a model.

    Args:
        build: returns the model, or (model, optimizer).
        optimizer: a key of `OPTIMIZERS`, for a model alone.
        parameters: globs of what is protected.
        every: as for `so.protect`.
        strength: as for `so.protect`.
    """

    build: Callable[[], Any]
    optimizer: str
    parameters: list[str] | None
    every: int
    strength: float | None

    def protection(self, budget: str) -> so.Protection:
        """A protection of a fresh model within a budget."""
        made = self.build()
        model, optimizer = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"the function must return a torch.nn.Module, or (model, optimizer); got {type(model).__name__}"
            )
        if optimizer is None:
            optimizer = OPTIMIZERS[self.optimizer]([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        elif not isinstance(optimizer, Optimizer):
            raise ValueError(f"expected (model, torch.optim.Optimizer); got {type(optimizer).__name__} second")
        given: dict[str, Any] = {"parameters": self.parameters, "every": self.every, "strength": self.strength}
        return so.protect(model, optimizer, budget=budget, **given)

    def bought(self, budget: str) -> dict[str, Any]:
        """What a budget gives: bytes, their share of the protected parameters, the memory, or why there is none."""
        row: dict[str, Any] = {"budget": budget, "bytes": None, "share": None, "memory": "", "note": ""}
        if not budget.strip().endswith("%"):
            parse_bytes(budget)  # a mistake, not a budget that is too small
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # shown once, for the memory that is looked at closely
                protection = self.protection(budget)
        except ValueError as error:
            if "budget" not in str(error):
                raise
            return row | {"note": str(error)}
        nbytes, whole = protection.ledger().nbytes, sum(t.nbytes for t in protection.parameters.tensors)
        return row | {"bytes": nbytes, "share": nbytes / whole, "memory": in_words(protection)}

    def looked_at(self, budget: str, examples: Any) -> dict[str, Any]:
        """The protection within a budget, closely: coverage, ledger, reason, warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            protection = self.protection(budget)
            if examples is not None:
                protection.remember([examples])
        ledger = protection.ledger()
        return {
            "parameters": protection.parameters.p,
            "nbytes": ledger.nbytes,
            "memory": in_words(protection),
            "reason": protection.diagnostics()["reason"],
            "coverage": [
                {"parameter": row.name, "shape": " × ".join(map(str, row.shape)), "protected": row.how}
                for row in protection.coverage()
            ],
            "ledger": [
                {"tensor": e.name, "shape": list(e.shape), "dtype": e.dtype, "nbytes": e.nbytes, "purpose": e.purpose}
                for e in ledger
            ],
            "warnings": [str(each.message) for each in caught if issubclass(each.category, so.ProtectionWarning)],
        }


def function_of(target: str) -> Callable[[], Any]:
    """The function that "model.py:build" names; what it raises is told in one line.

    Raises:
        ValueError: the text is not FILE:FUNCTION, or the file has no such function.
        ImportError: there is no such file, or it fails while it is imported.
    """
    path, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier() or not path.endswith(".py"):
        raise ValueError(f"give a Python file and a function in it, such as model.py:build; got {target!r}")
    module = load_file(Path(path))
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(unknown(f"function of {path}", name, known))

    def called() -> Any:
        try:
            return function()
        except Exception as error:
            raise ValueError(f"{target} failed: {type(error).__name__}: {error}") from error

    return called


def in_words(protection: so.Protection) -> str:
    """The memory of a protection in a few words: "LayerMemory, rank 23, strength 7, anchor int8"."""
    memory, rule = protection.memory, protection.memory.rule
    rank = getattr(memory, "rank", None) or getattr(getattr(memory, "sketch", None), "rank", None)
    words = [type(memory).__name__, *([f"rank {rank}"] if rank else [])]
    if isinstance(rule, so.Pull):
        words += [f"strength {rule.strength:g}"] if rule.strength is not None else []
        words += [f"anchor {rule.anchor_dtype}"] if rule.anchor_dtype else []
    else:
        words += [type(rule).__name__]
    return ", ".join(words)


def _print(target: str, found: dict[str, Any], rows: list[dict[str, Any]], close: str, without_batch: bool) -> None:
    whole = format_bytes(sum(each["nbytes"] for each in found["ledger"]))
    show.say(f"{target}: {found['parameters']:,} parameters to protect")
    show.say("")
    written: show.Columns = {
        "budget": str,
        "bytes": show.bytes_cell,
        "share": _percent,
        "memory": lambda words: words or "too small",
    }
    show.table("what a budget gives", rows, written)
    for note in [row["note"] for row in rows if row["note"]][-1:]:
        show.say("")
        show.say(note)
    show.say("")
    covered = dict.fromkeys(("parameter", "shape", "protected"), str)
    show.table(f"within {close}: coverage()", found["coverage"], covered)
    show.say("")
    purposes: dict[str, dict[str, Any]] = {}
    for entry in found["ledger"]:
        row = purposes.setdefault(entry["purpose"], {"purpose": entry["purpose"], "tensors": 0, "bytes": 0})
        row["tensors"] += 1
        row["bytes"] += entry["nbytes"]
    total = {"purpose": "total", "tensors": len(found["ledger"]), "bytes": found["nbytes"]}
    shown: show.Columns = {"purpose": str, "tensors": str, "bytes": show.bytes_cell}
    show.table(f"within {close}: ledger(), {whole}", [*purposes.values(), total], shown)
    show.say("")
    show.say(found["reason"])
    for said in found["warnings"]:
        show.problem(f"warning: {said}")
    if without_batch:
        show.note(
            "note: no batch was given (--batch model.py:batch), so nothing is known of parameters that no output "
            "depends on, and of layers that are used otherwise than by a call"
        )
    bare = [row["parameter"] for row in found["coverage"] if row["protected"].startswith(UNCOVERED)]
    if bare:
        show.problem(f"NOT PROTECTED: {', '.join(bare)}")


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
