"""Applying a projector to every step, through the optimizer's public hooks only.

*update mode* (any optimizer): before a step the weights are copied, the optimizer steps, and the displacement
v = w_new − w_old becomes v − A v. Momentum, Adam and weight decay are covered, since what is projected is what they
did. *gradient mode* (plain SGD, one step at a time): projecting the gradient gives the same weights without the copy.
`every=m` lets the optimizer take m steps before their joint displacement is projected.

A projector with an anchor is applied to the whole displacement D since it was made, so that it pulls back again and
again. For SGD this happens after the step. Other optimizers take steps that are no multiple of the gradient, so that no
pull after the step balances the new loss: in *joint mode* they are given the gradient of both (`joint`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import ProtectionError
from ..model.parameters import ProtectedParameters, local
from ..projector.base import Anchor, Projector
from .anchor import Held, penalty, tension
from .finite import FiniteCheck
from .joint import JointGradient, Scaled, corrections_kept
from .meter import Meter
from .reference import FULL, Copies, displacement
from .step_size import learning_rate, projects_gradients, pulls_updates, step_size
from .unsettled import UnsettledHooks
from .warn import Newcomers, guard, protector, unguard, warn_of_broken_step, warn_of_unprotected_steps

LONG = 10_000
"""So many steps with nothing remembered are worth a warning."""


class UpdateProjection:
    """Projects the steps of one optimizer.

    `mode` is "gradient", "update", "joint" or, before the first projection, None; `steps` counts the optimizer's steps,
    `pending` those that wait for their projection; `reference` holds the weights that these are counted from; `lost` is
    what a pull counts and cannot take back (`anchor`).

    Args:
        parameters: what is projected.
        provide: returns the projector; called before every step.
        every: optimizer steps between two projections.
    """

    def __init__(self, parameters: ProtectedParameters, provide: Callable[[], Projector | None], every: int) -> None:
        self.parameters = parameters
        self.provide = provide
        self.every = every
        self.mode: str | None = None
        self.steps = 0
        self.pending = 0
        self.meter = Meter()
        self.reference: Copies | None = None
        self.finite = FiniteCheck()
        self.newcomers = Newcomers(parameters)
        self.joint_gradient = JointGradient(parameters, self.finite)
        self._unsettled = UnsettledHooks(parameters.model)
        self._stepping = False
        self._unprotected = 0
        self._travelled: float | Tensor = 0.0
        self.lost = 0.0
        self._held: Held | None = None
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
        self._unhook()
        self._optimizer = optimizer
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        guard(self, optimizer)

    def detach(self) -> None:
        """Remove every hook and forget the optimizer. An anchor stays, so that `attach` goes on with its pull."""
        self._unhook()

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._optimizer is not None:
            unguard(self, self._optimizer)
        self._optimizer = None
        self.pending, self._travelled, self._stepping = 0, 0.0, False
        self._unsettled.remove()
        self.joint_gradient.reset()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self._count_broken_step()
        if self.pending:
            self._stepping = True
            return None  # the joint displacement counts from the copy made before the first of these steps
        projector = self.provide()
        if projector is None or projector.empty:
            self._count_unprotected(1)
            return None
        changed = self._prepare(projector, optimizer, args, kwargs)
        self._stepping = True  # not before: until here no weight has moved
        return changed

    def _prepare(self, projector: Projector, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Change the gradients, or copy the weights; returns new arguments for the step, or None."""
        if projector.anchor is not None and not pulls_updates(optimizer, self.parameters):
            self.mode = "joint"
            self._copy_weights(projector)
            assert self.reference is not None
            return self.joint_gradient.before_step(projector, self.reference, self.every, optimizer, args, kwargs)
        closure = kwargs.get("closure") is not None or any(callable(argument) for argument in args[1:] + args[:1])
        once = self.every == 1 and projector.anchor is None and not closure
        if once and not Scaled.of(optimizer).inside and projects_gradients(optimizer, self.parameters):
            self.mode = "gradient"
            self._project_gradients(projector, learning_rate(optimizer, self.parameters))
            return None
        self.mode = "update"
        self._copy_weights(projector)
        return None

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self.mode != "update" or self.reference is None:
            self._stepping = False
            return
        self._wait_for(optimizer, 1)
        self._stepping = False  # not before: a step must be known to wait, or to have broken off
        if self.pending >= self.every:
            self.settle()

    def _wait_for(self, optimizer: Optimizer | None, steps: int) -> None:
        """Count steps that wait for their projection."""
        self.pending += steps
        self._travel(optimizer, steps)
        if self.every > 1:
            self._unsettled.arm()

    def _count_broken_step(self) -> None:
        """Where the last step raised an error midway, count what it did to the weights as a step that waits."""
        if not self._stepping:
            return
        if self.mode == "update" and self.reference is not None:
            self._wait_for(self._optimizer, 1)
        self._stepping = False
        if self.mode == "gradient":
            warn_of_broken_step()
        elif self.mode == "update" and self.reference is not None and self.pending >= self.every:
            self.settle()

    def _count_unprotected(self, steps: int) -> None:
        before, self._unprotected = self._unprotected, self._unprotected + steps
        if before < LONG <= self._unprotected:
            warn_of_unprotected_steps(self._unprotected)

    def _travel(self, optimizer: Optimizer | None, steps: int) -> None:
        """Add up step sizes where a pull needs them; reading them may make a GPU wait."""
        projector = self.provide()
        if optimizer is not None and projector is not None and projector.anchor is not None:
            self._travelled += Scaled.of(optimizer).share_taken() * steps * step_size(optimizer, self.parameters)

    # ---------------------------------------------------------------- projecting

    @torch.no_grad()
    def settle(self) -> None:
        """Project the displacement of the steps since the last projection, now.

        After an error or Ctrl-C they go on waiting: what is projected already stays as it is when it is done again.
        """
        self._count_broken_step()
        if self.pending == 0 or self.reference is None:
            return
        projector = self.provide()
        v = displacement(self.parameters, self.reference)
        if projector is not None:
            self._remove(projector, v, lambda part: self.parameters.add_(part, alpha=-1.0), float(self._travelled), 1.0)
        self.pending, self._travelled = 0, 0.0
        if self.every == 1 and (projector is None or projector.anchor is None):
            self.reference = None  # a copy is kept between steps only where steps are projected together
        self._unsettled.disarm()

    def _remove(
        self, projector: Projector, v: Tensor, subtract: Callable[[Tensor], None], travelled: float, scale: float
    ) -> None:
        self.meter.remove(projector, v, subtract, travelled, scale, self.finite)

    @contextmanager
    def joint(self, steps: int, more: bool = False) -> Iterator[None]:
        """Project the joint displacement of `steps` steps that the block takes without calling the optimizer.

        Steps that wait for their projection are projected with them. With `more`, all of them wait for another block.
        """
        self._count_broken_step()
        projector = self.provide()
        if projector is None or projector.empty:
            yield
            self._count_unprotected(steps)
        else:
            self.mode = "update"
            if not self.pending:
                self._copy_weights(projector)
            try:
                yield
            finally:  # steps that were taken before an error moved the weights, too
                self._wait_for(self._optimizer, steps)
                if not more:
                    self.settle()
        self.steps += steps

    @contextmanager
    def preview(self) -> Iterator[None]:
        """Inside the block, the weights as `settle` would leave them; afterwards everything is as it was."""
        undo = self.settle_for_now()
        try:
            yield
        finally:
            undo()

    def settle_for_now(self) -> Callable[[], None]:
        """Settle, and return a function that makes everything as it was."""
        self._count_broken_step()
        if self.pending == 0:
            return _nothing
        tensors = [local(t.detach()) for t in self.parameters.tensors]
        weights = [t.clone() for t in tensors]
        kept = self.pending, self._travelled, replace(self.meter), self.reference
        self.settle()

        def undo() -> None:
            for t, before in zip(tensors, weights, strict=True):
                t.copy_(before)
            self.pending, self._travelled, self.meter, self.reference = kept
            if self.every > 1:
                self._unsettled.arm()

        return undo

    @property
    def displacement(self) -> float:
        """Σ ‖v − A v‖ over the projected updates v since the last reset: at least ‖Δw‖, by the triangle inequality.

        Without a copy of the weights ‖Δw‖ itself is not known. Steps that go back and forth make the sum larger than
        the distance; steps that are projected together (`every` > 1) enter by their joint displacement, which is less.
        In joint mode it is the distance from the anchor itself.
        """
        if self.mode == "joint" and self.reference is not None:
            with torch.no_grad():
                moved = displacement(self.parameters, self.reference)
                return float(self.parameters.columns.norm(moved.norm()))
        return float(self.meter.moved)

    @torch.no_grad()
    def penalty(self, projector: Projector, weights: Sequence[Tensor] | None = None) -> float:
        """Dᵀ H D of a pull for the displacement D of these weights, by default the model's, and what is lost."""
        if self.reference is None:  # no step was taken since the anchor was set: it is where the weights are
            if weights is None:
                return self.lost
            now = [local(t.detach()) for t in self.parameters.tensors]
            moved = self.parameters.flatten([a - b for a, b in zip(weights, now, strict=True)])
        else:
            moved = displacement(self.parameters, self.reference, weights)
        return self.lost + penalty(projector, moved)

    def _project_gradients(self, projector: Projector, rate: float) -> None:
        def subtract(part: Tensor) -> None:
            for t in self.parameters.tensors:
                if t.grad is None:
                    # A parameter without a gradient must move too where the projection of the others says so.
                    t.grad = torch.zeros_like(t)
            gradients = [local(t.grad) for t in self.parameters.tensors if t.grad is not None]
            pieces = zip(self.parameters.unflatten(part), gradients, strict=True)
            torch._foreach_sub_(gradients, [piece.to(gradient.device) for piece, gradient in pieces])

        with torch.no_grad():
            v = self.parameters.flatten([t.grad for t in self.parameters.tensors])
            self._remove(projector, v, subtract, 1.0, rate)

    def _copy_weights(self, projector: Projector) -> None:
        """Copy the weights that a displacement is counted from; an anchor is copied once, after a refresh."""
        if projector.anchor is not None and self.reference is not None:
            return
        if self.reference is None:
            self.reference = self._copies(projector, [local(t.detach()) for t in self.parameters.tensors])
        else:
            self.reference.take_([local(t.detach()) for t in self.parameters.tensors])

    def _copies(self, projector: Projector, weights: Iterable[Tensor]) -> Copies:
        anchor = projector.anchor or FULL
        tensors = list(weights)
        return Copies.of(tensors, anchor, [projector.span(i) for i in range(len(tensors))], self.parameters)

    def corrections_kept(self, anchor: Anchor | None) -> int:
        """How many corrections of gradients will be kept between steps, per number; see `joint.corrections_kept`."""
        if anchor is None or self._optimizer is None:
            return 0
        return corrections_kept(self._optimizer, self.parameters, self.every)

    @torch.no_grad()
    def loosen(self, projector: Projector) -> None:
        """Before a projector is outdated, note what its pull is holding; see `anchor`."""
        if projector.anchor is not None and self.reference is not None and self._held is None:
            moved = displacement(self.parameters, self.reference)
            if projector.anchor.in_span:  # whose directions are about to be overwritten
                weights = list(self._without(moved))
                self.reference = Copies.of(weights, FULL, [None] * len(weights))
            self._held = Held(tension(projector, moved.clone()), moved, self.lost)

    @torch.no_grad()
    def renew(self, projector: Projector, weight: float) -> None:
        """Begin with a projector for more than before, which keeps the old pull, `weight` times as strong."""
        held = self._held
        self.reset()
        if projector.anchor is None or held is None:
            return
        moved, self.lost = held.relaxed(projector, weight)
        self.reference = self._copies(projector, self._without(moved))

    def _without(self, moved: Tensor) -> Iterator[Tensor]:
        """The weights as they were before they moved by so much."""
        for t, piece in zip(self.parameters.tensors, self.parameters.unflatten(moved), strict=True):
            weights = local(t.detach())
            yield weights - piece.to(weights)

    def go_on(self, projector: Projector) -> None:
        """Keep the anchor as it is: the new projector is that of what was remembered before."""
        self._held, self.meter = None, Meter()
        if projector.anchor is not None and projector.anchor.in_span and self.reference is not None:
            self.reference = self._copies(projector, self.reference.tensors())
            self.joint_gradient.reset()

    def reset(self) -> None:
        """Begin anew at the present weights: forget the meter, the reference and what an old pull was holding."""
        self.meter, self.lost = Meter(), 0.0
        self.reference = self._held = None
        self.joint_gradient.reset()


def _nothing() -> None:
    """Undoes nothing."""
