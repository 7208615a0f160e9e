"""`Protection`, the object that users hold: a memory of what was learned, attached to an optimizer.

The whole path of the data is here: batch → `memory.observe` (model → sketches) → `memory.projector()` →
`UpdateProjection` (optimizer hooks) → weights. With several processes all of them call each method together, and the
step from batches to the memory goes through a `Team`.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset

from .adopt import carried, carried_anchor, require_grown
from .coverage import Coverage
from .distributed.team import Batch, Team
from .errors import ProtectionError, ProtectionWarning, StorageError
from .interrupts import uninterrupted
from .ledger import Held, Ledger
from .memory import Memory
from .memory.ranks import PROBED
from .model.batches import Output, batch_size, limited, map_tensors, require_batches
from .model.buffers import HoldStatistics, Statistics
from .model.calls import Takes
from .model.parameters import ProtectedParameters, local
from .model.wrapped import unwrapped_model
from .optimizer.hooks import UpdateProjection
from .optimizer.joint import correction_form
from .optimizer.kinds import require_optimizer
from .optimizer.meter import Meter
from .optimizer.reference import FULL, ROUNDED, Copy
from .optimizer.wrapped import unwrapped
from .privacy.account import Account
from .privacy.advice import hidden as said_hidden
from .privacy.guarantee import Guarantee
from .privacy.settings import Privacy
from .projector.base import Anchor, Projector
from .storage import file, fingerprint, restore

_NO_EXAMPLES = (
    "no examples came, so nothing was remembered: is the loader or generator empty, or used up by training? Give a "
    "list or a DataLoader, which can be read again"
)


class Protection:
    """A memory of what was learned, attached to an optimizer. Made by `protect`.

    Args:
        parameters: what is protected.
        optimizer: whose steps are projected.
        memory: an unbound memory.
        team: the processes that share the memory.
        output: the scalar of an example that is remembered, None for the memory's own default.
        every: optimizer steps between two projections.
        reason: why a budget picked this memory.
        buffers: how running statistics are held; None lets them move.
        privacy: the guarantee that what is remembered is to have; None for none.
    """

    def __init__(
        self,
        parameters: ProtectedParameters,
        optimizer: Optimizer,
        memory: Memory,
        team: Team,
        output: Output | None,
        every: int,
        reason: str | None = None,
        buffers: HoldStatistics | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.parameters = parameters
        self.memory = memory
        self._team = team
        self._account = None if privacy is None else Account(privacy)
        self._guarantee: Guarantee | None = None
        self._reason = reason
        self._output = output
        self._projector: Projector | None = None
        self._stale = False
        self._weight, self._examples = 1.0, 0
        self._saved_beside: Any = None
        self._projection = UpdateProjection(parameters, self._current_projector, every)
        self._statistics = Statistics(parameters, buffers)
        self._projection.attach(optimizer)
        try:
            team.require_fit(memory)
            memory.bind(parameters, output)
            if self._account is not None:
                self._account.require_possible(memory, parameters.model)
            team.share(memory)
            self._statistics.attach(optimizer)
        except BaseException:
            self._projection.detach()
            raise

    # ---------------------------------------------------------------- remembering

    def remember(self, batches: Iterable[Any], examples: int | None = None) -> None:
        """Remember a task: observe its batches, end the task, refresh the projector.

        `batches` is a loader, a list or a dataset that yields (inputs, targets), or mappings with "labels" (the rest
        are keyword inputs, as the collators of transformers make them), or inputs alone where no targets are needed.
        Of (inputs, targets, task) the numbers of tasks are left out if the model takes one input. Padding is not
        remembered, and labels of language models are read as the model's own loss reads them (docs/outputs.md).
        `examples` limits how many are taken, in the order they come. Where a batch is refused, those before it are
        kept, and the task is not ended. With several processes, all call it, each with examples of its own, or with
        none; what a DistributedSampler repeats is left out. From the first call on running statistics are held
        (`HoldStatistics`).
        """
        require_batches(batches, examples)
        if isinstance(batches, Dataset) and not isinstance(batches, IterableDataset):
            batches = DataLoader(batches, batch_size=256)
        if self._account is not None:
            self._remember_privately(self._account, batches, examples)
            return
        self._end_guarantee()
        before, rows, energy = self.memory.examples, *self._sketched()
        most = Takes.of(self.parameters.model).most
        self._observe(limited(batches, self._team.limit(batches, examples), most), self._divided)
        if self.memory.examples == before:
            warnings.warn(_NO_EXAMPLES, ProtectionWarning, stacklevel=2)
            return
        with uninterrupted():
            self.memory.end_task()
            self._statistics.end_task()
            self._end_task()
        if self._sketched()[0] > rows and self._sketched()[1] == energy:
            warnings.warn(
                f"{self.memory.examples - before:,} examples came and left no trace, so that they are NOT PROTECTED: "
                "every gradient is zero. Negative targets are left out, constant outputs have no gradients",
                ProtectionWarning,
                stacklevel=2,
            )

    def _remember_privately(self, account: Account, batches: Iterable[Any], examples: int | None) -> None:
        """Sum bounded contributions of all batches, add noise once, and remember what follows from that.

        Where a batch is refused nothing is remembered, and nothing of the budget is spent.
        """
        release, most = account.begin(self.memory), Takes.of(self.parameters.model).most
        self._require_observable()
        for batch, weights in account.weighed(batches):
            left = None if examples is None else examples - release.observed
            for inputs, targets in limited([batch], left, most):
                inputs, targets = self._placed(inputs, targets)
                with uninterrupted():
                    release.observe(inputs, targets, weights, batch_size(inputs))
        if not release.observed:
            warnings.warn(_NO_EXAMPLES, ProtectionWarning, stacklevel=3)
            return
        with uninterrupted():
            self.settle()
            account.charge()
            self._outdate()
            hidden = release.finish(account.noise)
            self.memory.end_task()
            self._statistics.end_task()
            self._end_task()
        if hidden:
            warnings.warn(said_hidden(hidden), ProtectionWarning, stacklevel=3)

    def _end_guarantee(self) -> None:
        """Warn that what is now remembered without noise ends the guarantee of a memory that was loaded."""
        if self._guarantee is not None:
            self._guarantee = None
            warnings.warn(
                "the memory had a privacy guarantee, which ends here: what is remembered now is kept without noise. "
                "Give so.protect(…, privacy=so.Privacy(…)) to go on with one",
                ProtectionWarning,
                stacklevel=3,
            )

    @property
    def privacy(self) -> Guarantee | None:
        """What the guarantee of the memory is by now, and what it does not cover; None where there is none."""
        return self._guarantee if self._account is None else self._account.guarantee

    def _sketched(self) -> tuple[int, float]:
        """How many rows all sketches have observed, and their energy."""
        sketches = [sketch for _, sketch in self.memory.sketches()]
        return sum(sketch.count for sketch in sketches), sum(sketch.energy for sketch in sketches)

    def observe(self, inputs: Any, targets: Any = None) -> None:
        """Remember one batch without ending a task: all of it or, on an error or Ctrl-C, nothing.

        A refused batch changes nothing at all: steps that wait go on waiting, and the projector stays in use.

        The projector takes it into account from the next `refresh`, which the next optimizer step calls by itself
        unless the projector has a basis of its own. A pull then keeps what it was protecting before
        (`optimizer.anchor`), and observing at every step protects a stream without tasks. With several processes, all
        call it; `observe(None)` brings nothing.
        """
        if self._account is not None:
            raise ProtectionError(
                "with privacy= every release of sums has a price, and observe would make one for each batch. Collect "
                "the batches and call remember(batches): once for a task, or every so often in a stream, with "
                "so.Privacy(…, releases=how often)"
            )
        self._end_guarantee()
        self._observe([] if inputs is None else [(inputs, targets)])

    def _divided(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, after a budget's rows were divided by the spectra of the first examples."""
        probe = self.memory.probe()
        if probe is None:
            return batches
        first, count = [], 0
        for batch in batches:
            first.append(batch)
            count += batch_size(batch[0])
            if count >= PROBED:
                break
        probe.bind(self.parameters, self._output)
        self._team.share(probe)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProtectionWarning)  # they come with the memory's own batches
            self._team.observe(probe, first, lambda: None)
        self._team.complete(probe)
        with uninterrupted():
            self.memory.divide(probe)
        self._team.share(self.memory)
        return chain(first, batches)

    def _observe(self, batches: Iterable[Batch], prepared: Callable[[Iterator[Batch]], Iterator[Batch]] = iter) -> None:
        self._require_observable()
        placed: Iterator[Batch] = (self._placed(inputs, targets) for inputs, targets in batches)
        undo: Callable[[], None] | None = None
        changed = False

        def outdate() -> None:
            nonlocal changed
            changed = True
            self._outdate()

        try:
            with uninterrupted():
                undo = self._projection.settle_for_now()
            placed = prepared(placed)
            self._team.observe(self.memory, placed, outdate)
        except BaseException:
            if undo is not None and not changed:
                with uninterrupted():
                    undo()
            raise

    def _require_observable(self) -> None:
        self.parameters.require_gradients()
        self.parameters.require_unchanged()
        self._require_known()

    def _require_known(self) -> None:
        """Warn of parameters that joined the model, and of weights that are not those that a file was saved beside."""
        self._projection.newcomers.warn()
        self._require_weights()

    def _require_weights(self) -> None:
        found, self._saved_beside = self._saved_beside, None
        if found is not None and not fingerprint.is_of(found, self.parameters):
            warnings.warn(
                "the weights are not those that the memory was saved beside, so what it remembers is not what the "
                "model knows. Load the weights that belong to it: save both together, inside protection.settled()",
                ProtectionWarning,
                stacklevel=5,
            )

    def _placed(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """A batch on the device of the parameters, checked."""
        device = self.parameters.device
        inputs, targets = (map_tensors(lambda t: t.to(device), value) for value in (inputs, targets))
        b = batch_size(inputs)
        if targets is not None and batch_size(targets) != b:
            raise ValueError(f"{b} inputs came with {batch_size(targets)} targets; one target an example is needed")
        return inputs, targets

    def _outdate(self) -> None:
        """Before the memory changes: note what the pull is holding, which goes on."""
        if not self.memory.lasting:
            if self._projector is not None:
                self._projection.loosen(self._projector)
            self._projector = None
        self._stale = True

    def refresh(self) -> None:
        """Compute the projector for everything observed so far. A pull keeps what it was protecting before."""
        self.parameters.require_unchanged()
        self.settle()
        self._renew()

    def _end_task(self) -> None:
        """Compute the projector at the end of a task, whose outputs are promised what they are now."""
        if self.memory.promises:
            self._renew()
        else:
            self._compute()
            self._projection.reset()

    def _renew(self) -> None:
        """Compute the projector for more than before, or for no more: an old pull goes on."""
        with uninterrupted():
            if self._projector is not None and self.memory.lasting:
                self._projection.loosen(self._projector)
            weight, examples = self._weight, self._examples
            projector = self._compute()
            if projector.anchor is not None and self._examples == examples:
                self._projection.go_on(projector)  # nothing is new, or a batch was refused
            else:
                self._projection.renew(projector, self._weight / weight)

    def _compute(self) -> Projector:
        self._team.complete(self.memory)
        self._projector, self._stale = self.memory.projector(), False
        self._weight, self._examples = self.memory.weight, self.memory.examples
        return self._projector

    def _current_projector(self) -> Projector | None:
        if self._saved_beside is not None:
            self._require_weights()
        if self._stale and self._projector is None:
            self._renew()
        return self._projector

    # ---------------------------------------------------------------- projecting

    @property
    def projector(self) -> Projector | None:
        """The projector in use; None until something is remembered. `.basis`, or `.layers[name]`."""
        return self._current_projector()

    @property
    def mode(self) -> str | None:
        """How steps are projected: "gradient", "update" or "joint"; None before the first projected step."""
        return self._projection.mode

    @property
    def leak(self) -> float:
        """The largest ‖A v‖/‖v‖ measured in projected updates v since the last refresh.

        For a hard projector it should be zero and is about 1e-7, measured before an update is rounded into the weights.
        For a soft projector it is the share that is let through, and is not small. In joint mode nothing is removed
        from updates, and it is 0.
        """
        return self._projection.meter.leak

    def settle(self) -> None:
        """Project the steps that wait for it (`every` > 1), so that the weights are fit to be used or stored."""
        if self.parameters.split:
            self.parameters.require_unchanged()
        self._projection.settle()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """`with protection.settled(): evaluate(model)`."""
        self.settle()
        yield

    @contextmanager
    def preview(self) -> Iterator[None]:
        """`with protection.preview(): evaluate(model)`: what `settle` would leave, while training goes on without it.

        Where steps are projected rarely, an evaluation between two projections then changes nothing.
        """
        if self.parameters.split:
            self.parameters.require_unchanged()
        with self._projection.preview():
            yield

    @property
    def pending(self) -> int:
        """How many steps wait for their projection; 0 unless `every` > 1."""
        return self._projection.pending

    @contextmanager
    def joint(self, steps: int, more: bool = False) -> Iterator[None]:
        """Project the joint displacement of `steps` steps that the block takes without the optimizer's hooks.

        Replaying a CUDA graph does not call hooks: `with protection.joint(50):` around fifty replays protects them.
        With `more=True` they wait for the next block, and are projected together with its steps.
        """
        self.parameters.require_unchanged()
        with self._projection.joint(steps, more):
            yield
        self._statistics.advance(steps)

    def attach(self, optimizer: Optimizer) -> None:
        """Protect the steps of another optimizer from now on, instead of the last one's."""
        optimizer = unwrapped(optimizer)
        require_optimizer(optimizer)
        self.parameters.require_unchanged()
        self.settle()
        self._projection.attach(optimizer)
        self._statistics.attach(optimizer)

    def detach(self) -> None:
        """Settle, and leave no trace on model and optimizer. What is remembered stays; `attach` goes on."""
        self.settle()
        self._projection.detach()
        self._statistics.detach()

    def adopt(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        """Go on with a model that has grown: more rows of a head, more tokens of an embedding, layers that were added.

        What is remembered stays, new rows and layers begin empty, and a pull goes on to the old weights. A layer added
        between old ones is free to move old outputs until examples are remembered through it. The ranks of sketches
        stay, so that a larger model takes more bytes. Call it before the next step of the optimizer.

        Args:
            model: the model, in which every old parameter stands in the first rows and columns of the one of its name.
            optimizer: holds the new parameters; by default the present one, to which they were added.

        Raises:
            ProtectionError: the model is another one, or the optimizer lacks a parameter; nothing has changed then.
        """
        if self.pending:
            raise ProtectionError(
                f"{self.pending} steps wait for their projection: call settle() before the model grows"
            )
        self._current_projector()
        old, parameters = self._projection, ProtectedParameters(unwrapped_model(model)[0], self.parameters.selection)
        if parameters.same_as(self.parameters):
            if optimizer is not None:
                self.attach(optimizer)
            return
        require_grown(self.parameters, parameters)
        self._team.complete(self.memory)
        team, memory = self._team.of(parameters), carried(self.memory, parameters, self._output)
        anchor, copies = self.memory.rule.anchor, None
        if anchor is not None and old.reference is not None:
            copies = carried_anchor(old.reference, self.parameters, parameters, anchor)
        new = UpdateProjection(parameters, self._current_projector, old.every)
        new.steps, new.mode = old.steps, old.mode
        self._take_over(new, unwrapped(optimizer) if optimizer is not None else old.optimizer)
        team.share(memory)
        statistics, optimizer = self._statistics.of(parameters), new.optimizer
        self._statistics.detach()
        if optimizer is not None:
            statistics.attach(optimizer)
        self.parameters, self.memory, self._team, self._statistics = parameters, memory, team, statistics
        self._stale, known = False, self._projector is not None
        self._projector = memory.projector() if known else None
        new.reference, new.lost = copies, old.lost
        if self._projector is not None:
            new.go_on(self._projector)

    def _take_over(self, new: UpdateProjection, optimizer: Optimizer | None) -> None:
        """Let another projection hook an optimizer; the old one stays where that fails."""
        old, before = self._projection, self._projection.optimizer
        old.detach()
        try:
            if optimizer is not None:
                new.attach(optimizer)
        except ProtectionError:
            if before is not None:
                old.attach(before)
            raise
        self._projection = new

    # ---------------------------------------------------------------- bytes and numbers

    def forgetting(self, weights: Mapping[str, Tensor] | None = None) -> float | None:
        """The predicted root mean square change of remembered outputs, averaged over tasks, as a share of their spread.

        Of the model as it is, or with these weights: a `state_dict`, before it is loaded. 0.1 says that outputs differ
        from what was promised for them by a tenth of what they differ by from example to example. To first order, and
        layer by layer: layers that move together change outputs by up to a few times more (docs/theory.md). Gradient
        memories, and layer memories with `curvature="positions"`, give it in the outputs' own units. None where nothing
        was remembered, or where weights are not pulled back to an anchor.
        """
        projector, rule = self._current_projector(), self.memory.rule
        if projector is None or projector.anchor is None:
            return None
        chosen = None
        if weights is not None:
            missing = [name for name in self.parameters.names if name not in weights]
            if missing:
                raise ValueError(f"these weights lack {len(missing)} protected parameters, such as {missing[0]!r}")
            chosen = [weights[name] for name in self.parameters.names]
        # A pull counts the most that parts of the model can do together; measured is about the root of that.
        whole = rule.settings()["strength"] * max(1, self.memory.tasks) * self.memory.together**0.5
        return float((max(0.0, self._projection.penalty(projector, chosen)) / whole) ** 0.5)

    def ledger(self) -> Ledger:
        """Every tensor kept between steps, with its bytes; with several processes, in this one."""
        return Ledger.of(self.held())

    def coverage(self) -> Coverage:
        """How each parameter and buffer of the model is protected: by a layer, by gradients, held, or not, and why."""
        memory, model = self.memory, self.parameters.model
        covered = Coverage.of(model, self.parameters.tensors, memory.coverage(), memory.examples)
        return covered.with_buffers(self._statistics.coverage())

    def held(self) -> Iterator[Held]:
        """What the ledger lists; a copy of the weights that will be needed is among it from the start."""
        yield from self.memory.held()
        yield from self._statistics.held()
        projection, anchor = self._projection, self.memory.rule.anchor
        if projection.every > 1 or anchor is not None:
            purpose = (
                "weights that the memory pulls back to" if anchor else "weights at the last projection (every > 1)"
            )
            yield from self._copies("reference", purpose, projection.reference, anchor or FULL)
        kept = projection.corrections_kept(anchor)
        if kept >= 1:
            purpose = "added to the gradients of the steps between two pulls (every > 1)"
            yield from self._copies(
                "correction", purpose, projection.joint_gradient.correction, correction_form(anchor)
            )
        if kept == 2:
            purpose = "their mean, to tell the mean gradient from what Adam keeps (every > 1)"
            yield from self._copies("mean_correction", purpose, projection.joint_gradient.means.corrections, ROUNDED)

    def _copies(self, name: str, purpose: str, copies: Sequence[Copy] | None, anchor: Anchor) -> Iterator[Held]:
        if copies is None:
            # Room of full size is not allocated only to be counted: the weights themselves stand for it.
            spans = self.memory.spans(self.parameters)
            weights = [local(t.detach()) for t in self.parameters.tensors]
            pairs = zip(weights, spans, strict=True)
            copies = [Copy(t) if anchor == FULL else Copy.like(t, anchor, span) for t, span in pairs]
        for parameter, copy in zip(self.parameters.names, copies, strict=True):
            for suffix, part in copy.parts():
                yield Held(f"{name}.{parameter}{suffix}", purpose, part)

    def diagnostics(self) -> dict[str, Any]:
        """What is known about the protection, as plain numbers: examples, steps, leak, bytes, spectra.

        `reason`: why a budget picked this memory; None where the memory was given or loaded.
        `displacement`: at most how far the projected steps have moved the weights since the last refresh, Σ ‖v‖.
        `forgetting_estimate`: with a pull what `forgetting()` says. For others displacement · `memory.sensitivity()`,
        to first order an upper bound of the rms change of a remembered output since then. For a model that is linear in
        its weights it is a bound; for others gradients change on the way, which it does not see, and a small estimate
        is no promise (docs/theory.md). None where the memory has no such number, or has observed what its projector
        does not know yet. Steps that wait for their projection are not counted.
        """
        return {
            "reason": self._reason,
            "parameters": self.parameters.p,
            "examples": self.memory.examples,
            "steps": self._projection.steps,
            "every": self._projection.every,
            "mode": self.mode,
            "leak": self.leak,
            "displacement": self._projection.displacement,
            "forgetting_estimate": self._forgetting_estimate(),
            "nbytes": self.ledger().nbytes,
            **self.memory.diagnostics(),
        }

    def metrics(self) -> dict[str, float]:
        """Flat numbers for a logger, cheap enough for every 50 steps: no spectrum and no projector is computed.

        See `diagnostics` for what they mean. `forgetting_estimate` is there once something is remembered, if the memory
        has one; with a pull it is `forgetting()`, which costs about as much as projecting one step. With several
        processes, all call it.
        """
        found: dict[str, float] = {"examples": self.memory.examples, "steps": self._projection.steps}
        found |= {"pending": self.pending, "leak": self.leak, "displacement": self._projection.displacement}
        found["nbytes"] = self.ledger().nbytes
        estimate = None if self._stale or self._projector is None else self._forgetting_estimate()
        return found if estimate is None else found | {"forgetting_estimate": estimate}

    def _forgetting_estimate(self) -> float | None:
        """See `diagnostics`."""
        forgetting = self.forgetting()
        if forgetting is not None or self._stale:
            return forgetting
        sensitivity = self.memory.sensitivity()
        return None if sensitivity is None else self._projection.displacement * sensitivity

    def __repr__(self) -> str:
        return (
            f"<Protection of {self.parameters.p:,} parameters: {self.memory!r}, "
            f"{self.memory.examples:,} examples, {self.memory.nbytes:,} bytes>"
        )

    # ---------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """{"meta": plain data, "tensors": {name: tensor}} with tensors of its own; settles first.

        With several processes it is in a form for torch.distributed.checkpoint, split tensors being DTensors.
        """
        meta, tensors = self._team.to_checkpoint(self.memory, *self._state())
        return {"meta": meta, "tensors": {name: t.detach().clone() for name, t in tensors.items()}}

    def _state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        self.settle()
        self._require_weights()
        self._projection.joint_gradient.reset()  # computed anew at the next step, here and by whoever loads this
        self._team.complete(self.memory)
        if self._stale and (self.memory.lasting or self.memory.rule.anchor is not None):
            self._renew()  # a basis of its own is not stored, nor what an old pull was holding
        state = self.memory.state_dict()
        flags = {"stale": self._stale, "remembered": self._projector is not None}
        meta = {"format": file.FORMAT, "parameters": self.parameters.describe(), **flags, **state["meta"]}
        meta |= self._statistics.state()
        meta |= {} if self.privacy is None else {"privacy": self.privacy.meta()}
        if self._projection.meter.projections:
            meta["meter"] = self._projection.meter.state()
        if self._projection.lost:
            meta["lost"] = self._projection.lost
        anchor = self._projection.reference if self.memory.rule.anchor is not None else None
        copies = zip(self.parameters.names, anchor or (), strict=False)
        parts = {restore.ANCHOR + name + suffix: part for name, copy in copies for suffix, part in copy.parts()}
        weights = fingerprint.fingerprint(self.parameters)
        return meta if weights is None else {**meta, "weights": weights}, {**state["tensors"], **parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` on a model with the same parameter names and shapes; all or nothing.

        Raises StorageError for another one.
        """
        if not isinstance(state, Mapping) or not {"meta", "tensors"} <= set(state):
            raise StorageError(
                'a state is what Protection.state_dict() returns, a mapping with "meta" and "tensors"; got '
                f"{', '.join(map(repr, list(state)[:5])) if isinstance(state, Mapping) else type(state).__name__}"
            )
        self._load(state["meta"], state["tensors"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory to one safetensors file, atomically. The weights are yours to save; they are settled.

        With several processes, all call it and process 0 writes, with split tensors gathered in its main memory.
        """
        self._team.require_writable(path)
        self._team.save(path, *self._state())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replace what is remembered by the contents of a file that `save` wrote; all or nothing."""
        self._load(*self._team.read(path))

    def merge(self, other: "Protection | str | os.PathLike[str]") -> None:
        """Also protect what another protection of the same model, or a file of one, remembers; all or nothing.

        Raises ValueError, with the reason, for memories that were not made to be merged: sketches 2 and 3 need the same
        settings and seed, sketch 1 another seed.
        """
        self.parameters.require_unchanged()
        self._team.complete(self.memory)
        if isinstance(other, Protection):
            other._team.complete(other.memory)
            memory, beside, guarantee = other.memory, fingerprint.fingerprint(other.parameters), other.privacy
        else:
            meta, tensors = self._team.read(other)
            restore.require_meta(meta)
            beside, guarantee = meta.get("weights"), Guarantee.of(meta)
            meta, tensors = self._team.from_checkpoint(meta, tensors)
            memory = restore.contents(meta, tensors, self.parameters, self._output).memory
        together = self._merged_guarantee(guarantee)
        merged = restore.copied(self.memory, self.parameters, self._output)
        merged.merge(memory)
        if merged.examples:
            restore.tried(merged)
        self._team.share(merged)
        with uninterrupted():
            self.settle()
            self._saved_beside = beside
            self._require_weights()
            self._outdate()
            self.memory = merged
            self._take_guarantee(together)
            self.refresh()

    def _merged_guarantee(self, other: Guarantee | None) -> Guarantee | None:
        """That of this memory and another one together; None if either has none, which a private one refuses."""
        if self._account is not None:
            return self._account.guarantee.composed(self._account.require_same_unit(other))
        if not self.memory.examples:
            return other
        if self._guarantee is not None and other is not None:
            return self._guarantee.composed(other)
        if self._guarantee is not None or other is not None:
            warnings.warn(
                "one of the two memories has a privacy guarantee and the other has none, so together they have none. "
                "Keep them apart if the guarantee matters",
                ProtectionWarning,
                stacklevel=3,
            )
        return None

    def _take_guarantee(self, guarantee: Guarantee | None) -> None:
        """Go on with this guarantee, of what is remembered now."""
        if self._account is None:
            self._guarantee = guarantee
        else:
            assert guarantee is not None
            self._account.guarantee = guarantee

    def _load(self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Build everything, then replace what there is."""
        self.parameters.require_gradients()
        self.parameters.require_unchanged()
        restore.require_meta(meta)
        guarantee = Guarantee.of(meta)
        if self._account is not None:
            guarantee = self._account.require_same_unit(guarantee)
        restored = restore.contents(*self._team.from_checkpoint(meta, tensors), self.parameters, self._output)
        if self._account is not None:
            self._account.require_possible(restored.memory, self.parameters.model)
        self._team.share(restored.memory)
        with uninterrupted():
            self.settle()
            self.memory, self._reason = restored.memory, None
            self._take_guarantee(guarantee)
            self._projector, self._stale = restored.projector, restored.stale
            self._weight, self._examples = (
                (1.0, 0) if restored.projector is None else (self.memory.weight, self.memory.examples)
            )
            self._saved_beside = meta.get("weights")
            self._statistics.load(meta, bool(meta["remembered"]))
            self._projection.reset()
            self._projection.meter = Meter.of(meta.get("meter"))
            if restored.anchor:
                self._projection.reference = restored.anchor
                self._projection.lost = float(meta.get("lost", 0.0))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ProtectionError(
            "a Protection belongs to its model and optimizer and cannot be copied or pickled; use state_dict() or "
            "save(), and load into the protection of the copied model"
        )
