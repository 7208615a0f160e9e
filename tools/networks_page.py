"""docs/results-networks.md, made from the records of the experiments on networks in `results/`.

Remarks written by hand are in results/notes.md under the keys of `known_keys`. A cell without runs is a dash.
"""

from collections.abc import Sequence
from pathlib import Path

from sketchogd.lab.methods import KINDS, Method, registry
from sketchogd.lab.pages.groups import title_of
from sketchogd.lab.records import metrics
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.streams import BENCHMARKS
from sketchogd.paper.networks import experiments, tries
from sketchogd.paper.networks.experiments import GROUPS
from sketchogd.storage import atomic
from tools.evidence import Cell, Evidence
from tools.markdown import DASH, size, table

PAGE = "docs/results-networks.md"
MARK = r"\*"
"""What stands behind a method that keeps raw examples."""
NOT_RUN = ["Not run yet."]

INTRO = rf"""# Results on networks people use

This page is made by `python -m tools.results --write` from the records in `results/`; remarks are in
`results/notes.md`. Accuracies are percent. *Learned* is the mean accuracy on each task when it was learned, *backward*
what the others lost or won until the end. Bytes are all that a method keeps between steps, raw images as a byte per
value and texts as two per token. Every method had as many tries, scored on a fifth of the training data that was held
out. {MARK} keeps raw examples of old tasks. A dash: not run.

All of it, in pieces of at most ten minutes on one GPU; each line until it says that all is done, in as many processes
at once as the GPU has room for:

```
python -m tools.reproduce_all --device cuda --time-limit 540 --data DATA --pieces 'networks-tuning/*'
python -m tools.choose --write
python -m tools.reproduce_all --device cuda --time-limit 540 --data DATA
python -m tools.results --write
```
"""

HEAD = ["", "bytes", "of the weights", "learned", "at the end", "backward", "seeds"]


def known_keys() -> list[str]:
    """Every key that a note about networks may have."""
    own = ["class-incremental", "long-streams", "one-pass"]
    return [*own, *(f"networks/{name}" for name in tries.compared()), *(f"networks-ablations/{g}" for g in GROUPS)]


def page(root: str | Path, notes: dict[str, str]) -> str:
    """The text of the page from the results in `root`, with the notes of `known_keys`.

    Raises:
        ValueError: a bundle is damaged.
    """
    found = Evidence.load(root)
    parts = [INTRO.strip()]
    for name in tries.compared():
        parts += [f"## {title_of(name)}", _budget(name), compared_table(found, name), notes.get(f"networks/{name}", "")]
    for key, title, made in (
        ("class-incremental", "One head for all tasks", class_incremental_table(found)),
        ("long-streams", "Long streams", long_table(found)),
        ("one-pass", "Every example seen once", one_pass_table(found)),
    ):
        parts += [f"## {title}", f"```\nsketchogd reproduce {key} --device cuda\n```", made, notes.get(key, "")]
    parts += ["## Ablations", "One setting of the library's default varied at a time, one seed."]
    for group in GROUPS:
        parts += [f"### {group}", ablation_table(found, group), notes.get(f"networks-ablations/{group}", "")]
    return "\n\n".join(part for part in parts if part) + "\n"


def _budget(name: str) -> str:
    known = BENCHMARKS[name]
    goal = "" if known.goal is None else f" The goal is {100 * known.goal:.1f} in these bytes."
    return f"A budget of {size(known.budget)}, {known.budget / (4 * known.parameters):.0%} of the shared weights.{goal}"


def compared_table(found: Evidence, name: str) -> str:
    """A row per method as it is compared, then what others publish, in italics."""
    rows = []
    for each in _methods(name):
        run = RunConfig(name, each, BENCHMARKS[name].training, 0, "networks")
        rows.append([_title(each, name), *_numbers(found.cell(run), name), _tries(each, name)])
    for title, (accuracy, backward) in BENCHMARKS[name].published.items():
        transfer = DASH if backward is None else _signed(backward)
        rows.append([f"*{title}, published*", "", "", "", f"*{accuracy:.1f}*", f"*{transfer}*", "", ""])
    return "\n".join(table([*HEAD, "tries"], rows))


