"""The gradient of the new loss and of the pull together, for optimizers whose steps are no multiple of the gradient.

A pull stands for the penalty ½ Dᵀ H D on the displacement D from the anchor. Training should rest where the joint
gradient g + H D is zero. No pull after the step brings a preconditioned optimizer there: it rests where P g balances
s H D, P being its preconditioner. Natural continual learning (Kao et al. 2021) makes such curvature the preconditioner
itself; here the optimizer keeps its own. So the gradient itself is changed before the step,

    g ← (I + s H)⁻¹ (g + H D) = g + A (D − s g) / s    with A = s H (I + s H)⁻¹,

which is zero at the balance for every optimizer and every s > 0. For SGD with the learning rate s it is the implicit
step on the penalty, so directions that are too stiff for an explicit one do not diverge; s need not be exact.

With `every=m` the correction c = A (D − s g) / s, for m steps ahead, is computed at every m-th step and added at each.
It is then kept as the anchor is, in full or in one byte per number; g is the mean gradient of recent steps where the
optimizer keeps one (`mean_gradient`), since the noise of one batch would be added to all m steps.

Where training settles between two corrections, m steps lead less far than m times one step, and with s = m steps each
correction would take away ever less of what is left to balance. So where less than half of the joint gradient is left
at the end, s is how far they led for it: the distance that they moved the weights over the norm of the joint gradient
that they began with, within one and m steps. The noise of small batches hides a fall; s is m steps then.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..linalg.stacks import converted
from ..model.parameters import ProtectedParameters, local
from ..projector.base import Anchor, Projector
from ..sketch.columns import UNSPLIT, Columns
from .finite import Finite, FiniteCheck, numbers_in
from .mean_gradient import Mean, MeanGradients, keeps_corrections, means_of, some_at_a_time
from .reference import FULL, ROUNDED, Copies, Stack, displacement
from .step_size import pulls_updates, step_size

EXPLICIT = 1e-4
"""Optimizers that evaluate a closure see g + H D, to this share of a step: their line search needs a true gradient."""


@dataclass(frozen=True)
class Scaled:
    """How gradients are scaled when a step begins: by torch.amp.GradScaler, for optimizers that take that back inside.

    These are the fused ones, for which the scaler sets `grad_scale` and `found_inf` during a step. They skip a step
    whose gradients are not finite.
    """

    factor: Tensor | None = None
    infinite: Tensor | None = None

    @staticmethod
    def of(optimizer: Optimizer) -> "Scaled":
        """Of the step that an optimizer is about to take."""
        return Scaled(getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None))

    @property
    def inside(self) -> bool:
        """Whether the optimizer takes a scale back, or skips the step, by itself."""
        return self.infinite is not None or self.factor is not None

    def share_taken(self) -> float | Tensor:
        """1 where the step is taken, 0 where it is skipped; not read from a GPU."""
        return 1.0 if self.infinite is None else (self.infinite == 0).sum()

    def unscaled(self, gradients: list[Tensor | None]) -> list[Tensor | None]:
        """Gradients without the scale."""
        if self.factor is None:
            return gradients
        return [None if gradient is None else gradient / self.factor.to(gradient) for gradient in gradients]


UNSCALED = Scaled()


SETTLED = 0.5
"""Where less than this share of the joint gradient is left, training has settled between two corrections."""

SUMS = 64
"""So many sums stand for a displacement, to tell how far it moved on."""


def signed_sums(v: Tensor, columns: Columns = UNSPLIT) -> Tensor:
    """Return sums (SUMS,) of entries of v with random signs; the expected square of their norm is that of v.

    Where v is split over processes, `columns` says which of its entries are here; the sums are those of all.

    >>> signed_sums(torch.tensor([3.0, 4.0])).norm()
    tensor(5.)
    """
    d, parts = max(columns.d, len(v)), columns.ranges if columns.width == len(v) else (range(len(v)),)
    signs = torch.randint(0, 2, (d // SUMS + 1,), generator=torch.Generator().manual_seed(0), dtype=torch.int8) * 2 - 1
    signs = signs.to(v)
    sums, start = v.new_zeros(SUMS), 0
    for part in parts:
        piece, first = v[start : start + len(part)], part.start % SUMS
        head = min(-first % SUMS, len(piece))  # entries before the next full row of SUMS
        rows = piece[head : head + (len(piece) - head) // SUMS * SUMS].view(-1, SUMS)
        row, left = (part.start + head) // SUMS, piece[head + rows.numel() :]
        sums[first : first + head] += signs[part.start // SUMS] * piece[:head]
        sums += signs[row : row + len(rows)] @ rows
        if len(left):
            sums[: len(left)] += signs[row + len(rows)] * left
        start += len(part)
    return columns.vector_total(sums)


def corrections_kept(optimizer: Optimizer, parameters: ProtectedParameters, every: int) -> int:
    """How many corrections an optimizer will need per number: 0, 1 (the last one), or 2 (its mean in one byte too)."""
    if every == 1 or pulls_updates(optimizer, parameters):
        return 0
    return 1 + keeps_corrections(optimizer, every)


def correction_form(anchor: Anchor | None) -> Anchor:
    """How corrections are kept: in full where the anchor is, otherwise in one byte per number."""
    return FULL if anchor is None or anchor == FULL else ROUNDED


class JointGradient:
    """Changes gradients before a step. `correction` is kept between steps if `every` > 1, and None otherwise.

    Args:
        parameters: the protected parameters.
        check: gradients that are not finite stay as they are.
    """

    def __init__(self, parameters: ProtectedParameters, check: FiniteCheck) -> None:
        self.parameters = parameters
        self.check = check
        self.correction: Copies | None = None
        self.means = MeanGradients(parameters)
        self._since = self._added = 0
        self._nonzero: list[float] | None = None
        self._began = self._from = torch.zeros(())

    def reset(self) -> None:
        """Forget the correction; a new projector begins."""
        self.correction, self._since, self._added, self._nonzero = None, 0, 0, None
        self.means.reset()

    def before_step(
        self,
        projector: Projector,
        reference: Copies,
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
        scaled = Scaled.of(optimizer)
        with torch.no_grad():
            if every == 1:
                size = step_size(optimizer, self.parameters)
                gradients = some_at_a_time(self.parameters, self._gradients(scaled))
                v = displacement(self.parameters, reference)
                correction, finite = self._computed(projector, v, size, gradients, scaled)
                self._add(finite.or_zero(correction), scaled)
                return None
            due = self.correction is None or self._since >= every
            new = due and self._renew(projector, reference, every, optimizer, scaled)
            if self.correction is not None:
                self._add_kept(self.correction, scaled)
                self._added += 1
            if new:
                self._began = self._norm(scaled)
        self._since += 1
        return None

    def _renew(
        self, projector: Projector, reference: Copies, every: int, optimizer: Optimizer, scaled: "Scaled"
    ) -> bool:
        """Compute the correction for the steps ahead; one that is not finite leaves the last one in place."""
        v = displacement(self.parameters, reference)
        here, gradients = signed_sums(v, self.parameters.columns), self._gradients(scaled)
        step = step_size(optimizer, self.parameters)
        size = every * step
        means = means_of(optimizer, self.parameters)
        if self.correction is not None:
            left = self._left(optimizer, self.correction, means, gradients, every)
            if bool(left < SETTLED * self._began):
                size = min(size, max(step, float((here - self._from).norm() / self._began)))
        averaged = self.means.of(means, gradients, self.correction)
        correction, finite = self._computed(projector, v, size, averaged, scaled)
        if not finite:
            return False
        pieces = self.parameters.unflatten(correction)
        if self.correction is None:
            spans = [projector.span(i) for i in range(len(pieces))]
            self.correction = Copies.of(pieces, correction_form(projector.anchor), spans, self.parameters)
        else:
            self.correction.take_(pieces)
        self._since, self._from, self._nonzero = 0, here, None
        return True

    def _left(
        self,
        optimizer: Optimizer,
        correction: Copies,
        means: Sequence[Mean | None],
        gradients: Sequence[Tensor | None],
        every: int,
    ) -> Tensor:
        """‖g + c‖ for the correction c of the last steps, which is taken into the mean of corrections on the way."""
        where = self.parameters.dtype, self.parameters.device
        self.means.began(optimizer, correction, self._added, every)
        norms: list[Tensor] = []
        for k, stack in enumerate(correction.stacks):
            last = stack.tensors()
            held = [(c, g) for c, i in zip(last, stack.places, strict=True) if (g := gradients[i]) is not None]
            joint = [c for c, i in zip(last, stack.places, strict=True) if gradients[i] is None]
            if held:
                joint += torch._foreach_add(
                    converted([c for c, _ in held], *where), converted([g for _, g in held], *where)
                )
            norms += torch._foreach_norm(converted(joint, *where))
            self.means.added(means, k, last, self._added)
        self._added = 0
        return self.parameters.columns.norm(torch.linalg.vector_norm(torch.stack(norms)))

    def _norm(self, scaled: "Scaled") -> Tensor:
        """‖g + c‖ of the gradients to which the correction c was added."""
        gradients = [local(t.grad) for t in self.parameters.tensors if t.grad is not None]
        given = converted(gradients, self.parameters.dtype, self.parameters.device)
        norm = self.parameters.columns.norm(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(given))))
        return norm if scaled.factor is None else norm / scaled.factor.to(norm)

    def _wrapped(
        self, closure: Callable[[], Any], projector: Projector, reference: Copies, size: float
    ) -> Callable[[], Any]:
        def joint() -> Any:
            loss = closure()
            with torch.no_grad():
                gradients = some_at_a_time(self.parameters, self._gradients(UNSCALED))
                v = displacement(self.parameters, reference)
                correction, finite = self._computed(projector, v, size, gradients, UNSCALED)
                self._add(finite.or_zero(correction), UNSCALED)
            return loss

        return joint

    def _gradients(self, scaled: "Scaled") -> list[Tensor | None]:
        """The gradients of the batch at hand."""
        return scaled.unscaled([None if t.grad is None else local(t.grad) for t in self.parameters.tensors])

    def _computed(
        self,
        projector: Projector,
        v: Tensor,
        size: float,
        gradients: Iterable[tuple[list[int], list[Tensor]]],
        scaled: "Scaled",
    ) -> tuple[Tensor, Finite]:
        """A (D − s g) / s (width,) for the displacement D, which is overwritten, and whether it is finite."""
        pieces = self.parameters.unflatten(v)
        for places, some in gradients:
            if some:
                torch._foreach_add_([pieces[i] for i in places], some, alpha=-size)
        correction = projector.protected_part_(v, size).div_(size)
        size_of = self.parameters.columns.vector_total(correction.sum())  # of all parts, where it is split
        return correction, self.check.of(size_of, scaled.infinite is not None)

    def _add(self, correction: Tensor, scaled: "Scaled") -> None:
        """Add a correction (width,) to the gradients."""
        pieces = self.parameters.unflatten(correction)
        missing = [i for i, t in enumerate(self.parameters.tensors) if t.grad is None]
        self._begin(missing, self._moves([pieces[i] for i in missing]))
        held = [(t.grad, piece) for t, piece in zip(self.parameters.tensors, pieces, strict=True) if t.grad is not None]
        added = [piece.to(gradient.device) for gradient, piece in held]
        if scaled.factor is not None:
            torch._foreach_mul_(added, scaled.factor.to(correction))
        torch._foreach_add_([local(gradient) for gradient, _ in held], added)

    def _add_kept(self, correction: Copies, scaled: "Scaled") -> None:
        """Add the correction that is kept to the gradients."""
        tensors = self.parameters.tensors
        missing = [i for i, t in enumerate(tensors) if t.grad is None]
        if missing:
            if self._nonzero is None:
                self._nonzero = self._moves([copy.numbers for copy in correction])
            self._begin(missing, [self._nonzero[i] for i in missing])
        gradients = [None if t.grad is None else local(t.grad) for t in tensors]
        for stack in correction.stacks:
            held = [gradient for i in stack.places if (gradient := gradients[i]) is not None]
            if len(held) == len(stack.places):
                stack.add_to_(held, scaled.factor)
            elif held:
                left = [copy for i, copy in zip(stack.places, stack.copies, strict=True) if gradients[i] is not None]
                Stack(list(range(len(left))), left, stack.columns).add_to_(held, scaled.factor)

    def _moves(self, pieces: Sequence[Tensor]) -> list[float]:
        """Of each tensor, or of all its parts, whether it is not zero."""
        if not self.parameters.split or not pieces:
            return numbers_in([piece.any() for piece in pieces])
        counts = torch.stack([piece.any().double() for piece in pieces])
        return [float(count) for count in self.parameters.columns.vector_total(counts).tolist()]

    def _begin(self, missing: Sequence[int], moved: Sequence[float]) -> None:
        """Without a gradient an optimizer passes a parameter by; it must move where the pull says so."""
        for i, moves in zip(missing, moved, strict=True):
            if moves:
                self.parameters.tensors[i].grad = torch.zeros_like(self.parameters.tensors[i])
