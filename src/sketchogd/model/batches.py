"""Batches and model outputs: inputs of any structure, outputs as logits, one scalar per example.

Letters: b examples, C logits of one example. A model is only called here; `layers` looks inside it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.data import Dataset

from .targets import class_axis, require_targets

Output = Callable[[Any, Any], Tensor]
"""The scalar of one example, whose gradient is remembered: (its output, its target) → a tensor with one element."""


def true_logit(output: Any, target: Tensor | None) -> Tensor:
    """Return the logit of the true class: what it is for each kind of output and target follows.

    | outputs of an example | target | |
    |---|---|---|
    | (C,) | a class | its logit |
    | (T, C), tokens | (T,) classes | the sum of the logits of the positions' classes |
    | (C, H, W), pixels, or (C, T) | (H, W) or (T,) classes | the same |
    | () or (1,) | a number or class | the output itself: regression, or one logit for two classes |
    | (C,) or (T, C) | as many labels 0 and 1, or probabilities | their sum weighted by these: one-hot classes too |

    Positions with a class below 0 (−100) do not count. Where `remember` calls it, positions of padding do not count
    either, and for a causal language model of transformers, whose labels are those of the inputs, position t has the
    class of the next token (`model.calls`). Raises ValueError for targets that are None or fit none of these.

    >>> true_logit(torch.tensor([0.1, 0.7]), torch.tensor(1))
    tensor(0.7000)
    """
    if target is None:
        raise ValueError(
            "the true logit is that of the target, but the batch has no targets: pass (inputs, targets), or an output= "
            "that needs no targets"
        )
    return _of_target(logits_of(output), target)


def _of_target(logits: Tensor, target: Tensor) -> Tensor:
    axis = class_axis(tuple(logits.shape), target)
    if axis is None:
        return logits.sum() if logits.numel() == 1 else (logits.flatten() * target.flatten().to(logits)).sum()
    chosen = logits.gather(axis, target.clamp_min(0).long().unsqueeze(axis)).squeeze(axis)
    return torch.where(target >= 0, chosen, torch.zeros_like(chosen)).sum()


def log_likelihood(output: Any, target: Tensor) -> Tensor:
    """Return the log-probability of the true class; the sum over positions and their classes as in `true_logit`.

    Also for probabilities of classes as targets. Not for one output, several labels or regression.
    """
    logits = logits_of(output)
    axis = class_axis(tuple(logits.shape), target)
    return _of_target(logits.log_softmax(-1 if axis is None else axis), target)


def every_logit(output: Any, target: Tensor) -> Tensor:
    """Return the sum of all logits.

    As `output=` of a memory it means every logit by itself: a layer memory (whose default it is) takes a backward pass
    per logit or, beyond 16, for 8 random combinations, however many there are; a gradient memory sketches the gradient
    of one random combination Σ ± logit of each example. Positions that are padding or have a label below 0 are left
    out (`model.calls`).
    """
    return logits_of(output).sum()


def logits_of(output: Any) -> Tensor:
    """Return the logits in a model's output: a tensor itself, its "logits" entry or attribute, or its first element.

    Raises TypeError if that is not a tensor.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif isinstance(output, (tuple, list)):
        found = output[0]
    else:
        found = getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the model returned {type(output).__name__}, which has no logits tensor; "
            "pass output=, a function of one example's output and target that gives a scalar"
        )
    return found


def per_example(function: Output, output: Any, targets: Any) -> Tensor:
    """Apply `function` to every example's output and target in a batch; returns (b,).

    Raises ValueError, with what to do, for targets that `true_logit` and `log_likelihood` have no use for.
    """
    if function is every_logit:
        logits = logits_of(output)
        return logits.reshape(len(logits), -1).sum(1)
    if reads_targets(function):
        output = logits_of(output)
        require_checked(function, output.shape[1:], targets)
    plain, places = _only_tensors(output)
    try:
        return vmap(function, (places, places_of_examples(targets)))(plain, targets)
    except RuntimeError:
        b = batch_size(plain)
        pairs = ([map_tensors(lambda t: t[i], value) for value in (plain, targets)] for i in range(b))  # noqa: B023
        return torch.stack([function(o, t).reshape(()) for o, t in pairs])


def reads_targets(function: Output) -> bool:
    """Whether this is an output of ours whose targets are known to be classes, weights or values."""
    return function is true_logit or function is log_likelihood


def require_checked(function: Output, logits: Sequence[int], targets: Any) -> None:
    """Raise ValueError for targets of a batch that `function`, if it reads targets, has no use for.

    Args:
        function: the scalar of an example.
        logits: the shape of one example's logits.
        targets: those of a batch.
    """
    if targets is not None and reads_targets(function):
        require_targets(tuple(logits), targets, function.__name__, function is log_likelihood)


def places_of_examples(tree: Any) -> Any:
    """Return the `in_dims` of torch.func.vmap for a structure of tensors and constants."""
    if isinstance(tree, Tensor):
        return 0
    if isinstance(tree, Mapping):
        return {key: places_of_examples(value) for key, value in tree.items()}
    return tuple(map(places_of_examples, tree)) if isinstance(tree, (tuple, list)) else None


