"""The tables of docs/results.md as lines of Markdown, each made from the evidence for one experiment.

A cell without runs is a dash. The number of seeds is given where it is not five.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sketchogd.lab.methods import KINDS, Method, registry
from sketchogd.lab.pages.groups import title_of
from sketchogd.lab.records.metrics import Spread, welch_p
from sketchogd.lab.runs.config import RunConfig
from sketchogd.paper import ablations, differences, equal_bytes, goals, presets, published, tuning
from sketchogd.paper.settings import PAPER_BYTES, TUNED_SKETCH, training_for
from tools import evidence
from tools.evidence import HALF, OURS, ROWS, Cell, Evidence, Point, row_of
from tools.markdown import DASH, SEEDS, signed, size, spread, table

SLACK = 1.02
"""The paper's sketches take up to a fiftieth more than 1,200 vectors, for small factors and the copy of the weights."""


def title(row: str) -> str:
    """The title of one of `evidence.ROWS`."""
    return f"{registry.title('sketchogd')}, bfloat16 basis" if row == HALF else registry.title(row)


# ---------------------------------------------------------------- the paper's tables


def paper_table(found: Evidence, name: str) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Table 1 or 2, ours above published; and (benchmark, method, words) of cells outside two published deviations."""
    preset = {"table1": presets.table1, "table2": presets.table2}[name](seeds=1)
    cells = {(run.benchmark, run.method.name): found.cell(run) for run in preset.runs}
    rows, beyond = [], []
    for method in published.TABLES[name]:
        row = [title(method)]
        for benchmark in published.BENCHMARKS:
            paper, cell = published.lookup(benchmark, method, name), cells[benchmark, method]
            assert paper is not None
            printed = f"{paper.mean:.3f} ± {paper.std:.3f}"
            if cell is None:
                row.append(f"{DASH}<br>{printed}")
                continue
            difference = cell.accuracy.mean - paper.mean
            mark = ""
            if evidence.outside(cell.accuracy, paper):
                mark = " †"
                theirs = Spread(paper.mean, paper.std, SEEDS)
                chance = "" if cell.accuracy.n < 2 else f" ({_chance(welch_p(cell.accuracy, theirs))})"
                beyond.append((benchmark, method, f"{title(method)} {signed(difference)}{chance}"))
            row.append(f"{spread(cell.accuracy)}<br>{printed}, {signed(difference)}{mark}")
        rows.append(row)
    return table(["", *map(title_of, published.BENCHMARKS)], rows), beyond


def _chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.1g}"


def causes_table(found: Evidence) -> list[str]:
    """Runs that are closer to the published ones, beside the same seeds of the tables; empty if there are none."""
    rows = []
    for benchmark in published.BENCHMARKS:
        for suspect in differences.suspects(benchmark):
            closer = found.cell(suspect.closer)
            if closer is None:
                continue
            seeds = {run.config["seed"] for run in closer.runs}
            usual, name = suspect.usual, suspect.table
            ours = found.cell(RunConfig(benchmark, usual, training_for(benchmark), 0, name), seeds)
            paper = published.lookup(benchmark, usual.name, name)
            assert paper is not None
            rows.append(
                [
                    f"{title(usual.name)}, table {name[-1]}, {title_of(benchmark)}",
                    DASH if ours is None else spread(ours.accuracy),
                    f"{spread(closer.accuracy)}, {suspect.words}",
                    f"{paper.mean:.3f} ± {paper.std:.3f}",
                ]
            )
    return table(["", "ours", "closer to the paper's", "published"], rows) if rows else []


# ---------------------------------------------------------------- goals


def goals_table(found: Evidence) -> list[str]:
    """Every goal with what was reached; bytes on the device, and on the host where a sketch is offloaded."""
    rows = []
    for goal in goals.goal_list():
        cell = found.cell(RunConfig(goal.benchmark, goal.method, training_for(goal.benchmark), 0, "goals"))
        met = DASH if cell is None else "yes" if cell.accuracy.mean >= goal.accuracy else "**no**"
        reached = DASH if cell is None else spread(cell.accuracy)
        strength = goal.method.options.get("strength")
        what = f"{title(goal.method.name)}: {goal.words}" + ("" if strength is None else f" (strength {strength:g})")
        rows.append([what, title_of(goal.benchmark), f"≥ {goal.accuracy:.3f}", reached, *_places(cell), met])
    return table(["", "benchmark", "goal", "reached", "device", "host", "met"], rows)


def _places(cell: Cell | None) -> list[str]:
    return [DASH, DASH] if cell is None else [size(cell.device), size(cell.host)]


# ---------------------------------------------------------------- equal bytes


def budgets_table(points: Sequence[Point], benchmark: str) -> list[str]:
    """Rows are methods, columns budgets; a cell is the largest run of the method that fits. The best are bold."""
    budgets = equal_bytes.BUDGETS[benchmark]
    columns = [{row: _largest(points, row, budget, benchmark) for row in ROWS} for budget in budgets]
    best = [max((_shown(p) for p in column.values() if p), default="") for column in columns]
    rows = []
    for row in ROWS:
        if not any(point.row == row for point in points):
            continue
        cells = [title(row) + (r" \*" if registry.keeps_examples(row) else "")]
        for column, top in zip(columns, best, strict=True):
            point = column[row]
            text = DASH if point is None else _shown(point)
            cells.append(f"**{text}**" if text == top else text)
        beyond = [p for p in points if p.row == row and p.nbytes > SLACK * budgets[-1]]
        cells.append(f"{_shown(beyond[-1])} ({size(beyond[-1].nbytes)})" if beyond else "")
        rows.append(cells)
    return table(["", *map(size, budgets), "more"], rows)


def who_wins(points: Sequence[Point], benchmark: str) -> list[str]:
    """Plain sentences: where a baseline is ahead of the best of ours, with and without raw data kept."""
    ahead: dict[bool, list[str]] = {False: [], True: []}
    compared = 0
    for budget in equal_bytes.BUDGETS[benchmark]:
        column = {row: point for row in ROWS if (point := _largest(points, row, budget, benchmark))}
        ours = max((column[row].cell.accuracy.mean for row in OURS if row in column), default=None)
        if ours is None:
            continue
        compared += 1
        for raw in (False, True):
            others = [row for row in column if row not in OURS and registry.keeps_examples(row) == raw]
            top = max(others, key=lambda row: column[row].cell.accuracy.mean, default=None)
            if top is not None and column[top].cell.accuracy.mean > ours:
                ahead[raw].append(
                    f"{size(budget)} ({title(top)} {column[top].cell.accuracy.mean:.3f}, ours {ours:.3f})"
                )
    if not compared:
        return []
    lines = []
    for raw, words in ((False, "that keeps no raw data"), (True, "that keeps raw data")):
        if ahead[raw]:
            lines.append(f"* A baseline {words} is ahead of the best of ours at {', '.join(ahead[raw])}.")
        elif any(registry.keeps_examples(p.row) == raw for p in points if p.row not in (*OURS, "sgd")):
            lines.append(f"* No baseline {words} is ahead of the best of ours at any of these budgets.")
    return lines


def not_run(found: Evidence, benchmark: str) -> list[str]:
    """A sentence about the sizes that equal bytes asks for and nobody has run: what is said above is without them."""
    sizes: dict[str, list[bool]] = {}
    for run in presets.equal_bytes([benchmark], seeds=1).runs:
        sizes.setdefault(row_of(run), []).append(found.cell(run) is not None)
    missing = [f"{title(row)} {known.count(False)}" for row, known in sizes.items() if not all(known)]
    return [f"* Not in what is said above, as these sizes have not been run: {', '.join(missing)}."] if missing else []


def points_table(points: Sequence[Point]) -> list[str]:
    """Every point with the bytes it keeps, on the device and on the host, and what they are for."""
    rows = []
    for point in points:
        cell = point.cell
        kinds = ", ".join(f"{kind} {size(nbytes)}" for kind, nbytes in cell.kinds.items() if nbytes)
        seeds = spread(point.seeds, usual=0) if point.seeds.n > 1 else ""
        rows.append([title(point.row), _setting(cell), size(cell.device), size(cell.host), kinds, _shown(point), seeds])
    return table(["", "setting", "device", "host", "of which", "accuracy", "over all its seeds"], rows)


def _largest(points: Sequence[Point], row: str, budget: int, benchmark: str) -> Point | None:
    limit = budget * (SLACK if budget == PAPER_BYTES[benchmark] else 1)
    fitting = [point for point in points if point.row == row and point.nbytes <= limit]
    return max(fitting, key=lambda point: point.nbytes, default=None)


def _shown(point: Point) -> str:
    return f"{point.cell.accuracy.mean:.3f}"


def _setting(cell: Cell) -> str:
    """The settings of a run in words, as far as they give it its size or softness."""
    config: dict[str, Any] = cell.runs[0].config
    options = config.get("options") or {}
    shown = {
        key: options[key] for key in ("rank", "corank", "ridge", "energy", "strength", "capacity") if key in options
    }
    shown |= {key: options[key] for key in ("components", "per_task", "anchor_dtype") if key in options}
    shown = {key: value for key, value in shown.items() if value is not None and (key, value) != ("energy", 1.0)}
    if config.get("every") == 1 and config["method"] in ("layer-sketch", "gpm"):
        shown["every"] = 1
    if config["method"] == "ogd":
        shown["gradients per task"] = config["examples"]
    words = [f"budget {size(config['budget'])}"] if "budget" in config else []
    return ", ".join(words + [f"{key.replace('_', ' ')} {value}" for key, value in shown.items()])


# ---------------------------------------------------------------- tuning and ablations


def tuning_tables(found: Evidence) -> list[str]:
    """For each method with something to tune: accuracy on held-out training data over the values tried."""
    lines: list[str] = []
    for method, options in tuning.TUNED_OPTIONS.items():
        choices, used = {}, {}
        for benchmark in published.BENCHMARKS:
            choices[benchmark] = {_told(each): each for each in tuning.tried(method, benchmark)}
            own = TUNED_SKETCH.get(benchmark, {}) if method == "sketchogd" else {}
            used[benchmark] = _told(presets.default_method(method, benchmark, **own))
        lines += _held_out(found, f"{title(method)}, {' / '.join(options)}", choices, used)
    for small, room in ((False, "the paper's budget"), (True, size(equal_bytes.SMALL_BUDGET))):
        choices = {benchmark: tuning.blocked(benchmark, small) for benchmark in published.BENCHMARKS}
        number = str(equal_bytes.SMALL_BLOCKS if small else KINDS["sketchogd-blocks"].options["blocks"])
        used = {benchmark: number if benchmark in equal_bytes.BLOCKED else "1" for benchmark in choices}
        lines += _held_out(found, f"{title('sketchogd-blocks')} in {room}, blocks", choices, used)
    choices = {benchmark: tuning.anchored(benchmark) for benchmark in published.BENCHMARKS}
    used = dict.fromkeys(choices, "one byte per weight")
    return lines + _held_out(found, f"{title('layer-sketch')} in a quarter of its bytes, anchor", choices, used)


def _held_out(
    found: Evidence, head: str, choices: Mapping[str, Mapping[str, Method]], used: Mapping[str, str]
) -> list[str]:
    """The held-out score of every choice, by benchmark and name, the best one bold; empty if none was run."""
    rows = []
    for benchmark, methods in choices.items():
        asked = {name: tuning.held_out(benchmark, method) for name, method in methods.items()}
        scores = {name: cell.accuracy.mean for name, run in asked.items() if (cell := found.cell(run))}
        if scores:
            best = max(scores, key=scores.__getitem__)
            told = [f"{n}: {f'**{score:.3f}**' if n == best else f'{score:.3f}'}" for n, score in scores.items()]
            told += [f"{name}: diverged" for name, run in asked.items() if found.diverged(run)]
            rows.append([title_of(benchmark), ", ".join(told), used[benchmark]])
    return [*table([head, "held-out accuracy by value", "used"], rows), ""] if rows else []


def _told(settings: Method) -> str:
    """The values of a method's tuned options, as text."""
    known = {"every": settings.every, **KINDS[settings.name].later, **settings.options}
    chosen = [known[name] for name in tuning.TUNED_OPTIONS[settings.name]]
    return " / ".join("usual" if value is None else f"{value:g}" for value in chosen)


def ablation_table(found: Evidence, name: str) -> list[str]:
    """Accuracy, and accuracy on each task right after it was learned, for every variant on both benchmarks."""
    benchmarks = ablations.BENCHMARKS
    rows: dict[str, list[str]] = {}
    known = False
    for i, benchmark in enumerate(benchmarks):
        for variant in ablations.ABLATIONS[name].variants(benchmark):
            cell = found.cell(ablations.ablation_run(variant, benchmark, 0))
            known = known or cell is not None
            row = rows.setdefault(variant.words, [variant.words] + [DASH] * (2 * len(benchmarks)))
            if cell is not None:
                row[1 + 2 * i : 3 + 2 * i] = [spread(cell.accuracy, usual=1), f"{cell.learning.mean:.3f}"]
    if not known:
        return []
    head = [word for b in benchmarks for word in (title_of(b), "when learned")]
    return table(["", *head], list(rows.values()))
