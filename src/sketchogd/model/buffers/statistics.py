"""The buffers of a protected model: running statistics, which are held from the first task on, and the others.

No copy of a buffer is kept: statistics stay in the model, where `norms` holds them, and digests tell what has changed.
"""

import hashlib
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import ProtectionWarning
from ...ledger import Held
from ..parameters import ProtectedParameters, local
from .norms import HoldStatistics, NormHooks, has_statistics, is_fresh

UNKNOWN_STEPS = 100
"""Steps of a hand-over where no task was trained before, as with a pretrained model."""

_HELD = ("running_mean", "running_var")


class Statistics:
    """The buffers of a protected model: which of them are held, and which others change.

    Holding keeps no copy of statistics, which stay in the model: only digests, with which a change is noticed.

    Args:
        parameters: the protected parameters. A norm layer is held unless its weight was left out of them.
        hold: how statistics are held, None to let them move.
    """

    def __init__(self, parameters: ProtectedParameters, hold: HoldStatistics | None) -> None:
        self.parameters = parameters
        self.hold = hold
        self.steps = 0
        self.handover = 0
        self._norms: dict[str, NormHooks] = {}
        self._hooked: dict[str, weakref.ref[nn.Module]] = {}
        self._digests: dict[str, str] = {}
        self._moved: set[str] = set()
        self._ended = self._unverified = False
        self._shares: dict[torch.device, Tensor] = {}
        self._handles: list[Any] = []
        weakref.finalize(self, _remove, self._handles).atexit = False

    # ---------------------------------------------------------------- hooks

    def attach(self, optimizer: Optimizer) -> None:
        """Hook the norm layers and, to count its steps, an optimizer.

        The hooks do nothing before the first task has ended. They are there from the start because torch.compile does
        not see hooks that come after the first call of a compiled model.
        """
        self.detach()
        self._hook()
        if self._norms:
            self._handles.append(optimizer.register_step_post_hook(lambda *_: self.advance(1)))

    def detach(self) -> None:
        """Remove every hook; what is held is remembered for the next `attach`."""
        _remove(self._handles)
        self._hooked.clear()

    def _hook(self) -> None:
        """Hook the norm layers that have no hooks yet: at first all of them."""
        if self.hold is None:
            return
        for name, module in self._to_hold().items():
            found = self._hooked.get(name)
            if found is not None and found() is module:
                continue
            norm = self._norms.setdefault(name, NormHooks(self.hold.batch_gradient))
            self._hooked[name] = weakref.ref(module)
            self._handles += [
                module.register_forward_pre_hook(norm.before),
                module.register_forward_hook(norm.after, always_call=True),
            ]

    def _to_hold(self) -> dict[str, Any]:
        """The norm layers with running statistics whose weight was not left out, by name."""
        found = {name: m for name, m in self.parameters.model.named_modules() if has_statistics(m)}
        return {name: m for name, m in found.items() if not self._left_out(m)}

    def _left_out(self, module: Any) -> bool:
        weight = module.weight
        return weight is not None and weight.requires_grad and weight not in self.parameters

    def advance(self, steps: int) -> None:
        """Count optimizer steps, and go on with the hand-over."""
        self.steps += steps
        if self._unverified:
            self._verify()
        if self._shares:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give every norm layer the present share; None at the end."""
        done = self.steps >= self.handover
        if done:
            self._shares.clear()
        for share in self._shares.values():
            share.fill_(self.steps / self.handover)
        for norm in self._norms.values():
            norm.share = None if done else norm.share

    # ---------------------------------------------------------------- tasks

    def end_task(self) -> None:
        """Hold, from the first task on, the statistics of every norm layer that has seen data; begin a hand-over."""
        self._hook()
        self._verify()
        self._note_others()
        if self.hold is None:
            return
        if self.steps or not self.handover:
            self.handover = round(self.hold.handover * (self.steps or UNKNOWN_STEPS))
        self.steps = 0
        modules = dict(self.parameters.model.named_modules())
        for name, norm in self._norms.items():
            module: Any = modules.get(name)
            norm.held = norm.held or (module is not None and not is_fresh(module))
        self._ended = True
        self._begin()

    def _begin(self) -> None:
        """Start or continue the hand-over of all held layers, whose digests are noted."""
        modules = dict(self.parameters.model.named_modules())
        self._shares.clear()
        for name, norm in self._norms.items():
            module: Any = modules.get(name)
            norm.share = None
            if norm.held and module is not None:
                for key in _HELD:
                    self._digests.setdefault(f"{name}.{key}".lstrip("."), digest(getattr(module, key)))
                if self.steps < self.handover:
                    device = module.running_mean.device
                    norm.share = self._shares.setdefault(device, torch.zeros((), device=device))
        if self._shares:
            self._hand_over()

    def _verify(self) -> None:
        """Warn where held statistics moved all the same; what they are now is held from here on."""
        self._unverified = False
        present = dict(self.parameters.model.named_buffers())
        held = [name for name in self._digests if self._is_held(name) and name in present]
        moved = [name for name in held if digest(present[name]) != self._digests[name]]
        self._digests.update({name: digest(present[name]) for name in moved})
        if moved:
            warnings.warn(
                f"running statistics that should be held changed: {', '.join(moved[:4])}"
                f"{', …' if len(moved) > 4 else ''}. Old outputs changed with them. Either they were loaded or set, or "
                "the model was compiled, or captured as a CUDA graph, before so.protect: protect first, or call "
                "torch._dynamo.reset(), and capture anew after `remember`",
                ProtectionWarning,
                stacklevel=4,
            )

    def _is_held(self, name: str) -> bool:
        norm = self._norms.get(name.rpartition(".")[0])
        return norm is not None and norm.held and name.rpartition(".")[2] in _HELD

    def _note_others(self) -> None:
        """Note other buffers at the end of the first task, and warn of real numbers that have changed since."""
        changed = []
        for name, t in self._others():
            if self._digests.setdefault(name, digest(t)) != digest(t) and name not in self._moved:
                self._moved.add(name)
                changed += [name] if t.is_floating_point() else []
        if changed:
            warnings.warn(
                f"buffers of the model change in training and are NOT PROTECTED: {', '.join(changed[:4])}"
                f"{', …' if len(changed) > 4 else ''}. Outputs on old tasks change with them; freeze them after the "
                "first task if they should not",
                ProtectionWarning,
                stacklevel=4,
            )

    def _others(self) -> Iterator[tuple[str, Tensor]]:
        """The buffers that belong to no norm layer."""
        norms = {name for name, module in self.parameters.model.named_modules() if has_statistics(module)}
        for name, t in self.parameters.model.named_buffers():
            if name.rpartition(".")[0] not in norms:
                yield name, t

    # ---------------------------------------------------------------- what is known

    def coverage(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """Name, shape and protection of every buffer of the model."""
        others = dict(self._others())
        modules = dict(self.parameters.model.named_modules())
        for name, t in self.parameters.model.named_buffers():
            owner = name.rpartition(".")[0]
            how = self._of_other(name, t) if name in others else self._of_norm(owner, modules[owner])
            yield name, tuple(t.shape), how

    def _of_other(self, name: str, t: Tensor) -> str:
        if name in self._moved or self._digests.get(name, digest(t)) != digest(t):
            return "NOT PROTECTED: changes in training"
        return "constant so far" if name in self._digests else "not known before the first task has ended"

    def _of_norm(self, owner: str, module: Any) -> str:
        if self.hold is None:
            return "NOT PROTECTED: follows new tasks (buffers=None)"
        if self._left_out(module):
            return "NOT PROTECTED: follows new tasks, as the norm's weight was not chosen"
        norm = self._norms.get(owner)
        if norm is None or not norm.held:
            return "free so far: held, in training too, from the end of the first task that uses it"
        if norm.share is None:
            return "held, in training too"
        return f"held; training goes over to it ({self.steps} of {self.handover} steps)"

    def held(self) -> Iterator[Held]:
        """What is kept while training goes over to the held statistics."""
        for device, share in self._shares.items():
            yield Held(f"statistics.{device}", "how far training uses held statistics", share)

    # ---------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Plain data for a file; empty for a model without buffers."""
        if not any(True for _ in self.parameters.model.buffers()):
            return {}
        held = sorted(name for name, norm in self._norms.items() if norm.held)
        counts = {"steps": self.steps, "handover": self.handover, "ended": self._ended}
        digests = [list(pair) for pair in sorted(self._digests.items())]
        return {"buffers": {**counts, "held": held, "digests": digests, "moved": sorted(self._moved)}}

    def of(self, parameters: ProtectedParameters) -> "Statistics":
        """The same for parameters of a model that has grown, whose statistics are taken as they are."""
        found = Statistics(parameters, self.hold)
        state = self.state()
        if state:
            found.load({"buffers": {**state["buffers"], "digests": []}}, self._ended)
        return found

    def load(self, meta: Mapping[str, Any], remembered: bool) -> None:
        """Continue from `state`. A file without one, of an older version, begins to hold what the model has now."""
        found = meta.get("buffers")
        self._digests, self._moved, self.steps, self.handover = {}, set(), 0, 0
        for norm in self._norms.values():
            norm.held = False
        if found is None or (self.hold is not None and not found["ended"]):
            self._ended = False
            if remembered:
                self.end_task()
            else:
                self._begin()
            return
        self.steps, self.handover, self._ended = int(found["steps"]), int(found["handover"]), bool(found["ended"])
        self._digests, self._moved = dict(found["digests"]), set(found["moved"])
        for name, norm in self._norms.items():
            norm.held = name in found["held"]
        self._begin()
        self._unverified = True


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def kept_nbytes(model: nn.Module, hold: HoldStatistics | None) -> int:
    """The most bytes that holding the statistics of a model keeps: λ, once per device."""
    norms = [module for module in model.modules() if has_statistics(module)]
    return 4 * len({next(module.buffers()).device for module in norms}) if hold is not None and hold.handover else 0


def digest(t: Tensor) -> str:
    """A checksum of a tensor's numbers, the same on every device."""
    plain = local(t.detach()).cpu().contiguous().reshape(-1)
    return hashlib.blake2b(plain.view(torch.uint8).numpy().data, digest_size=8).hexdigest()
