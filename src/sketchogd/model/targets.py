"""What targets mean for the outputs of a model: classes, weights of logits, or values; errors for those that fit none.

Letters: C classes; the shapes of an example are those without the batch dimension.
"""

from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]


def class_axis(logits: Shape, target: Tensor) -> int | None:
    """Return the axis of one example's logits that its target numbers; None if the target has a value for each logit.

    Integer targets of shape S number the classes of logits (*S, C) or (C, *S). Where both fit it is (*S, C) for one
    axis S (tokens) and (C, *S) for several (pixels). A single logit, floats, booleans, and integers with the shape of
    the logits are values. Raises ValueError for shapes that do not fit each other.

    >>> pixels, tokens = torch.zeros(8, 8, dtype=torch.long), torch.zeros(7, dtype=torch.long)
    >>> class_axis((21, 8, 8), pixels), class_axis((7, 21), tokens)
    (0, -1)
    """
    shape, count = tuple(target.shape), _count(logits)
    if count == 1 and target.numel() == 1:
        return None
    last, first = len(logits) > 0 and logits[:-1] == shape, len(logits) > 0 and logits[1:] == shape
    if not target.is_floating_point() and target.dtype != torch.bool and (last or first):
        return -1 if last and not (first and len(shape) > 1) else 0
    if target.numel() == count and (logits == shape or logits == (*shape, 1) or (*logits, 1) == shape):
        return None
    if last or first:
        raise ValueError(
            f"targets are {target.dtype}, and outputs {logits} an example have classes, whose numbers are integers: "
            "pass targets.long()"
        )
    raise ValueError(
        f"targets {shape} an example do not fit outputs {logits}: expected the number of a class for all but the axis "
        "of classes, or a value for every output; pass output=, a function of one example's output and target that "
        "gives a scalar, such as so.every_logit, which needs no targets"
    )


def _count(shape: Shape) -> int:
    return int(torch.Size(shape).numel())


def require_targets(logits: Shape, targets: Any, name: str, sums_to_one: bool) -> None:
    """Raise ValueError, with what to do, for targets of a batch that mean nothing for its outputs.

    Args:
        logits: the shape of one example's logits.
        targets: those of a batch.
        name: of the function of outputs that needs the targets.
        sums_to_one: whether values must be probabilities of classes.
    """
    if not isinstance(targets, Tensor):
        raise ValueError(
            f"{name} needs one tensor of targets; got {type(targets).__name__}. Pass output=, a function of one "
            "example's output and target that gives a scalar"
        )
    if not len(targets):
        return
    axis = class_axis(logits, targets[0])
    if axis is not None:
        _require_in_range(targets, logits[axis])
    elif sums_to_one and (_count(logits) == 1 or not _sum_to_one(targets)):
        raise ValueError(
            f"{name} is for classes: their numbers, or probabilities that sum to one. For one output, several labels "
            "or regression pass output=so.true_logit or so.every_logit, or a function that gives a scalar"
        )
    elif _count(logits) > 1 and not _sum_to_one(targets) and not bool(((targets == 0) | (targets == 1)).all()):
        raise ValueError(
            f"{name} takes targets for each of {logits} outputs where they say which of them are meant: labels 0 and "
            f"1, or probabilities of classes that sum to one; got {float(targets.min()):g} to "
            f"{float(targets.max()):g}. For regression pass output=so.every_logit, which remembers every output"
        )


def _sum_to_one(targets: Tensor) -> bool:
    near = (targets.double().sum(-1) - 1).abs() < 1e-3
    return targets.ndim > 1 and bool(near.all()) and bool((targets >= 0).all())


def _require_in_range(targets: Tensor, classes: int) -> None:
    largest = targets.flatten(1).amax(1) if targets.ndim > 1 else targets
    bad = (largest >= classes).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"the target of example {bad[0]} is class {int(largest[bad[0]])}, but the model has outputs for {classes} "
            f"classes, 0 to {classes - 1} ({len(bad)} of {len(targets)} examples). Number the classes from 0, or give "
            "the model more outputs; targets below 0 are left out"
        )
