"""Every run behind docs/results.md, in pieces that fit in ten minutes on one GPU each; finished runs are not repeated.

    python -m tools.reproduce_all --list
    python -m tools.reproduce_all --device cuda --time-limit 540        # again and again, until it says all done
    python -m tools.reproduce_all --device cuda --pieces 'table1/split-*' 'goals/*'
    python -m tools.reproduce_all --device cuda --time-limit 540 --pieces 'networks-tuning/*'   # then tools.choose
    python -m tools.results --write

A piece is PRESET/BENCHMARK/NUMBER: at most `--chunk` runs, the seeds of a setting together. After each piece its
finished runs are packed into results/PRESET/BENCHMARK.json, and a run whose config is in any bundle of results/ is not
done again, so neither the run folders nor the machine need to last. The command may run several times at once, for
several GPUs or for one that is shared under NVIDIA's MPS: each process takes the next piece that no other works on. The
MNIST benchmarks share a GPU well; sketches of Split CIFAR-100 fill it, and runs beside them wait, so run those pieces
at another time (--pieces '*/split-cifar100/*'). Without the package installed: PYTHONPATH=src. Exit codes: 0 all done,
1 a run failed, 3 pieces are left.
"""

import argparse
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from sketchogd.lab import records
from sketchogd.lab.records import bundles
from sketchogd.lab.runs import grid
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.grid import TimeUp
from sketchogd.paper import presets
from sketchogd.paper.networks import EXPERIMENTS as NETWORKS
from sketchogd.paper.settings import PAPER
from tools.pack import pack

ORDER = ("table1", "spectra", "table2", "ridges", "goals", "equal-bytes", "ablations", "causes", *NETWORKS)
"""All experiments but `curves`, whose runs are the first seeds of table1. Bundles keep most of the first two."""

PIECES_LEFT = 3


@dataclass(frozen=True)
class Piece:
    """Some runs of one preset on one benchmark."""

    name: str
    preset: str
    runs: tuple[RunConfig, ...]