def class_incremental_table(found: Evidence) -> str:
    """A row per benchmark and method with one head for all tasks."""
    rows = [
        [f"{title_of(run.benchmark)}: {_title(run.method, run.benchmark)}", *_numbers(cell, run.benchmark)]
        for run in experiments.class_incremental().runs
        if (cell := found.cell(run)) is not None
    ]
    return "\n".join(table(HEAD, rows) if rows else NOT_RUN)


def long_table(found: Evidence) -> str:
    """Mean accuracy over the tasks so far, after 10, 25, 50 and all of them."""
    rows = []
    for run in experiments.long_streams().runs:
        cell = found.cell(run)
        if cell is not None and (A := cell.runs[0].accuracy) is not None:
            means = [f"{100 * A[n - 1, :n].mean():.1f}" if n <= len(A) else DASH for n in (10, 25, 50, 100)]
            rows.append([_title(run.method, run.benchmark), size(cell.nbytes), *means])
    return "\n".join(table(["", "bytes", "10 tasks", "25", "50", "100"], rows) if rows else NOT_RUN)


def one_pass_table(found: Evidence) -> str:
    """A row per benchmark and method."""
    rows = [
        [f"{title_of(run.benchmark)}: {registry.title(run.method.name)}", *_numbers(cell, run.benchmark)]
        for run in experiments.one_pass(seeds=1).runs
        if (cell := found.cell(run)) is not None
    ]
    return "\n".join(table(HEAD, rows) if rows else NOT_RUN)


def ablation_table(found: Evidence, group: str) -> str:
    """A row per variant."""
    runs = experiments.networks_ablations(groups=[group]).runs
    cells = {words: found.cell(run) for words, run in zip(GROUPS[group], runs, strict=True)}
    rows = [[words, *_numbers(cell, runs[0].benchmark)] for words, cell in cells.items()]
    return "\n".join(table(HEAD, rows) if any(cells.values()) else NOT_RUN)


def _methods(name: str) -> list[Method]:
    order = [method for method in registry.listed() if method in ("sgd", *tries.OPTIONS)]
    return [each for method in order for each in experiments.settings(method, name)]


def _title(settings: Method, benchmark: str) -> str:
    tuned = settings.name == "protect" and settings != tries.usual(benchmark)
    mark = f" {MARK}" if KINDS[settings.name].keeps_examples else ""
    return registry.title(settings.name) + (", strength tuned" if tuned else "") + mark


def _tries(settings: Method, benchmark: str) -> str:
    if settings.name not in tries.OPTIONS or settings == tries.usual(benchmark):
        return "0"
    known = tries.choices().get(benchmark, {}).get(settings.name)
    return DASH if known is None else str(known["tries"])


def _numbers(cell: Cell | None, benchmark: str) -> list[str]:
    """Bytes, their share of the shared weights, learned, at the end, backward transfer, seeds."""
    if cell is None:
        return [DASH] * 6
    share = f"{cell.nbytes / (4 * BENCHMARKS[benchmark].parameters):.0%}" if cell.nbytes else DASH
    backward = metrics.spread([metrics.backward_transfer(run.accuracy) for run in cell.runs])  # type: ignore[arg-type]
    return [
        size(cell.nbytes),
        share,
        f"{100 * cell.learning.mean:.1f}",
        f"{100 * cell.accuracy.mean:.1f}" + (f" ± {100 * cell.accuracy.std:.1f}" if cell.accuracy.n > 1 else ""),
        _signed(100 * backward.mean),
        str(cell.accuracy.n),
    ]


def _signed(value: float) -> str:
    text = f"{abs(value):.1f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else '−'}{text}"


def write(root: str | Path, repository: str | Path, notes: dict[str, str]) -> list[Path]:
    """Write the page; its path."""
    path = Path(repository) / PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, page(root, notes).encode())
    return [path]


def check(root: str | Path, repository: str | Path, notes: dict[str, str]) -> Sequence[str]:
    """A line if the page does not agree with the results."""
    path = Path(repository) / PAGE
    same = path.exists() and path.read_text(encoding="utf-8") == page(root, notes)
    return [] if same else [f"{PAGE} is not what {root} gives"]
