"""The commands. Each names an experiment of the lab, overrides a few of its fields, and prints what came out."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sketchogd import __version__
from sketchogd.budget import parse_bytes
from sketchogd.cli import merging, show, together
from sketchogd.cli.results import columns, rows_of
from sketchogd.lab.data import datasets
from sketchogd.lab.methods import KINDS, unknown
from sketchogd.lab.runs import config, grid
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.streams import BENCHMARKS
from sketchogd.paper import presets
from sketchogd.paper.ablations import ABLATIONS

app = typer.Typer(
    name="sketchogd",
    help="Continual learning within a fixed number of bytes: run, compare and reproduce.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

METHODS = "Methods: " + ", ".join(KINDS)
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, counted from 0.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes at a time, with one thread each.")]
SideBySide = Annotated[
    int | None, typer.Option(min=1, help="Runs that share one vectorised loop. Default: 64 on a GPU, otherwise 1.")
]
Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1; several with commas, used in turn.")]
Data = Annotated[Path | None, typer.Option(help="Folder with data sets; by default $SKETCHOGD_DATA.")]
Out = Annotated[Path, typer.Option(help="Folder for the runs; finished ones in it are not repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Every = Annotated[int | None, typer.Option(min=1, help="Optimizer steps between two projections.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs a task, in place of the usual number.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which one.")
    ] = False,
) -> None:
    pass


def _carry_out(
    runs: tuple[RunConfig, ...],
    title: str,
    out: Path,
    jobs: int,
    device: str,
    data: Path | None,
    as_json: bool,
    side_by_side: int | None = None,
) -> list[grid.Outcome]:
    """Do the runs under a bar and print their table; under torchrun all processes do each run together."""
    if any(run.benchmark == "split-cifar100" for run in runs) and (why := datasets.missing("cifar100", data)):
        show.err.print(f"note: {why} Or: sketchogd data --download cifar100 --folder FOLDER, then --data FOLDER")
        show.err.print("note: without it runs of split-cifar100 fail; all others are done")
    if together.launched():
        outcomes = together.carry_out(runs, out, device, data, quiet=as_json)
    else:
        with show.grid_bar(runs, quiet=as_json) as listener:
            shared: dict[str, Any] = {"jobs": jobs, "together": side_by_side, "devices": device.split(",")}
            shared |= {"plugins": ("sketchogd.paper",)}
            outcomes = grid.run_grid(runs, out, **shared, data_folder=data, listener=listener)
    rows = rows_of(runs, out)
    if as_json:
        show.as_json(rows)
    else:
        names = {config.benchmark for config in runs}
        show.table(f"{title}, {names.pop()}" if len(names) == 1 else title, rows, columns(rows))
    return outcomes


def _page(folder: Path) -> Path:
    from sketchogd.lab.pages import report

    return Path(report.write_html(folder, folder / "report.html"))


@app.command()
@show.friendly
def demo(
    out: Out = Path("sketchogd-demo"), seeds: Seeds = 1, jobs: Jobs = 2, device: Device = "cpu", json_: Json = False
) -> None:
    """Two minutes, no files needed: five methods on Rotated MNIST, a table, and a report page."""
    preset = presets.demo(seeds)
    outcomes = _carry_out(preset.runs, "after the last of five tasks", out, jobs, device, None, json_)
    show.finish(outcomes)
    show.err.print(f"report: {_page(out).resolve()}", soft_wrap=True)


@app.command(epilog=METHODS)
@show.friendly
def run(
    benchmark: Annotated[str, typer.Argument(help=", ".join(BENCHMARKS))],
    method: Annotated[str, typer.Argument(help="A method's name; they are listed below.")],
    seeds: Seeds = 1,
    budget: Annotated[str | None, typer.Option(help='Bytes the method may keep, such as "2MB".')] = None,
    every: Every = None,
    examples: Annotated[int | None, typer.Option(min=1, help="Examples of a task that are remembered.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="A method's option: rank=600.")] = None,
    epochs: Epochs = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Examples a step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help=", ".join(config.OPTIMIZERS))] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    n_train: Annotated[int | None, typer.Option(min=1, help="Training examples of one task.")] = None,
    n_test: Annotated[int | None, typer.Option(min=1, help="Test examples of one task.")] = None,
    validation: Annotated[float, typer.Option(help="Score on this share of the training data, held out.")] = 0.0,
    out: Out = Path("runs"),
    data: Data = None,
    jobs: Jobs = 1,
    side_by_side: SideBySide = None,
    device: Device = "cpu",
    json_: Json = False,
) -> None:
    """Train one method on one benchmark, for one or more seeds."""
    if benchmark not in BENCHMARKS:
        raise ValueError(unknown("benchmark", benchmark, BENCHMARKS))
    settings: dict[str, Any] = {"budget": None if budget is None else parse_bytes(budget)}
    chosen = presets.default_method(
        method, benchmark, every=every, examples=examples, **settings, **_options(option or [])
    )
    asked = {"epochs": epochs, "lr": lr, "batch": batch, "optimizer": optimizer}
    training = Training(**{key: value for key, value in asked.items() if value is not None})  # type: ignore[arg-type]
    runs = tuple(
        RunConfig(benchmark, chosen, training, seed, tasks=tasks, n_train=n_train, n_test=n_test, validation=validation)
        for seed in range(seeds)
    )
    show.finish(_carry_out(runs, "after the last task", out, jobs, device, data, json_, side_by_side))


def _options(words: list[str]) -> dict[str, Any]:
    """{"rank": 600} from ["rank=600"]: numbers and true/false as JSON has them, anything else a word."""
    found = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise ValueError(f"an option is written name=value, such as rank=600; got {word!r}")
        try:
            found[key.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            found[key.replace("-", "_")] = value
    return found


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


@app.command(epilog=METHODS)
@show.friendly
def reproduce(
    what: Annotated[str, typer.Argument(help=", ".join(presets.PRESETS))],
    benchmarks: Annotated[str | None, typer.Option(help="Only these, with commas. Default: all four.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these, with commas. Default: those of the paper.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds. Default: the experiment's own.")] = None,
    budget: Annotated[str | None, typer.Option(help="For equal-bytes: one budget for every method.")] = None,
    groups: Annotated[str | None, typer.Option(help="For ablations: " + ", ".join(ABLATIONS))] = None,
    every: Every = None,
    epochs: Epochs = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs. Default: runs/WHAT.")] = None,
    data: Data = None,
    jobs: Jobs = 1,
    side_by_side: SideBySide = None,
    device: Device = "cpu",
    json_: Json = False,
) -> None:
    """Repeat an experiment of the paper, or compare all methods at equal bytes; the report page is written too."""
    if what not in presets.PRESETS:
        raise ValueError(unknown("experiment", what, presets.PRESETS))
    asked: dict[str, Any] = {"benchmarks": _list(benchmarks), "methods": _list(methods), "seeds": seeds}
    if budget is not None:
        if what != "equal-bytes":
            raise ValueError("--budget is for equal-bytes; the memory sizes of the paper's experiments are fixed")
        asked["budget"] = budget
    if groups is not None:
        if what != "ablations":
            raise ValueError("--groups is for ablations; the other experiments have none")
        asked["groups"] = _list(groups)
    preset = presets.PRESETS[what](**{key: value for key, value in asked.items() if value is not None})
    preset = presets.changed(preset, every=every, epochs=epochs)
    folder = out or Path("runs") / what
    outcomes = _carry_out(
        preset.runs,
        f"{what}: {preset.summary}",
        folder,
        jobs,
        device,
        data,
        json_,
        side_by_side,
    )
    if any(outcome.status in ("finished", "skipped") for outcome in outcomes):
        show.err.print(f"report: {_page(folder).resolve()}", soft_wrap=True)
    show.finish(outcomes)


@app.command()
@show.friendly
def report(
    runs: Annotated[Path, typer.Argument(help="A folder with run folders or bundles at or below it.")],
    html: Annotated[Path | None, typer.Option(help="Write the report page here. Default: RUNS/report.html.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures as PNG and PDF into this folder.")
    ] = None,
    json_: Json = False,
) -> None:
    """The table of finished runs beside the published one, and a page with all figures that opens offline."""
    from sketchogd.lab.pages import report as reports

    rows = reports.summary_table(runs)
    if json_:
        show.as_json(rows)
    else:
        shown = {"benchmark": str, "method": str, "variant": str, "n": str}
        numbers = ("accuracy", "accuracy_std", "forgetting", "learning")
        written = {key: lambda value: "" if value is None else f"{value:.3f}" for key in numbers}
        last = {"published": written["accuracy"], "difference": lambda v: "" if v is None else f"{v:+.3f}"}
        kept = {key: show.human_bytes for key in ("nbytes", "host_nbytes") if any(row[key] for row in rows)}
        show.table(str(runs), rows, {**shown, **written, **kept, **last})
    page = reports.write_html(runs, html or (runs if runs.is_dir() else runs.parent) / "report.html")
    show.err.print(f"report: {Path(page).resolve()}", soft_wrap=True)
    if figures is not None:
        from sketchogd.lab.pages.figures import save_all

        save_all(runs, figures)
        show.err.print(f"figures: {figures.resolve()}", soft_wrap=True)


@app.command()
@show.friendly
def inspect(
    path: Annotated[Path, typer.Argument(help="A file that Protection.save wrote.")], json_: Json = False
) -> None:
    """What is in a memory file: what it remembers, how well, where the bytes are, and which sketch would be best."""
    from dataclasses import asdict

    from sketchogd.cli import inspecting
    from sketchogd.storage import read
    from sketchogd.storage.restore import describe

    found = describe(path)
    meta, tensors = read(path)
    leading = {
        name: [float(value) for value in tensor[:5]]
        for name, tensor in tensors.items()
        if name.rpartition(".")[2] == "values"
    }
    sketches = inspecting.sketches_of(meta, tensors)
    diagnoses = inspecting.diagnoses(sketches)
    advice = inspecting.advice(sketches["sketch"]) if "sketch" in meta else None
    if json_:
        plain = None if advice is None else {k: v for k, v in asdict(advice).items() if k != "test_matrix"}
        show.as_json({**found, "leading_values": leading, "diagnostics": diagnoses, "advice": plain})
        return
    protected = sum(_product(entry["shape"]) for entry in found["parameters"])
    show.out.print(f"memory of {found['memory']}: {found['examples']:,} examples, {protected:,} protected parameters")
    show.out.print(f"settings: {json.dumps(found.get('settings', {}))}")
    rows = [
        {
            "name": name,
            "shape": " × ".join(map(str, entry["shape"])),
            "bytes": entry["nbytes"],
            "leading values": "  ".join(f"{value:.3g}" for value in leading.get(name, [])),
        }
        for name, entry in found["tensors"].items()
    ]
    rows.append({"name": "total", "shape": "", "bytes": found["nbytes"], "leading values": ""})
    show.table(str(path), rows, {"name": str, "shape": str, "bytes": show.human_bytes, "leading values": str})
    for name, diagnosis in diagnoses.items():
        show.out.print(f"{name}: {inspecting.in_words(diagnosis)}", highlight=False)
    if advice is not None:
        show.out.print(f"at the same bytes: {advice.reason}", highlight=False)


def _product(shape: list[int]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size


@app.command()
@show.friendly
def bench(
    device: Annotated[str, typer.Option(help="Where to measure: cpu or cuda.")] = "cpu",
    only: Annotated[str | None, typer.Option(help="One group: remember, basis, project, run, scale, …")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to see that everything runs.")] = False,
    json_: Annotated[Path | None, typer.Option("--json", help="Write machine, versions and ratios here.")] = None,
) -> None:
    """How fast the library is, as ratios to limits measured in the same run."""
    from sketchogd.cli import benching

    benching.bench(device, only, quick, json_)


@app.command()
@show.friendly
def data(
    folder: Annotated[Path | None, typer.Option(help="Where to look; by default $SKETCHOGD_DATA.")] = None,
    download: Annotated[str | None, typer.Option(help="Fetch this data set into the folder first.")] = None,
    json_: Json = False,
) -> None:
    """Which data sets are here, checked against their checksums."""
    if download is not None:
        if download not in datasets.NAMES:
            raise ValueError(unknown("data set", download, datasets.NAMES))
        if folder is None:
            raise ValueError("say where to put it: --folder FOLDER")
        with show.err.status(f"downloading {download}"):
            datasets.download(download, folder)
    with show.err.status("checking"):
        found = datasets.available(folder)
    rows = [{"name": a.name, "ready": a.ready, "verified": a.verified, "where": a.where, "note": a.note} for a in found]
    if json_:
        show.as_json(rows)
    else:
        yes = {True: "yes", False: "no"}
        show.table("data sets", rows, {"name": str, "ready": yes.__getitem__, "verified": yes.__getitem__, "note": str})


app.command()(merging.merge)