def all_pieces(chunk: int, seeds: int | None = None) -> list[Piece]:
    """Every run of every experiment; a run of several experiments belongs to the first of them."""
    pieces = []
    seen: set[str] = set()
    for preset in ORDER:
        asked = presets.PRESETS[preset](**({} if seeds is None else {"seeds": seeds})).runs
        runs = {digest: run for run in asked if (digest := records.config_digest(run.record())) not in seen}
        seen |= runs.keys()
        for benchmark in dict.fromkeys(run.benchmark for run in runs.values()):
            settings: dict[str, list[RunConfig]] = {}
            for run in runs.values():
                if run.benchmark == benchmark:
                    settings.setdefault(run.setting, []).append(run)
            # A run of networks is a piece of its own, which goes on from its checkpoint.
            most = 1 if preset in NETWORKS else max(1, chunk // PAPER[benchmark].slowness)
            for number, part in enumerate(_chunks(list(settings.values()), most), start=1):
                pieces.append(Piece(f"{preset}/{benchmark}/{number}", preset, tuple(part)))
    return pieces


def _chunks(settings: Sequence[Sequence[RunConfig]], chunk: int) -> list[list[RunConfig]]:
    """The runs in lists of at most `chunk`; the seeds of a setting share a list unless they are more than that."""
    found: list[list[RunConfig]] = [[]]
    for seeds in settings:
        if found[-1] and len(found[-1]) + len(seeds) > chunk:
            found.append([])
        found[-1].extend(seeds)
    return [part[i : i + chunk] for part in found for i in range(0, len(part), chunk)]


def left(piece: Piece, done: set[str]) -> list[RunConfig]:
    """The runs of a piece whose configs are not among the digests `done`."""
    return [run for run in piece.runs if records.config_digest(run.record()) not in done]


def work(options: argparse.Namespace) -> int:
    """Do the pieces that are left until the time is up; returns the exit code."""
    start, longest = time.monotonic(), 0.0
    chosen = [p for p in all_pieces(options.chunk, options.seeds) if _wanted(p.name, options.pieces)]
    if not chosen:
        raise SystemExit(f"no piece is called {' or '.join(options.pieces)}; --list names them all")
    done = bundles.digests(options.results)
    waiting = [(piece, runs) for piece in chosen if (runs := left(piece, done))]
    print(f"{len(chosen)} pieces, {len(chosen) - len(waiting)} of them done", flush=True)
    failed = 0

    def watch(update: grid.Update) -> None:
        if time.monotonic() - start > options.time_limit:
            raise TimeUp

    elsewhere = 0
    for i, (piece, _) in enumerate(waiting):
        elapsed = time.monotonic() - start
        if elapsed + longest > options.time_limit:
            print(f"the time is up; {len(waiting) - i} pieces are left: give the same command again")
            return PIECES_LEFT
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(records.RunFolder(options.out / ".pieces" / piece.name).hold())
            except records.RecordError:
                elsewhere += 1
                continue
            runs = left(piece, bundles.digests(options.results))  # another process may have done it meanwhile
            try:
                outcomes = grid.run_grid(
                    runs,
                    options.out / piece.preset,
                    jobs=options.jobs,
                    devices=options.device.split(","),
                    data_folder=options.data,
                    listener=watch,
                    plugins=("sketchogd.paper",),
                )
            except TimeUp:
                _pack(runs, options)
                print(
                    f"the time is up in {piece.name}; {len(waiting) - i} pieces are left: give the same command again"
                )
                if not longest and len(left(piece, bundles.digests(options.results))) == len(runs):
                    print(f"but none of its {len(runs)} runs was finished: give more time, or half as large a --chunk")
                return PIECES_LEFT
            _pack(runs, options)
        bad = [outcome for outcome in outcomes if outcome.status in ("failed", "busy")]
        failed += len(bad)
        seconds = time.monotonic() - start - elapsed
        longest = max(longest, seconds)
        print(f"{piece.name}: {len(runs)} runs in {seconds:.0f} s", flush=True)
        for outcome in bad:
            print(f"  {outcome.run}: {outcome.status}: {outcome.message}", flush=True)
    if elsewhere:
        print(f"pieces left to the processes that work on them: {elsewhere}")
    print(f"{failed} runs failed" if failed else "nothing more to do here" if elsewhere else "all done")
    return 1 if failed else PIECES_LEFT if elsewhere else 0


def _wanted(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _pack(runs: Sequence[RunConfig], options: argparse.Namespace) -> None:
    """Pack what is finished, one process after another."""
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(records.RunFolder(options.out / ".packing").hold())
                break
            except records.RecordError:
                time.sleep(0.5)
        for folder in {options.out / run.preset / run.benchmark for run in runs}:
            if folder.exists():
                pack(folder, options.results)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the pieces, with the runs left in each, and stop")
    parser.add_argument("--pieces", nargs="*", default=[], metavar="GLOB", help="only these, such as 'table1/*'")
    parser.add_argument(
        "--time-limit", type=float, default=float("inf"), metavar="S", help="stop after so many seconds"
    )
    parser.add_argument("--chunk", type=int, default=40, help="the most runs of one piece (40)")
    parser.add_argument("--seeds", type=int, help="seeds of every experiment, in place of its own number")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1; several with commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--data", type=Path, help="folder with data and weights; by default $SKETCHOGD_DATA")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where run folders go (runs)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where bundles go (results)")
    options = parser.parse_args(arguments)
    if options.device.startswith("cpu"):
        torch.set_num_threads(
            1
        )  # small networks train fastest so; beside a GPU the host's threads have sketches to hold
    if options.list:
        done = bundles.digests(options.results)
        for piece in all_pieces(options.chunk, options.seeds):
            if _wanted(piece.name, options.pieces):
                print(f"{piece.name}: {len(left(piece, done))} of {len(piece.runs)} runs left")
        return 0
    return work(options)


if __name__ == "__main__":
    raise SystemExit(main())
