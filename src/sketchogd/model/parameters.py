"""The protected parameters of a model as one vector of length p: an ordered, named subset, flattened and concatenated.

Parameters may have any real dtypes; the vector is float32, or float64 if every parameter is. If parameters are sharded
over processes (DTensors, as in FSDP2), each process has its own part of the vector.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import ProtectionError
from ..linalg.stacks import portions
from ..sketch.columns import Columns, Whole

T = TypeVar("T")

Selection = str | nn.Module | Sequence[str | nn.Module] | Callable[[str, nn.Parameter], bool] | None
"""Which parameters to protect.

None (all that require gradients), names or globs ("!glob" excludes), modules, or a predicate (name, parameter) → bool.
"""


def local(t: Tensor) -> Tensor:
    """Return the part of a tensor that is in this process, without a copy: of a DTensor its shard, otherwise all."""
    module = sys.modules.get("torch.distributed.tensor")  # importing it is slow; if nobody did, there are no DTensors
    return t.to_local() if module is not None and isinstance(t, module.DTensor) else t


def _reshard(model: nn.Module) -> None:
    """Reshard the parameters of an FSDP2 model, because a forward pass may leave gathered parameters in it."""
    module = sys.modules.get("torch.distributed.fsdp")
    for part in model.modules() if module is not None else ():
        if isinstance(part, module.FSDPModule):  # type: ignore[union-attr]
            part.reshard()


def excluding(*parts: str | nn.Module) -> Callable[[str, nn.Parameter], bool]:
    """Select all parameters except those of the given modules and those whose names match the given globs.

    A glob may also match the name of a module: "heads" excludes "heads.0.weight".

    >>> model = nn.ModuleDict({"body": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
    >>> ProtectedParameters(model, excluding(model["head"])).names
    ('body.weight', 'body.bias')
    """
    held = {id(p) for part in parts if isinstance(part, nn.Module) for p in part.parameters()}
    globs = [part for part in parts if isinstance(part, str)]
    return lambda name, parameter: id(parameter) not in held and not any(_matches(name, glob) for glob in globs)


class ProtectedParameters:
    """An ordered, named subset of a model's parameters, in the order of `model.named_parameters()`.

    A tied parameter counts once, under its first name. `names`, `shapes` and `p` describe the vector, and `places` says
    where each parameter is in it; `offsets` and `width` describe its part in this process, `columns` the part of a
    gradient sketch's rows; `split` is True if the parameters are DTensors.

    Raises:
        ValueError: nothing is selected, a glob matches nothing, or a parameter is complex or has no values yet.
    """

    def __init__(self, model: nn.Module, selection: Selection = None) -> None:
        self.model = model
        self.selection = selection
        chosen = _select(model, selection)
        for name, parameter in chosen:
            _require_values(name, parameter)
            if parameter.is_complex():
                raise ValueError(
                    f"parameter {name!r} is complex ({parameter.dtype}); only real ones can be protected. "
                    f'Leave it out: parameters=so.excluding("{name}")'
                )
        self.names: tuple[str, ...] = tuple(name for name, _ in chosen)
        self.tensors: tuple[nn.Parameter, ...] = tuple(parameter for _, parameter in chosen)
        self._ids = frozenset(map(id, self.tensors))
        self.shapes: tuple[torch.Size, ...] = tuple(parameter.shape for parameter in self.tensors)
        self._local_shapes = [local(parameter.detach()).shape for parameter in self.tensors]
        self._sizes = [shape.numel() for shape in self._local_shapes]
        self.offsets: tuple[int, ...] = _offsets(self._sizes)
        self.width: int = self.offsets[-1]
        whole = _offsets(shape.numel() for shape in self.shapes)
        self.places: tuple[slice, ...] = tuple(map(slice, whole, whole[1:]))
        self.p: int = whole[-1]
        self.columns: Columns = Whole(self.p)
        self.split: bool = any(local(parameter) is not parameter for parameter in self.tensors)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the vector."""
        return torch.float64 if all(t.dtype == torch.float64 for t in self.tensors) else torch.float32

    @property
    def device(self) -> torch.device:
        """The device of the vector: that of the first parameter."""
        return self.tensors[0].device

    def held_in(self, columns: Columns) -> None:
        """Set which columns of a gradient sketch are in this process."""
        self.columns = columns

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, parameter: object) -> bool:
        return id(parameter) in self._ids  # of tensors that live as long as this does

    def same_as(self, other: "ProtectedParameters") -> bool:
        """Whether these are the same tensors, by the same names, in the same shapes."""
        return (self.names, self.shapes) == (other.names, other.shapes) and all(
            a is b for a, b in zip(self.tensors, other.tensors, strict=True)
        )

    def slices(self) -> Iterable[tuple[nn.Parameter, slice]]:
        """Yield each parameter with its slice of the vector."""
        for t, start, stop in zip(self.tensors, self.offsets, self.offsets[1:], strict=False):
            yield t, slice(start, stop)

    def flatten(self, values: Sequence[Tensor | None] | None = None, out: Tensor | None = None) -> Tensor:
        """Concatenate the parameters, or tensors shaped like them (None stands for zeros), to a vector (width,).

        >>> parameters = ProtectedParameters(nn.Linear(2, 1))
        >>> parameters.flatten([torch.ones(1, 2), None])
        tensor([1., 1., 0.])
        """
        out = torch.empty(self.width, dtype=self.dtype, device=self.device) if out is None else out
        given = [parameter.detach() for parameter in self.tensors] if values is None else values
        pairs = list(zip(self.unflatten(out), given, strict=True))
        missing = [piece for piece, value in pairs if value is None]
        if missing:
            torch._foreach_zero_(missing)
        held = [(piece, local(value).to_dense().detach()) for piece, value in pairs if value is not None]
        if held:
            torch._foreach_copy_([piece for piece, _ in held], [value.reshape(piece.shape) for piece, value in held])
        return out

    def unflatten(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector (width,) with the shapes that the parameters have in this process.

        Raises ValueError for a vector of another length.
        """
        if vector.shape != (self.width,):
            raise ValueError(f"expected a vector of length {self.width}, got shape {tuple(vector.shape)}")
        pairs = zip(vector.split(self._sizes), self._local_shapes, strict=True)
        return [piece if len(shape) == 1 else piece.view(shape) for piece, shape in pairs]

    def row(self, values: Sequence[Tensor | None]) -> Tensor:
        """Concatenate whole tensors, one per parameter (None stands for zeros), to a vector (p,) in this process."""
        out = torch.zeros(self.p, dtype=self.dtype, device=self.device)
        for place, value in zip(self.places, values, strict=True):
            if value is not None:
                out[place] = value.to_dense().detach().reshape(-1)
        return out

    def portions(self) -> Iterator[list[int]]:
        """Yield the places of a few parameters at a time, for work on many of them that needs room."""
        itemsize = self.dtype.itemsize
        return portions([itemsize * size for size in self._sizes], self.device)

    @torch.no_grad()
    def add_(self, vector: Tensor, alpha: float = 1.0) -> None:
        """Add alpha · vector to the parameters, in place and without another copy of the model."""
        weights = [local(t) for t in self.tensors]
        pieces = [piece.to(t.device) for piece, t in zip(self.unflatten(vector), weights, strict=True)]
        torch._foreach_add_(weights, pieces, alpha=alpha)

    def reshard(self) -> None:
        """Free parameters that a forward pass of FSDP2 has gathered, and put the split ones back in their place."""
        if self.split:
            _reshard(self.model)

    def rows(self, index: int) -> slice:
        """Return which rows (of its first dimension) of a parameter are in this process."""
        shape = self.shapes[index]
        if not self.split:
            return slice(0, shape[0] if shape else 1)
        row, part = shape[1:].numel(), self.columns.ranges[index]
        start = (part.start - self.places[index].start) // row if row else 0
        return slice(start, start + self._local_shapes[index][0])

    def anywhere(self, flag: bool) -> bool:
        """Return whether it is so in this process or, where parameters are split, in any; then all of them ask."""
        return self.most(int(flag)) > 0

    def most(self, n: int) -> int:
        """Return a number or, where parameters are split, the largest of those of all processes."""
        return int(self.columns.largest(n)) if self.split else n

    def in_step(self, action: Callable[[], T]) -> T:
        """Return what `action` returns; where parameters are split and it fails in any process, raise in all.

        Processes that hold parts of the same parameters must make the same passes through the model.
        """
        if not self.split:
            return action()
        error: Exception | None = None
        try:
            found = action()
        except Exception as caught:
            error = caught
        failed = self.anywhere(error is not None)
        if error is not None:
            raise error
        if failed:
            raise ProtectionError("another process could not go on with its examples; its own error says why")
        return found

    def require_unchanged(self) -> None:
        """Raise ProtectionError if the selected parameters are no longer those of the model."""
        self.reshard()
        present = dict(self.model.named_parameters(remove_duplicate=False))
        for name, parameter, shape in zip(self.names, self.tensors, self.shapes, strict=True):
            found = present.get(name)
            if found is None:
                what = "is gone from the model"
            elif found is not parameter:
                what = "was replaced by another tensor"
            elif found.shape != shape:
                what = f"had shape {tuple(shape)} and has {tuple(found.shape)}"
            elif not found.requires_grad:
                what = "no longer requires gradients"
            else:
                continue
            raise ProtectionError(
                f"the model changed since it was protected: parameter {name!r} {what}. Call protection.detach() and "
                "protect the model again; a saved memory can be loaded if names and shapes fit"
            )

    def require_gradients(self) -> None:
        """Raise ProtectionError in inference mode, whose tensors no later step may use."""
        if torch.is_inference_mode_enabled():
            raise ProtectionError("remembering and loading need gradients: call them outside torch.inference_mode()")

    def newcomers(self) -> list[str]:
        """Return the names of parameters that would be selected by now, and are not among these: added, or unfrozen."""
        mine = {id(t) for t in self.tensors}
        return [name for name, parameter in _select(self.model, self.selection) if id(parameter) not in mine]

    def describe(self) -> list[dict[str, Any]]:
        """Return names and shapes in the form in which files store them."""
        return [{"name": n, "shape": list(s)} for n, s in zip(self.names, self.shapes, strict=True)]


def _require_values(name: str, parameter: nn.Parameter) -> None:
    """Raise ValueError for a parameter that training cannot change as it is: lazy, on the meta device, inference."""
    if isinstance(parameter, nn.UninitializedParameter):
        raise ValueError(
            f"parameter {name!r} has no shape yet, since its module is lazy: run one batch through the model, make the "
            "optimizer, and protect then"
        )
    if parameter.is_meta:
        raise ValueError(
            f"parameter {name!r} is on the meta device and has no values: load the weights first, for instance with "
            "model.to_empty(device=...) and load_state_dict, make the optimizer, and protect then"
        )
    if parameter.is_inference():
        raise ValueError(
            f"parameter {name!r} was made in torch.inference_mode() and cannot be trained: build or load the model "
            "outside of it"
        )


def _offsets(sizes: Iterable[int]) -> tuple[int, ...]:
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return tuple(offsets)


def _matches(name: str, glob: str) -> bool:
    return fnmatchcase(name, glob) or fnmatchcase(name, glob + ".*")


def _select(model: nn.Module, selection: Selection) -> list[tuple[str, nn.Parameter]]:
    unique = list(model.named_parameters())
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    keep = _predicate(model, selection, [name for names in aliases.values() for name in names])
    chosen = [(name, p) for name, p in unique if p.requires_grad and any(keep(alias, p) for alias in aliases[id(p)])]
    if not chosen:
        raise ValueError(
            f"no parameter to protect: of {len(unique)} parameters, {sum(p.requires_grad for _, p in unique)} require "
            f"gradients and none of these is selected by {selection!r}"
        )
    return chosen


def _predicate(model: nn.Module, selection: Selection, names: list[str]) -> Callable[[str, nn.Parameter], bool]:
    if selection is None:
        return lambda name, parameter: True
    if callable(selection) and not isinstance(selection, nn.Module):
        return selection
    parts = [selection] if isinstance(selection, (str, nn.Module)) else list(selection)
    held = {id(p) for part in parts if isinstance(part, nn.Module) for p in part.parameters()}
    globs = [part for part in parts if isinstance(part, str)]
    wanted = [glob for glob in globs if not glob.startswith("!")]
    unwanted = [glob[1:] for glob in globs if glob.startswith("!")]
    for glob in wanted + unwanted:
        if not any(_matches(name, glob) for name in names):
            shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
            raise ValueError(f"no parameter of the model matches {glob!r}; it has {shown}")
    everything = not wanted and not held

    def keep(name: str, parameter: nn.Parameter) -> bool:
        inside = everything or id(parameter) in held or any(_matches(name, glob) for glob in wanted)
        return inside and not any(_matches(name, glob) for glob in unwanted)

    return keep
