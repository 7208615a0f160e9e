"""Whether runs can be carried out as they are configured, found out before anything is trained or recorded."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sketchogd.lab import records
from sketchogd.lab.data import datasets
from sketchogd.lab.methods import Setup, build
from sketchogd.lab.methods.baselines.examples import bytes_of_example
from sketchogd.lab.runs.config import RunConfig, make_optimizer, stream_of
from sketchogd.lab.runs.evaluate import Heads
from sketchogd.lab.runs.sidebyside.partition import expected_bytes
from sketchogd.lab.streams import record

LARGEST = 1 << 30
"""Methods that are expected to keep more bytes than this are not built to see whether they can be."""


def unfinished(configs: Iterable[RunConfig], root: str | Path) -> list[RunConfig]:
    """The runs that are not finished in a folder."""
    by_name = {config.name: config for config in configs}
    done = records.plan(Path(root), {name: config.record() for name, config in by_name.items()})
    return [config for name, config in by_name.items() if name not in done[records.State.FINISHED]]


def without_data(configs: Iterable[RunConfig], data_folder: str | Path | None = None) -> dict[str, str]:
    """The benchmarks whose data set or weights are not here, each with the name of what is missing."""
    lacking = {}
    for name in {config.benchmark: None for config in configs}:
        own = record(name)
        missing = [each for each in (own.dataset, own.weights) if each and datasets.missing(each, data_folder)]
        if missing:
            lacking[name] = missing[0]
    return lacking


def require_possible(configs: Iterable[RunConfig], data_folder: str | Path | None = None) -> None:
    """Build the stream, the network, the optimizer and the method of each config, one seed of each.

    Raises:
        ValueError: one of them cannot be built: an unknown name, a setting without meaning, too small a budget.
    """
    each = {records.config_digest(replace(config, seed=0, preset="").record()): config for config in configs}
    for config in each.values():
        _require_one(config, data_folder)


def _require_one(config: RunConfig, data_folder: str | Path | None) -> None:
    known = record(config.benchmark)
    stream = stream_of(config, data_folder)
    model = known.network(stream, config.seed)
    optimizer = make_optimizer(model, config.training)
    inputs, targets = stream.train(0)
    stream.test(0)
    size = bytes_of_example(inputs, targets)
    loss = Heads(model, stream.recipes[0].head).loss
    try:
        if expected_bytes(config) > LARGEST:
            return
        build(config.method, Setup(model, optimizer, loss, len(stream), size, known.protected, config.seed))
    except (TypeError, RuntimeError) as error:  # a word in place of a number, a size below 0
        raise ValueError(f"{config.method.label}: {error}") from error