def _only_tensors(output: Any) -> tuple[Any, Any]:
    """An output without what is no tensor, such as a cache, and its `in_dims`; as it is if all are tensors."""
    if not isinstance(output, (Tensor, Mapping, tuple, list)):
        return logits_of(output), 0
    if not isinstance(output, Mapping) or all(isinstance(value, Tensor) for value in output.values()):
        return output, 0
    kept = {key: value for key, value in output.items() if isinstance(value, (Tensor, tuple, list, Mapping))}
    plain = map_tensors(lambda t: t, kept)
    return plain, places_of_examples(plain)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into eval mode inside the block; afterwards, restore each module's own flag."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True


def call(model: nn.Module, inputs: Any, **keywords: Any) -> Any:
    """Return model(inputs); a tuple or list is passed as positional arguments, a mapping as keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**{**inputs, **keywords})
    return model(*inputs, **keywords) if isinstance(inputs, (tuple, list)) else model(inputs, **keywords)


def map_tensors(function: Callable[[Tensor], Any], inputs: Any) -> Any:
    """Apply a function to every tensor in a structure of tuples, lists and mappings; returns the same structure."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {key: map_tensors(function, value) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(map_tensors(function, value) for value in inputs)
    return inputs


def batch_size(inputs: Any) -> int:
    """Return the common first dimension of all tensors in a batch. Raises ValueError if there is none."""
    sizes: set[int] = set()
    map_tensors(lambda t: sizes.add(t.shape[0] if t.ndim else -1), inputs)
    if len(sizes) != 1 or -1 in sizes:
        found = f"first dimensions {sorted(sizes)}" if sizes else f"no tensor in a {type(inputs).__name__}"
        raise ValueError(f"a batch needs tensors with one common first dimension, one entry per example; got {found}")
    return sizes.pop()


def map_tensors_of_output(function: Callable[[Tensor], Tensor], output: Any) -> Any:
    """Like `map_tensors`, for a model's output; an object of another type is reduced to its logits."""
    if isinstance(output, (Tensor, Mapping, tuple, list)):
        return map_tensors(function, output)
    return function(logits_of(output))


def require_batches(batches: Any, examples: Any) -> None:
    """Raise TypeError, with what to do, where one batch came in place of a loader, or targets in place of a number."""
    pair = isinstance(batches, (tuple, list)) and len(batches) == 2 and isinstance(batches[1], Tensor)
    if pair:
        inputs, targets = batches
        same = isinstance(inputs, Tensor) and inputs.shape == targets.shape and inputs.dtype == targets.dtype
        alike = isinstance(inputs, Tensor) and inputs.shape[1:] == targets.shape[1:] and inputs.dtype == targets.dtype
        pair = not same and not alike and isinstance(inputs, (Tensor, Mapping))
    if (
        pair
        or isinstance(batches, (Tensor, Mapping))
        or not isinstance(batches, (Iterable, Dataset))
        or isinstance(examples, (Tensor, Mapping, tuple, list))
    ):
        raise TypeError(
            "remember takes a loader, a dataset or a list of batches, and then how many examples to take. One batch "
            "alone is remember([(inputs, targets)]), or remember([batch]) for a mapping"
        )


def limited(batches: Iterable[Any], examples: int | None, most: int | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield (inputs, targets) of each batch, up to the given number of examples (None: all).

    Args:
        batches: batches as `split_batch` takes them.
        examples: how many examples are taken.
        most: how many inputs the model takes at most, if that is known.
    """
    left = examples
    for batch in batches:
        if left is not None and left <= 0:
            break
        inputs, targets = split_batch(batch, most)
        if left is not None:
            take = min(left, batch_size(inputs))
            inputs, targets = (map_tensors(lambda t: t[:take], value) for value in (inputs, targets))  # noqa: B023
            left -= take
        yield inputs, targets


def split_batch(batch: Any, most: int | None = None) -> tuple[Any, Any]:
    """Split a batch into (inputs, targets): a pair, a mapping with "labels", or a tensor of inputs, with targets None.

    Of (inputs, targets, …) the rest is left out if it is a number for each example (the task of Avalanche, an index)
    and the model takes one input, so that it cannot be another. Raises TypeError for anything else.

    Args:
        batch: what a loader yields.
        most: how many inputs the model takes at most, None if that is not known.

    >>> split_batch({"input_ids": 1, "labels": 2})
    ({'input_ids': 1}, 2)
    """
    if isinstance(batch, Mapping):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        return inputs, batch.get("labels")
    if isinstance(batch, Tensor):
        return batch, None
    several = isinstance(batch, (tuple, list))
    if several and (len(batch) == 2 or (len(batch) > 2 and most == 1 and all(map(_is_number, batch[2:])))):
        return batch[0], batch[1]
    if several and len(batch) > 2:
        raise TypeError(
            f"a batch of {len(batch)} does not say which are inputs and which targets: yield ((input, input), targets) "
            "for a model that takes both inputs, or (inputs, targets) without the rest, such as "
            "protection.remember(((x, y) for x, y, _ in loader))"
        )
    raise TypeError(
        f'a batch is (inputs, targets), a mapping with "labels", or a tensor of inputs; got {type(batch).__name__}'
        + (f" of length {len(batch)}" if several else "")
    )


def _is_number(value: Any) -> bool:
    """Whether this is one whole number for each example, or for all."""
    if not isinstance(value, Tensor):
        return value is None or isinstance(value, (int, str))
    return value.ndim <= 1 and not value.is_floating_point()
