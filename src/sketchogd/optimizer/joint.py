"""The gradient of the new loss and of the pull together, for optimizers whose steps are no multiple of the gradient.

A pull stands for the penalty ½ Dᵀ H D on the displacement D from the anchor. Training should rest where the joint
gradient g + H D is zero. No pull after the step brings a preconditioned optimizer there: it rests where P g balances
s H D, P being its preconditioner. Natural continual learning (Kao et al. 2021) makes such curvature the preconditioner
itself; here the optimizer keeps its own. So the gradient itself is changed before the step,

    g ← (I + s H)⁻¹ (g + H D) = g + A (D − s g) / s    with A = s H (I + s H)⁻¹,

which is zero at the balance for every optimizer and every s > 0. For SGD with the learning rate s it is the implicit
step on the penalty, so directions that are too stiff for an explicit one do not diverge; s need not be exact.

With `every=m` the correction c = A (D − s g) / s, for m steps ahead (m s), is computed at every m-th step and added at
each. It is then kept as the anchor is, in full or in one byte per number.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..model.parameters import ProtectedParameters, local
from ..projector.base import Anchor, Projector
from .reference import FULL, Copy
from .step_size import step_size

EXPLICIT = 1e-4
"""Optimizers that evaluate a closure see g + H D, to this share of a step: their line search needs a true gradient."""


class JointGradient:
    """Changes gradients before a step. `correction` is kept between steps if `every` > 1, and None otherwise.

    Args:
        parameters: the protected parameters.
    """

    def __init__(self, parameters: ProtectedParameters) -> None:
        self.parameters = parameters
        self.correction: list[Copy] | None = None
        self._since = 0

    def reset(self) -> None:
        """Forget the correction; a new projector begins."""
        self.correction, self._since = None, 0

    def before_step(
        self,
        projector: Projector,
        reference: Sequence[Copy],
        every: int,
        optimizer: Optimizer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, dict[str, Any]] | None:
        """Add the correction to the gradients, or to those that a closure will compute.

        Args:
            projector: gives A.
            reference: the anchor.
            every: steps between two corrections.
            optimizer: about to step.
            args: of its step, the optimizer itself first.
            kwargs: of its step.

        Returns:
            New arguments of the step where it has a closure, otherwise None.
        """
        closure = kwargs.get("closure") or next((argument for argument in args[1:] if callable(argument)), None)
        if closure is not None:
            size = EXPLICIT * step_size(optimizer, self.parameters)
            wrapped = self._wrapped(closure, projector, reference, size)
            return (args[:1], {**kwargs, "closure": wrapped})
        with torch.no_grad():
            if every == 1:
                size = step_size(optimizer, self.parameters)
                self._add(self.parameters.unflatten(self._computed(projector, reference, size)))
                return None
            if self.correction is None or self._since >= every:
                size = every * step_size(optimizer, self.parameters)
                self._keep(self._computed(projector, reference, size), projector.anchor or FULL)
            assert self.correction is not None
            self._add([copy.tensor() for copy in self.correction])
        self._since += 1
        return None

    def _keep(self, correction: Tensor, anchor: Anchor) -> None:
        pieces = self.parameters.unflatten(correction)
        if self.correction is None:
            self.correction = [Copy.like(piece, anchor) for piece in pieces]
        for copy, piece in zip(self.correction, pieces, strict=True):
            copy.take_(piece)
        self._since = 0

    def _wrapped(
        self, closure: Callable[[], Any], projector: Projector, reference: Sequence[Copy], size: float
    ) -> Callable[[], Any]:
        def joint() -> Any:
            loss = closure()
            with torch.no_grad():
                self._add(self.parameters.unflatten(self._computed(projector, reference, size)))
            return loss

        return joint

    def _computed(self, projector: Projector, reference: Sequence[Copy], size: float) -> Tensor:
        """A (D − s g) / s (width,)."""
        parameters = self.parameters
        v = torch.empty(parameters.width, dtype=parameters.dtype, device=parameters.device)
        for (t, place), anchor in zip(parameters.slices(), reference, strict=True):
            out = v[place].view(anchor.numbers.shape)
            out.copy_(local(t))
            anchor.subtract_from_(out)
            if t.grad is not None:
                out.sub_(local(t.grad).to(out), alpha=size)
        return projector.protected_part_(v, size).div_(size)

    def _add(self, correction: Sequence[Tensor]) -> None:
        for t, piece in zip(self.parameters.tensors, correction, strict=True):
            if t.grad is not None:
                local(t.grad).add_(piece.to(t.device))
            elif bool(piece.any()):
                # Without a gradient an optimizer passes a parameter by; it must move where the pull says so.
                t.grad = torch.zeros_like(t)
                local(t.grad).add_(piece.to(t.device))
