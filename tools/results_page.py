"""docs/results.md and the README's short table, made from `results/`; `tools.results` writes and checks them.

Remarks written by hand are in results/notes.md, each below a heading `## KEY`, and are inserted at the place of their
key: a section ("goals"), an ablation ("ablations/rank") or a cell ("table1/split-mnist/sgd").
"""

import re
from collections.abc import Iterator
from pathlib import Path

from sketchogd.lab.pages.groups import title_of
from sketchogd.lab.runs.config import RunConfig
from sketchogd.paper import ablations, equal_bytes, goals, networks, published
from sketchogd.paper.settings import PAPER_BYTES, SIZES, training_for
from sketchogd.storage import atomic
from tools import networks_page, results_figures, results_tables
from tools.evidence import Cell, Evidence
from tools.markdown import DASH, size, spread, table, with_part

BEGIN, END = "<!-- results: begin (python -m tools.results --write) -->", "<!-- results: end -->"
PAGE, README, IMAGES, NOTES = "docs/results.md", "README.md", "docs/images/results", "notes.md"
SECTIONS = ("intro", "table1", "table2", "causes", "curves", "spectra", "goals", "equal-bytes", "tuning", "ablations")


class Page:
    """The page while it is made: its lines so far, and what they are made from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.found = Evidence.load(root)
        self.notes = read_notes(root / NOTES)
        self.figures = results_figures.names(root, self.found)
        self.lines: list[str] = []

    def say(self, *lines: str) -> None:
        """Add a paragraph."""
        if any(lines):
            self.lines += [*lines, ""]

    def note(self, key: str) -> None:
        """Add the remark of a key, if there is one."""
        if key in self.notes:
            self.say(self.notes[key])

    def command(self, *commands: str) -> None:
        """Add commands."""
        self.say("```", *commands, "```")

    def pictures(self, section: str) -> None:
        """Add the figures of a section."""
        self.say(*(f"![{name}](images/results/{name}.png)" for name in self.figures[section]))


def page(root: str | Path) -> str:
    """The text of docs/results.md from the results in `root`.

    Raises:
        ValueError: a bundle is damaged, or a note has a key that the page has no place for.
    """
    made = Page(Path(root))
    for key in made.notes:
        if key not in (*known_keys(), *networks_page.known_keys()):
            raise ValueError(f"{NOTES}: there is no place for the note {key!r}; places are {', '.join(known_keys())}")
    _intro(made)
    for name, title, words in (
        ("table1", "Table 1", "Sketches see every training gradient."),
        ("table2", "Table 2", "Every method compresses the same 4,800 gradients to 1,200 vectors; OGD keeps all."),
    ):
        _paper_table(made, name, title, words)
    _causes(made)
    _curves_and_spectra(made)
    _goals(made)
    _equal_bytes(made)
    _tuning(made)
    _ablations(made)
    return "\n".join(made.lines).rstrip() + "\n"


def known_keys() -> list[str]:
    """Every key that a note may have."""
    cells = [f"{name}/{b}/{m}" for name, rows in published.TABLES.items() for b in published.BENCHMARKS for m in rows]
    keys = [*SECTIONS, *cells, *(f"ablations/{name}" for name in ablations.ABLATIONS)]
    keys += [f"goals/{goal.key}/{goal.benchmark}" for goal in goals.goal_list()]
    return keys + [f"equal-bytes/{benchmark}" for benchmark in published.BENCHMARKS]


def read_notes(path: Path) -> dict[str, str]:
    """The remarks by key, of which a heading may have several; text before the first heading is for editors."""
    if not path.exists():
        return {}
    parts = re.split(r"^## +(\S.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found: dict[str, str] = {}
    for keys, text in zip(parts[1::2], parts[2::2], strict=True):
        for key in keys.split():
            if key in found:
                raise ValueError(f"{path}: two notes for {key!r}")
            found[key] = text.strip()
    return found


def readme_table(root: str | Path) -> str:
    """The README's short table, between its markers."""
    found = Evidence.load(root)
    by_key = {(goal.key, goal.benchmark): goal.method for goal in goals.goal_list()}

    def learned(cells: list[Cell | None]) -> str:
        """The mean of the benchmarks' learning accuracies; a dash unless all are there."""
        known = [cell.learning.mean for cell in cells if cell is not None]
        return f"{sum(known) / len(known):.3f}" if len(known) == len(cells) else DASH

    def ours(key: str) -> Iterator[str]:
        cells: list[Cell | None] = []
        for benchmark in published.BENCHMARKS:
            chosen = by_key.get((key, benchmark))
            run = None if chosen is None else RunConfig(benchmark, chosen, training_for(benchmark), 0, "goals")
            cells.append(None if run is None else found.cell(run))
            yield DASH if cells[-1] is None else spread(cells[-1].accuracy)
        yield learned(cells)

    small = {b: 16_000_000 if b == "split-cifar100" else 2_000_000 for b in published.BENCHMARKS}

    def others(row: str) -> Iterator[str]:
        """Of a baseline the largest run at equal bytes that fits, of one seed."""
        cells: list[Cell | None] = []
        for benchmark in published.BENCHMARKS:
            fitting = [p for p in found.points(benchmark) if p.row == row and p.nbytes <= small[benchmark]]
            cells.append(max(fitting, key=lambda p: p.nbytes).cell if fitting else None)
            yield DASH if cells[-1] is None else f"{cells[-1].accuracy.mean:.3f}"
        yield learned(cells)

    best = [max(published.lookup(b, f"sketchogd-{i}").mean for i in (1, 2, 3)) for b in published.BENCHMARKS]  # type: ignore[union-attr]
    agem = [published.lookup(b, "a-gem").mean for b in published.BENCHMARKS]  # type: ignore[union-attr]
    raw = [size(SIZES[b].agem[0] * published.TASKS[b] * equal_bytes.EXAMPLE_BYTES[b]) for b in published.BENCHMARKS]
    large = f"{size(PAPER_BYTES['rotated-mnist'])} ({size(PAPER_BYTES['split-cifar100'])})"
    rows = [
        [
            "the paper's best sketch, as published",
            f"{large} without its basis",
            *(f"{mean:.3f}" for mean in best),
            DASH,
        ],
        ["A-GEM, keeps raw examples, as published", f"{raw[0]} ({raw[-1]})", *(f"{mean:.3f}" for mean in agem), DASH],
        ["`sketchogd` at the paper's budget", f"{large}, everything counted", *ours("counted")],
        ["EWC, one seed", "2 MB (16 MB) or less", *others("ewc")],
        ["GPM, one seed", "2 MB (16 MB)", *others("gpm")],
        ["replay, keeps raw examples, one seed", "2 MB (16 MB)", *others("replay")],
        ["`layer-sketch`, strength tuned on held-out training data", "2 MB (16 MB)", *ours("tuned")],
        ["`layer-sketch`, one rule for all four", "2 MB (16 MB)", *ours("one-rule")],
        ["the same, its anchor in one byte per weight", "0.5 MB (4 MB)", *ours("quarter")],
    ]
    said = (
        "The paper's four benchmarks by its protocol: accuracy on all tasks after the last one, mean ± standard "
        "deviation over 5 seeds, and the mean over the four of the accuracy on each task when it was new. [Everything "
        "that was measured](docs/results.md), with the commands."
    )
    titles = map(title_of, published.BENCHMARKS)
    head = table(["", "bytes (Split CIFAR-100)", *titles, "learned"], rows)
    lines = [BEGIN, said, "", *head, END]
    return "\n".join(lines)


