"""Training: one task after another, in plain tensors on one device, with any optimizer and any method.

`fit` trains a model on a stream; `run` does the same for a `RunConfig`, which names everything, in a run folder:
run.json gets `timings`, `ledger`, `steps` and `results`; accuracy.npz the matrix; events.jsonl an "evaluation" after
each epoch with the accuracies of the tasks seen so far; spectra.npz what is measured of the learner at the end.
The loop itself is in `loop`.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab import records
from sketchogd.lab.methods import Method, Setup, build
from sketchogd.lab.methods.baselines.examples import bytes_of_example
from sketchogd.lab.runs import recording
from sketchogd.lab.runs.config import RunConfig, Training, make_optimizer, stream_of
from sketchogd.lab.runs.evaluate import Heads
from sketchogd.lab.runs.loop import Progress, Result, TaskLoop, shuffled
from sketchogd.lab.runs.torchrun import Alone, Processes
from sketchogd.lab.streams import record
from sketchogd.lab.streams.augment import AUGMENTATIONS
from sketchogd.lab.streams.tasks import Stream
from sketchogd.model.parameters import Selection

__all__ = ["Progress", "Result", "facts_of", "fit", "follow", "run", "shuffled"]


def fit(
    stream: Stream,
    model: nn.Module,
    method: Method,
    training: Training | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    protected: Selection = None,
    folder: records.RunFolder | None = None,
    progress: Progress | None = None,
    processes: Processes | None = None,
) -> Result:
    """Train `model` on the tasks of `stream`, one after another, with a method that keeps it from forgetting.

    Args:
        stream: the tasks.
        model: any module; one with several heads has a method `use_head(head)`.
        method: from `methods.method`.
        training: how each task is trained; by default as in the paper.
        seed: every random choice follows from it.
        device: where to train.
        protected: which parameters memories protect; by default all that are trained.
        folder: of a run that was started: evaluations and checkpoints are written there, and a checkpoint is resumed.
        progress: called every now and then.
        processes: those that call this together, the first of them with the folder.

    Raises:
        FloatingPointError: the loss is no longer finite.
        ValueError: the method cannot be built, or keeps more than its budget.
    """
    training, processes = training or Training(), processes or Alone()
    heads = Heads(model.to(device), stream.recipes[0].head)
    optimizer = make_optimizer(model, training)
    example = stream.train(0)
    shared: dict[str, Any] = {"group": processes.group, "own": processes.own, **facts_of(stream, heads, example[0])}
    example_nbytes = bytes_of_example(*example)
    augment = AUGMENTATIONS[training.augment]
    shared["rows"] = training.test_batch

    def loss(inputs: Tensor, targets: Tensor, head: int) -> Tensor:
        return heads.loss(augment(inputs), targets, head)

    setup = Setup(model, optimizer, loss, len(stream), example_nbytes, protected, seed, **shared)
    learner = build(method, setup)
    loop = TaskLoop(stream, heads, optimizer, learner, method, training, seed, device, folder, progress, processes)
    loop.train()
    return loop.result()


def run(
    config: RunConfig,
    folder: str | Path,
    *,
    data_folder: str | Path | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    processes: Processes | None = None,
) -> Result:
    """Do the run that a config names, in its folder: from the beginning, or on from its last checkpoint.

    Args:
        config: names the run completely.
        folder: where the run is recorded.
        data_folder: where data sets are that are not part of the package.
        device: where to train.
        progress: called every now and then.
        processes: those that do the run together; the first of them calls this, the others `follow`.

    Raises:
        ValueError: a name or a setting is wrong.
        RecordError: the folder holds a run of another config, or another process works on it.
    """
    stream, known = stream_of(config, data_folder), record(config.benchmark)
    model, protected = known.model(stream, config.seed, data_folder), known.held(stream)
    place = records.RunFolder(folder)
    with place.hold():
        recording.begin(place, config, device, resume=True)
        options: dict[str, Any] = {"seed": config.seed, "device": device, "protected": protected}
        options |= {"folder": place, "progress": progress, "processes": processes}
        try:
            found = fit(stream, model, config.method, config.training, **options)
        except Exception as error:
            place.fail(error)
            raise
        facts: dict[str, Any] = {"summary": found.summary, "ledger": found.ledger}
        facts |= {"timings": found.timings, "steps": found.steps}
        recording.conclude(place, found.learner, model, protected, **facts)
    return found


def follow(
    config: RunConfig,
    processes: Processes,
    *,
    data_folder: str | Path | None = None,
    device: str | torch.device = "cpu",
) -> Result:
    """Take part in a run that the first of several processes does and records."""
    stream, known = stream_of(config, data_folder), record(config.benchmark)
    model = known.model(stream, config.seed, data_folder)
    options: dict[str, Any] = {"seed": config.seed, "device": device, "protected": known.held(stream)}
    return fit(stream, model, config.method, config.training, processes=processes, **options)


def facts_of(stream: Stream, heads: Heads, inputs: Tensor) -> dict[str, Any]:
    """What a `Setup` says of the stream and of the model's heads; `inputs` (n, …) are some of the stream's."""
    facts: dict[str, Any] = {"logits": heads.logits, "encoding": stream.encoding, "classes": stream.classes}
    return facts | {"encoded_nbytes": stream.encoding.nbytes(inputs)}
