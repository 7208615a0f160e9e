"""The tensors that a model computes with in place of its parameters, where FSDP2 splits these over processes.

Before a module runs, FSDP2 gathers its parameters and puts the gathered ones into the module's attributes; afterwards
it puts the split ones back and frees the memory. A gathered parameter is a leaf of the autograd graph. It is known by
the attribute that it is found in, when a function is called with it.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .parameters import local


class Gathered:
    """Which parameter a tensor is that a model computes with: the parameter itself, or what FSDP2 puts in its place.

    Args:
        model: the model, with its own parameters in place; None where these are whole.
        parameters: those that are asked for.
    """

    def __init__(self, model: nn.Module | None, parameters: Iterable[Tensor]) -> None:
        own = {id(t): t for t in parameters}
        self._parameters = dict(own)
        self._tensors: dict[int, Tensor] = {}
        split = {key for key, t in own.items() if local(t) is not t}
        self._places = [
            (module, name, t)
            for module in (model.modules() if split and model is not None else ())
            for name, t in module._parameters.items()
            if t is not None and id(t) in split
        ]

    @staticmethod
    def of_whole(parameters: Iterable[Tensor]) -> "Gathered":
        """Of parameters that are whole in every process, which nothing takes the place of."""
        return Gathered(None, parameters)

    @property
    def replaces(self) -> bool:
        """Whether the model computes with other tensors, which are freed afterwards."""
        return bool(self._places)

    def parameter(self, t: Tensor) -> Tensor | None:
        """The parameter that a tensor is, or is in the place of; None for any other tensor."""
        found = self._parameters.get(id(t))
        if found is None and self._places and isinstance(t, nn.Parameter):
            self._look()
            found = self._parameters.get(id(t))
        return found

    def tensor(self, parameter: Tensor) -> Tensor:
        """What the model last computed with in place of a parameter; the parameter itself where it is whole."""
        return self._tensors.get(id(parameter), parameter)

    def watch(self, run: Callable[[], Any]) -> Any:
        """What `run` returns; `tensor` then knows every parameter that a function was called with."""
        if not self._places:
            return run()
        with _Watch(self):
            return run()

    def _look(self) -> None:
        for module, name, parameter in self._places:
            now = module._parameters.get(name)
            if now is not None and id(now) not in self._parameters:
                self._parameters[id(now)] = parameter
                self._tensors[id(parameter)] = now  # kept, so that no other tensor gets its id


class _Watch(TorchFunctionMode):
    def __init__(self, gathered: Gathered) -> None:
        super().__init__()
        self.gathered = gathered

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in (*args, *kwargs.values()):
            for t in leaf if isinstance(leaf, (tuple, list)) else (leaf,):
                if isinstance(t, nn.Parameter):
                    self.gathered.parameter(t)
        return func(*args, **kwargs)