def write(root: str | Path, repository: str | Path) -> list[Path]:
    """Write the page, its figures and the README's table; the paths."""
    home = Path(repository)
    text = page(root)
    readme = with_part((home / README).read_text(encoding="utf-8"), readme_table(root))
    (home / PAGE).parent.mkdir(parents=True, exist_ok=True)
    figures = results_figures.write(Path(root), Evidence.load(root), home / IMAGES)
    atomic.write_bytes(home / PAGE, text.encode())
    atomic.write_bytes(home / README, readme.encode())
    return [home / PAGE, home / README, *figures, *networks_page.write(root, home, read_notes(Path(root) / NOTES))]


def check(root: str | Path, repository: str | Path) -> list[str]:
    """A line for each file that does not agree with the results. Figures must exist; their content is not compared."""
    home = Path(repository)
    wrong = []
    if not (home / PAGE).exists() or (home / PAGE).read_text(encoding="utf-8") != page(root):
        wrong.append(f"{PAGE} is not what {root} gives")
    readme = (home / README).read_text(encoding="utf-8")
    if readme != with_part(readme, readme_table(root)):
        wrong.append(f"the table in {README} is not what {root} gives")
    wrong += networks_page.check(root, home, read_notes(Path(root) / NOTES))
    text = (home / PAGE).read_text(encoding="utf-8") if (home / PAGE).exists() else ""
    for name in re.findall(r"\]\((images/[^)]+)\)", text):
        if not (home / "docs" / name).exists():
            wrong.append(f"docs/{name} is missing")
    return wrong


