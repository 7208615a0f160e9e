"""Batches and model outputs: inputs of any structure, outputs as logits, one scalar per example.

Letters: b examples, C logits of one example. A model is only called here; `layers` looks inside it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

Output = Callable[[Any, Any], Tensor]
"""The scalar of one example, whose gradient is remembered: (its output, its target) → a tensor with one element."""


def true_logit(output: Any, target: Tensor | None) -> Tensor:
    """Return the logit of the true class.

    For sequences (T, C) with targets (T,): its sum over positions with target >= 0. Raises ValueError without a target.

    >>> true_logit(torch.tensor([0.1, 0.7]), torch.tensor(1))
    tensor(0.7000)
    """
    if target is None:
        raise ValueError(
            "the true logit is that of the target, but the batch has no targets: pass (inputs, targets), or an output= "
            "that needs no targets"
        )
    logits = logits_of(output)
    chosen = logits.gather(-1, target.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return torch.where(target >= 0, chosen, torch.zeros_like(chosen)).sum()


def log_likelihood(output: Any, target: Tensor) -> Tensor:
    """Return the log-probability of the true class; for sequences its sum over positions with target >= 0."""
    return true_logit(logits_of(output).log_softmax(-1), target)


def every_logit(output: Any, target: Tensor) -> Tensor:
    """Return the sum of all logits; as `output=` of a layer memory (the default) it means every logit by itself."""
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
    """Apply `function` to every example's output and target in a batch; returns (b,)."""
    if function is every_logit:
        return logits_of(output).flatten(1).sum(1)
    plain = output if isinstance(output, (Tensor, Mapping, tuple, list)) else logits_of(output)
    try:
        return vmap(function, (0, None if targets is None else 0))(plain, targets)
    except RuntimeError:
        b = batch_size(plain)
        pairs = ([map_tensors(lambda t: t[i], value) for value in (plain, targets)] for i in range(b))  # noqa: B023
        return torch.stack([function(o, t).reshape(()) for o, t in pairs])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into eval mode inside the block; afterwards, restore each module's own flag."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def call(model: nn.Module, inputs: Any) -> Any:
    """Return model(inputs); a tuple or list is passed as positional arguments, a mapping as keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


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
        raise ValueError(f"a batch needs tensors with one common first dimension; got {sorted(sizes) or type(inputs)}")
    return sizes.pop()


def map_tensors_of_output(function: Callable[[Tensor], Tensor], output: Any) -> Any:
    """Like `map_tensors`, for a model's output; an object of another type is reduced to its logits."""
    if isinstance(output, (Tensor, Mapping, tuple, list)):
        return map_tensors(function, output)
    return function(logits_of(output))


def limited(batches: Iterable[Any], examples: int | None) -> Iterator[tuple[Any, Any]]:
    """Yield (inputs, targets) of each batch, up to the given number of examples (None: all)."""
    left = examples
    for batch in batches:
        if left is not None and left <= 0:
            break
        inputs, targets = split_batch(batch)
        if left is not None:
            take = min(left, batch_size(inputs))
            inputs, targets = (map_tensors(lambda t: t[:take], value) for value in (inputs, targets))  # noqa: B023
            left -= take
        yield inputs, targets


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Split a batch into (inputs, targets): a pair, a mapping with "labels", or a tensor of inputs, with targets None.

    Raises TypeError for anything else.

    >>> split_batch({"input_ids": 1, "labels": 2})
    ({'input_ids': 1}, 2)
    """
    if isinstance(batch, Mapping):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        return inputs, batch.get("labels")
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(
        f'a batch is (inputs, targets), a mapping with "labels", or a tensor of inputs; got {type(batch).__name__}'
        + (f" of length {len(batch)}" if isinstance(batch, (tuple, list)) else "")
    )
