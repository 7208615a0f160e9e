"""Calls in which parameters of no layer meet the batch, as a forward pass makes them.

The weights of norms, class tokens, gates or recurrent cells may enter any function, as they are or transformed first
(1 + w, an expanded token, a normalised weight). A recorder follows two kinds of tensors: those that come from the batch
and those made of the watched parameters and constants alone. A call that is given both is a `WatchedCall`, with a
`Recipe` for running it again: its gradient with respect to the parameters needs only its inputs and the sensitivity of
its results.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from .batches import map_tensors
from .gathered import Gathered
from .layers import attention


@dataclass(frozen=True, eq=False)
class Watched:
    """The place of a watched parameter among the arguments of a call."""

    index: int


@dataclass(frozen=True, eq=False)
class OfBatch:
    """A tensor of the batch among the arguments of a call."""

    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Recipe:
    """A function with its arguments, in which parameters and tensors of the batch can be replaced."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    in_place: bool
    """Whether it overwrites its first argument, which then is its result."""

    def run(self, parameters: Sequence[Tensor], of_batch: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """The tensors that the function returns, for these parameters and with `of_batch` of the batch's tensors."""

        def filled(leaf: Any) -> Any:
            if isinstance(leaf, Watched):
                return parameters[leaf.index]
            if isinstance(leaf, OfBatch):
                return of_batch(leaf.tensor)
            return leaf.recipe.run(parameters, of_batch)[leaf.position] if isinstance(leaf, Made) else leaf

        args, kwargs = (mapped(filled, value) for value in (self.args, self.kwargs))
        if self.in_place:
            args = (args[0].clone(), *args[1:])
        result = self.function(*args, **kwargs)
        return [args[0]] if result is None else list(tensors_in(result))

    def leaves(self) -> Iterator[Any]:
        """All arguments, also those of the recipes that it builds on."""
        for leaf in leaves_of((self.args, self.kwargs)):
            if isinstance(leaf, Made):
                yield from leaf.recipe.leaves()
            else:
                yield leaf


@dataclass(frozen=True, eq=False)
class Made:
    """A tensor made of watched parameters and constants: one of the results of a recipe."""

    recipe: Recipe
    position: int


@dataclass(frozen=True, eq=False)
class WatchedCall:
    """A call that was given watched parameters and tensors of the batch."""

    recipe: Recipe
    edges: tuple[GradientEdge | None, ...]
    """Where its results are in the autograd graph; None for one without gradients."""
    shapes: tuple[torch.Size, ...]

    @property
    def indices(self) -> list[int]:
        """Which parameters it was given."""
        return sorted({leaf.index for leaf in self.recipe.leaves() if isinstance(leaf, Watched)})

    @property
    def of_batch(self) -> list[Tensor]:
        """The tensors of the batch that it was given."""
        found = {id(leaf.tensor): leaf.tensor for leaf in self.recipe.leaves() if isinstance(leaf, OfBatch)}
        return list(found.values())

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.recipe.function, "__name__", self.recipe.function))


class _CallRecorder(TorchFunctionMode):
    def __init__(self, watched: Sequence[Tensor], inputs: Any, gathered: Gathered) -> None:
        super().__init__()
        self.calls: list[WatchedCall] = []
        self.values = list(watched)
        self._indices = {id(t): i for i, t in enumerate(watched)}
        self._gathered = gathered
        self._freed = gathered.replaces
        self._of_batch, self._made = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()
        map_tensors(self._mark, inputs)

    def _index(self, t: Tensor) -> int | None:
        """Which of the watched parameters this is; of one that is freed after the module, the value is kept."""
        parameter = self._gathered.parameter(t)
        index = None if parameter is None else self._indices.get(id(parameter))
        if index is not None and t is not self.values[index] and self.values[index] is parameter:
            self.values[index] = t.detach().clone()
        return index

    def _mark(self, t: Tensor) -> Tensor:
        self._of_batch[t] = True
        self._made.pop(t, None)  # it was made of parameters alone until the batch was written into it
        return t

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return attention(*args, **kwargs)
        given = list(tensors_in((args, kwargs)))
        own = any(self._index(t) is not None or t in self._made for t in given)
        batch = any(t in self._of_batch for t in given)
        if not own:
            result = func(*args, **kwargs)
            if batch:
                for t in tensors_in(args[0] if result is None and args else result):
                    self._mark(t)
            return result
        recipe = self._recipe(func, args, kwargs)  # now: the call may overwrite its arguments
        result = func(*args, **kwargs)
        self._note(recipe, list(tensors_in(args[0] if result is None else result)), batch)
        return result

    def _note(self, recipe: Recipe, results: list[Tensor], batch: bool) -> None:
        if batch:
            edges = tuple(get_gradient_edge(t) if t.requires_grad else None for t in results)
            if any(edge is not None for edge in edges):
                self.calls.append(WatchedCall(recipe, edges, tuple(t.shape for t in results)))
        for i, t in enumerate(results):
            if batch:
                self._mark(t)
            elif t.requires_grad and self._index(t) is None:
                self._made[t] = Made(recipe, i)

    def _recipe(self, func: Any, args: Any, kwargs: Any) -> Recipe:
        name = getattr(func, "__name__", "")
        in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name in _OPERATORS

        def described(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            index = self._index(leaf)
            if index is not None:
                return Watched(index)
            if leaf in self._made:
                return self._made[leaf]
            of_batch = leaf in self._of_batch
            kept = leaf.detach().clone() if in_place or (self._freed and not of_batch) else leaf.detach()
            return OfBatch(kept) if of_batch else kept

        return Recipe(func, mapped(described, args), mapped(described, kwargs), in_place)


_OPERATORS = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "div", "pow", "matmul")}


def record_calls(
    watched: Sequence[Tensor], inputs: Any, forward: Callable[[], Any], gathered: Gathered | None = None
) -> tuple[Any, list[WatchedCall], list[Tensor]]:
    """Run `forward` with gradients enabled.

    Args:
        watched: the parameters.
        inputs: the batch, any structure of tensors; `forward` passes it to the model.
        forward: runs the model.
        gathered: knows the parameters where those are split; None for whole ones.

    Returns:
        Its result, every call that is given watched parameters, and the values that these had.
    """
    recorder = _CallRecorder(watched, inputs, gathered or Gathered.of_whole(watched))
    with torch.enable_grad(), recorder:
        result = forward()
    return result, recorder.calls, recorder.values


def leaves_of(tree: Any) -> Iterator[Any]:
    """Everything in nested tuples, lists and mappings."""
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        for each in tree:
            yield from leaves_of(each)
    else:
        yield tree


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    return (leaf for leaf in leaves_of(tree) if isinstance(leaf, Tensor))


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same nested tuples, lists and mappings, with `function` of everything in them."""
    if isinstance(tree, Mapping):
        return {key: mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [mapped(function, value) for value in tree]
    return tuple(mapped(function, value) for value in tree) if isinstance(tree, tuple) else function(tree)