# ---------------------------------------------------------------- sections


def _intro(made: Page) -> None:
    made.say("# Results")
    made.say(
        "This page is made by `python -m tools.results --write` from the records in `results/`; remarks are in "
        "`results/notes.md`. Numbers are accuracies on all tasks after the last one, mean ± standard deviation over 5 "
        "seeds unless said otherwise. A dash: not run. Networks people use have [their own page](results-networks.md)."
    )
    machines: dict[str, int] = {}
    own = [run for run in made.found.runs if run.config.get("preset") not in networks.EXPERIMENTS]
    for run in own:
        device, torch = (run.record.get("device") or {}).get("name"), (run.record.get("versions") or {}).get("torch")
        machines[f"{device}, torch {torch}"] = machines.get(f"{device}, torch {torch}", 0) + 1
    counted = "; ".join(f"{count:,} on {name}" for name, count in sorted(machines.items()))
    made.say(f"{len(own):,} runs" + (f": {counted}." if counted else "."))
    made.say(
        "All of it, in pieces of at most ten minutes on one GPU; give the second line until it says that all is done:"
    )
    made.command(
        "python -m tools.reproduce_all --list",
        "python -m tools.reproduce_all --device cuda --time-limit 540 --data FOLDER_WITH_CIFAR100",
        "python -m tools.results --write",
    )
    made.note("intro")


def _paper_table(made: Page, name: str, title: str, words: str) -> None:
    lines, beyond = results_tables.paper_table(made.found, name)
    made.say(f"## {title}")
    made.say(
        f"{words} First line: ours; second: published, and the difference. † outside two published deviations; p is "
        "that of Welch's test, with five seeds of theirs."
    )
    made.command(f"sketchogd reproduce {name} --device cuda")
    made.say(*lines)
    together: dict[tuple[str, str], list[str]] = {}
    for benchmark, method, cell in beyond:
        remark = made.notes.get(f"{name}/{benchmark}/{method}", "The cause was not looked for yet.")
        together.setdefault((benchmark, remark), []).append(cell)
    for (benchmark, remark), cells in together.items():
        made.say(f"* † {title_of(benchmark)}, {', '.join(cells)}: {remark}")
    made.note(name)


def _causes(made: Page) -> None:
    lines = results_tables.causes_table(made.found)
    if not lines:
        return
    made.say("## Where ours and the published numbers differ")
    made.say(
        "The tables project the joint displacement of 50 steps. Here every step is projected, as in the paper; "
        "Permuted MNIST has the permutations that the released code draws for its seeds 1 to 5; and A-GEM mixes up "
        "the heads, as the released code does. The same seeds are compared."
    )
    made.command("sketchogd reproduce causes --device cuda")
    made.say(*lines)
    made.note("causes")


