"""The optimizer hooks that project every update, through the optimizer's public hooks only.

*update mode* (any optimizer): before a step the weights are copied, the optimizer steps, and the displacement
v = w_new − w_old is made v − A v. Momentum, Adam and weight decay are covered, since what is projected is what they
did. *gradient mode* (plain SGD, one step at a time): projecting the gradient gives the same weights without the copy.
`every=m` lets the optimizer take m steps before their joint displacement is projected. An *anchored* projector is
applied to the whole displacement since it was made, so that it pulls back again and again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import ProtectionError
from ..model.parameters import ProtectedParameters, local
from ..projector import Projector
from .reference import Copy
from .step_size import step_size
from .warn import guard, protector, unguard

_METER_EVERY = 100
_TWICE_ABOVE = 3e-7


class UpdateProjection:
    """Projects the steps of one optimizer. `provide()` is asked for the projector before every step.

    `mode` is "gradient", "update" or None while nothing was projected yet; `steps` counts the steps of the optimizer.
    """

    def __init__(self, parameters: ProtectedParameters, provide: Callable[[], Projector | None], every: int) -> None:
        self.parameters = parameters
        self.provide = provide
        self.every = every
        self.mode: str | None = None
        self.steps = 0
        self.pending = 0
        self.leak = 0.0
        self.reference: list[Copy] | None = None
        self._projected = 0
        self._moved: Tensor | float = 0.0
        self._twice = False
        self._handles: list[Any] = []
        self._optimizer: Optimizer | None = None

    # ---------------------------------------------------------------- hooks

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that is hooked, if any."""
        return self._optimizer

    def attach(self, optimizer: Optimizer) -> None:
        """Hook an optimizer. Raises ProtectionError if it lacks a protected parameter or one is protected already."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        pairs = list(zip(self.parameters.names, self.parameters.tensors, strict=True))
        missing = [name for name, t in pairs if id(t) not in held]
        if missing:
            raise ProtectionError(
                f"the optimizer does not hold {len(missing)} of the parameters to protect: {', '.join(missing[:5])}"
                f"{', …' if len(missing) > 5 else ''}. Build the optimizer on all of them, or choose with parameters="
            )
        taken = [name for name, t in pairs if protector(t) not in (None, self)]
        if taken:
            raise ProtectionError(
                f"parameter {taken[0]!r} is protected already; call detach() on the first protection, "
                "or use protection.attach(optimizer) to give it another optimizer"
            )
        self.detach()
        self._optimizer = optimizer
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        guard(self, optimizer)

    def detach(self) -> None:
        """Remove every hook and forget the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._optimizer is not None:
            unguard(self, self._optimizer)
        self._optimizer = None
        self.reference, self.pending = None, 0

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.pending:
            return  # the joint displacement counts from the copy made before the first of these steps
        projector = self.provide()
        if projector is None or projector.empty:
            return
        closure = kwargs.get("closure") is not None or any(callable(argument) for argument in args[1:] + args[:1])
        gradients = self.every == 1 and not closure and not projector.anchored
        if gradients and projects_gradients(optimizer, self.parameters):
            self.mode = "gradient"
            self._project_gradients(projector, _rate(optimizer, self.parameters))
            return
        self.mode = "update"
        self._copy_weights(projector)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self.mode != "update" or self.reference is None:
            return
        self.pending += 1
        if self.pending >= self.every:
            self.settle()

    # ---------------------------------------------------------------- projecting

    @torch.no_grad()
    def settle(self) -> None:
        """Project the displacement of the steps since the last projection, now."""
        if self.pending == 0 or self.reference is None:
            return
        projector = self.provide()
        steps, self.pending = self.pending, 0
        v = torch.empty(self.parameters.width, dtype=self.parameters.dtype, device=self.parameters.device)
        for (parameter, place), before in zip(self.parameters.slices(), self.reference, strict=True):
            out = v[place].view(before.numbers.shape)
            out.copy_(local(parameter))
            before.subtract_from_(out)
        anchored = projector is not None and projector.anchored
        if self.every == 1 and not anchored:
            self.reference = None  # a copy is kept between steps only where steps are projected together
        if projector is not None:
            if anchored and self._optimizer is not None:
                projector.travelled = steps * step_size(self._optimizer, self.parameters)
            self._remove(projector, v, lambda part: self.parameters.add_(part, alpha=-1.0), 1.0)

    @contextmanager
    def joint(self, steps: int, more: bool = False) -> Iterator[None]:
        """Project the joint displacement of `steps` steps that the block takes without calling the optimizer.

        Steps that wait for their projection are projected with them. With `more`, all of them wait for another block.
        """
        projector = self.provide()
        if projector is None or projector.empty:
            yield
        else:
            self.mode = "update"
            if not self.pending:
                self._copy_weights(projector)
            yield
            self.pending += steps
            if not more:
                self.settle()
        self.steps += steps

    @contextmanager
    def preview(self) -> Iterator[None]:
        """The weights as `settle` would leave them, for the block only; then everything is as it was."""
        if self.pending == 0:
            yield
            return
        tensors = [local(t.detach()) for t in self.parameters.tensors]
        weights = [t.clone() for t in tensors]
        kept = self.pending, self.leak, self._projected, self._moved, self._twice
        self.settle()
        try:
            yield
        finally:
            for t, before in zip(tensors, weights, strict=True):
                t.copy_(before)
            self.pending, self.leak, self._projected, self._moved, self._twice = kept

    @property
    def displacement(self) -> float:
        """Σ ‖v − A v‖ over the projected updates v since the last reset: at least ‖Δw‖, by the triangle inequality.

        Without a copy of the weights ‖Δw‖ itself is not known. Steps that go back and forth make the sum larger than
        the distance; steps that are projected together (`every` > 1) enter by their joint displacement, which is less.
        """
        return float(self._moved)

    def _project_gradients(self, projector: Projector, rate: float) -> None:
        def subtract(part: Tensor) -> None:
            for t, piece in zip(self.parameters.tensors, self.parameters.unflatten(part), strict=True):
                if t.grad is None:
                    # A parameter without a gradient must move too where the projection of the others says so.
                    t.grad = torch.zeros_like(t)
                local(t.grad).sub_(piece.to(t.device))

        with torch.no_grad():
            self._remove(projector, self.parameters.flatten([t.grad for t in self.parameters.tensors]), subtract, rate)

    def _remove(self, projector: Projector, v: Tensor, subtract: Callable[[Tensor], None], scale: float) -> None:
        """Take A v off the weights or gradients; the meter looks now and then at what is left, A (v − A v).

        Rounding leaves a small part of v behind. Where the meter finds that this is a large part of what remains,
        because most of v was protected, a second pass A (v − A v) takes it off, from then on at every step.

        The weights move by `scale` times what is left. Its norm costs no copy of v: A² <= A for every projector here,
        so ‖v − A v‖² = ‖v‖² − 2 vᵀA v + ‖A v‖² <= ‖v‖² − ‖A v‖², with equality for a hard one.
        """
        self._projected += 1
        n = self._projected
        metered = (n & (n - 1) == 0 or n % _METER_EVERY == 0) and not _capturing(v)
        rest = v.clone() if metered or self._twice else None
        before = v.norm().double()
        part = projector.protected_part_(v)
        after = part.norm().double()
        # A tensor is added up, since reading a number would make a GPU wait at every step.
        left = projector.columns.vector_total(before.square() - after.square())
        self._moved = (0.0 if projector.anchored else self._moved) + scale * left.clamp_min(0).sqrt()
        subtract(part)
        if rest is None:
            return
        rest -= part
        leak = projector.leak(rest) if metered else 0.0
        if projector.hard and leak > _TWICE_ABOVE:
            self._twice = True
        if self._twice:
            part = projector.protected_part_(v.copy_(rest))
            subtract(part)
            leak = projector.leak(rest.sub_(part)) if metered else 0.0
        self.leak = max(self.leak, leak)

    def _copy_weights(self, projector: Projector) -> None:
        """Copy the weights that a displacement is counted from: those of the last refresh for an anchored projector."""
        if projector.anchored and self.reference is not None:
            return
        if self.reference is None:
            self.reference = [Copy.of(local(t.detach()), projector.rounded) for t in self.parameters.tensors]
        else:
            for copy, t in zip(self.reference, self.parameters.tensors, strict=True):
                copy.take_(local(t.detach()))

    def reset_meter(self) -> None:
        """Forget leak, displacement and reference so far; a new projector begins."""
        self.leak, self._projected, self._twice = 0.0, 0, False
        self._moved = 0.0
        self.reference = None


def _capturing(v: Tensor) -> bool:
    """Whether a CUDA graph is being captured, in which numbers cannot be read."""
    return v.is_cuda and torch.cuda.is_current_stream_capturing()


def projects_gradients(optimizer: Optimizer, parameters: ProtectedParameters) -> bool:
    """Whether projecting gradients moves the weights exactly as projecting updates would.

    Plain SGD only: no momentum, no weight decay, one learning rate for all protected parameters, dense gradients.
    """
    if type(optimizer) is not torch.optim.SGD:
        return False
    held = {id(t) for t in parameters.tensors}
    groups = [g for g in optimizer.param_groups if any(id(p) in held for p in g["params"])]
    plain = all(g["momentum"] == 0 and g["weight_decay"] == 0 for g in groups)
    same = len({float(g["lr"]) for g in groups}) == 1
    return plain and same and all(t.grad is None or not t.grad.is_sparse for t in parameters.tensors)


def _rate(optimizer: Optimizer, parameters: ProtectedParameters) -> float:
    """The learning rate of the first protected parameter; in gradient mode all have the same."""
    first = parameters.tensors[0]
    return next(float(g["lr"]) for g in optimizer.param_groups if any(p is first for p in g["params"]))