def _curves_and_spectra(made: Page) -> None:
    made.say("## Accuracy along training")
    made.say("The first seed of table 1, after every epoch. Any other choice of tasks: `sketchogd report runs/table1`.")
    made.command("sketchogd reproduce curves --device cuda", "sketchogd report runs/curves --figures figures")
    made.pictures("curves")
    made.note("curves")
    made.say("## Spectra")
    made.say(
        "Singular values of 4,800 gradients with the stable rank dotted, and what sketches of rising rank leave out of "
        "them beside every bound."
    )
    made.command("sketchogd reproduce spectra --device cuda", "sketchogd report runs/spectra --figures figures")
    made.pictures("spectra")
    made.note("spectra")


def _goals(made: Page) -> None:
    made.say("## Goals")
    made.say(
        "The paper's budget is 1,200 vectors of length p in float32: 545 MB, and 7.69 GB for Split CIFAR-100. A basis "
        "of 2,400 vectors in bfloat16 takes as much on the device, and a small matrix that corrects its rounding; the "
        "float32 sketch is on the host while the model trains, and its bytes are listed."
    )
    made.command("sketchogd reproduce goals --device cuda")
    made.say(*results_tables.goals_table(made.found))
    for goal in goals.goal_list():
        made.note(f"goals/{goal.key}/{goal.benchmark}")
    made.note("goals")


def _equal_bytes(made: Page) -> None:
    made.say("## Equal bytes")
    made.say(
        "Accuracy over everything a method keeps between tasks: sketch, basis, test matrices, the copy of the weights "
        "that lazy projection needs, stored examples. A cell is the largest run of the method that fits. \\* keeps raw "
        "examples of old tasks. The row with a bfloat16 basis counts the device only: the sketch on the host takes "
        "twice as much again (dotted in the figure). At the paper's own sizes the runs are those of tables and goals. "
        "All are of the first seed, the same for all methods; the list of points has the mean over more, if there are."
    )
    made.command("sketchogd reproduce equal-bytes --device cuda")
    for benchmark in published.BENCHMARKS:
        title, points = title_of(benchmark), made.found.points(benchmark)
        if not points:
            continue
        made.say(f"### {title}")
        made.say(f"![Accuracy over bytes, {title}](images/results/bytes-{benchmark}.png)")
        made.say(*results_tables.budgets_table(points, benchmark))
        made.say(*results_tables.who_wins(points, benchmark), *results_tables.not_run(made.found, benchmark))
        made.note(f"equal-bytes/{benchmark}")
        made.say("<details><summary>Every point, with its bytes</summary>", "", *results_tables.points_table(points))
        made.say("</details>")
    made.note("equal-bytes")


def _tuning(made: Page) -> None:
    lines = results_tables.tuning_tables(made.found)
    made.say("## Settings chosen without test data")
    made.say(
        "Scored on the last tenth of each class of the training data, which these runs did not train on. Baselines are "
        "tuned like our own method. The last column is what the other experiments use (`sketchogd.paper.settings`)."
    )
    made.command("sketchogd reproduce ridges --device cuda")
    made.say(*lines)
    made.note("tuning")


def _ablations(made: Page) -> None:
    made.say("## Ablations")
    made.say(
        "One setting varied at a time, one seed. “When learned” is the mean accuracy on each task right after it was "
        "trained: it shows what protection costs in learning."
    )
    for name, ablation in ablations.ABLATIONS.items():
        made.say(f"### {ablation.title}")
        made.command(f"sketchogd reproduce ablations --groups {name} --device cuda")
        made.say(*(results_tables.ablation_table(made.found, name) or ["Not run yet."]))
        made.note(f"ablations/{name}")
    made.note("ablations")
