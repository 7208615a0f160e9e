"""A team of several processes: who they are, how a sketch is split over them, how their examples come together."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from .. import __version__
from ..errors import ProtectionError
from ..memory import GradientMemory, Memory
from ..model.layers import TRANSPOSED, Layer, find_layers
from ..model.parameters import ProtectedParameters
from ..storage import atomic, file, restore
from . import checkpoint
from .agreement import require_same
from .group import Group
from .observe import Sharing, sharing_for
from .samplers import own_examples
from .shards import FlatShard, ParameterShards, gathered, gathered_rows, mesh_of
from .team import Batch, Team


def _group_of(mesh: DeviceMesh) -> dist.ProcessGroup:
    """The processes of a mesh."""
    if mesh.ndim == 1:
        return mesh.get_group(0)
    if mesh.size() == dist.get_world_size() and dist.group.WORLD is not None:
        return dist.group.WORLD
    raise ValueError(
        f"the model's mesh of {mesh.ndim} dimensions has {mesh.size()} of {dist.get_world_size()} processes; pass "
        "group=, a process group of just these: torch.distributed.new_group(mesh.mesh.flatten().tolist())"
    )


def _has_split_inputs(layer: Layer) -> bool:
    return layer.kind in TRANSPOSED and not layer.tokens


class Processes(Team):
    """The processes of a process group: the given one, that of the parameters' device mesh (FSDP2), or the default one.

    Args:
        parameters: the protected parameters.
        process_group: the group; None for the mesh's or the default one. Raises ProtectionError if there is none.
        shard: whether a gradient sketch is split, each process keeping p / R of its columns.
        settings: what else was asked for. All this must be the same in all processes (ValueError).
    """

    def __init__(
        self,
        parameters: ProtectedParameters,
        process_group: dist.ProcessGroup | None,
        shard: bool,
        settings: Mapping[str, Any],
    ) -> None:
        mesh = mesh_of(parameters.tensors)
        if process_group is None and mesh is not None:
            process_group = _group_of(mesh)
        if process_group is None:
            if not dist.is_initialized():
                raise ProtectionError(
                    "shard=True needs several processes: start them with torchrun and call "
                    "torch.distributed.init_process_group() before so.protect"
                )
            process_group = dist.group.WORLD
        assert process_group is not None
        self.parameters = parameters
        self.group = Group(process_group, parameters.device)
        known = zip(parameters.names, parameters.shapes, parameters.tensors, strict=True)
        told = [f"{name} {tuple(shape)} {t.dtype}" for name, shape, t in known]
        require_same(self.group, {"sketchogd": __version__, "shard": shard, **settings, "parameters": told})
        if parameters.split:
            shards = self.group if mesh.ndim == 1 else Group(mesh.get_group(mesh.ndim - 1), parameters.device)
            parameters.held_in(ParameterShards(parameters, shards, self.group))
        elif shard:
            parameters.held_in(FlatShard(parameters.p, self.group))

    sharing: Sharing

    def of(self, parameters: ProtectedParameters) -> Team:
        """See `Team`; parameters and sketches are whole in every process."""
        return Processes(parameters, self.group.process_group, False, {})

    def require_fit(self, memory: Memory) -> None:
        """See `Team`: gradient sketches, and layer memories that are whole in every process."""
        if isinstance(memory, GradientMemory):
            return
        anchor = memory.rule.anchor
        if self.parameters.split and anchor is not None and anchor.in_span:
            stored = [layer.name for layer in find_layers(self.parameters, True) if _has_split_inputs(layer)]
            if stored:
                raise ValueError(
                    f"the weight of {stored[0]!r} is stored as (inputs, outputs), so FSDP2 splits it over its inputs, "
                    'and no process could tell its coordinates alone; anchor_dtype="span" needs them. Use '
                    'anchor_dtype="int8"'
                )
        if isinstance(self.parameters.columns, FlatShard):
            raise ValueError(
                "shard=True is for gradient sketches; a layer memory is small: every process keeps all of it"
            )

    def share(self, memory: Memory) -> None:
        """See `Team`; the settings must be the same in all processes."""
        meta = memory.state_dict()["meta"]
        require_same(self.group, {f"memory's {key}": value for key, value in meta.items() if key != "examples"})
        self.sharing = sharing_for(memory, self.group)

    def limit(self, batches: Any, examples: int | None) -> int | None:
        """See `Team`; what a DistributedSampler repeats is padding."""
        own = own_examples(batches)
        return examples if own is None else own if examples is None else min(own, examples)

    def observe(self, memory: Memory, batches: Iterable[Batch], outdate: Callable[[], None]) -> None:
        """See `Sharing`."""
        self.group.same_buffers(self.parameters.model)
        self.sharing.observe(memory, batches, outdate)

    def complete(self, memory: Memory) -> None:
        """See `Sharing`."""
        self.sharing.complete(memory)

    # ---------------------------------------------------------------- files

    def to_checkpoint(
        self, memory: Memory, meta: dict[str, Any], tensors: dict[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The state with names and shapes that do not depend on what was observed, split tensors as DTensors."""
        meta, tensors = checkpoint.padded(memory, meta, tensors)
        return meta, checkpoint.as_dtensors(self.parameters, tensors, self.group)

    def from_checkpoint(
        self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """This process's part of a state from `to_checkpoint`, or from a file."""
        meta, tensors = restore.unpadded(meta, tensors)
        return meta, checkpoint.as_local(self.parameters, tensors)

    def require_writable(self, path: str | os.PathLike[str]) -> None:
        """See `Team`; process 0 writes."""

        def check() -> None:
            if self.group.rank == 0:
                atomic.require_writable(path)

        self._all_or_none(check, f"writing {os.fspath(path)}")

    def save(self, path: str | os.PathLike[str], meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Process 0 writes one file; split tensors come to it row by row, or one parameter after the other."""
        whole: dict[str, Tensor | None] = dict(tensors)
        split, columns = checkpoint.with_rows(self.parameters), self.parameters.columns
        for name, t in tensors.items():
            if name in split and isinstance(columns, ParameterShards):
                whole[name] = gathered_rows(t, self.parameters.shapes[split[name]][0], columns.group)
            elif (columns.width < self.parameters.p or self.group.size > 1) and checkpoint.has_columns(
                self.parameters, name
            ):
                whole[name] = gathered(columns, t, self.group)

        def write() -> None:
            if self.group.rank == 0:
                file.write(path, meta, {name: t for name, t in whole.items() if t is not None})

        self._all_or_none(write, f"writing {os.fspath(path)}")

    def read(self, path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The contents of a file, which every process must be able to read."""
        found: list[tuple[dict[str, Any], dict[str, Tensor]]] = []
        self._all_or_none(lambda: found.append(file.read(path)), f"reading {os.fspath(path)}")
        return found[0]

    def _all_or_none(self, action: Any, what: str) -> None:
        """Do something here; where it failed in any process, raise in all."""
        error: Exception | None = None
        try:
            action()
        except Exception as caught:
            error = caught
        failed = [r for r, code in enumerate(self.group.numbers(error is not None)) if code]
        if error is not None:
            raise error
        if failed:
            raise ProtectionError(f"{what} failed in process {failed[0]} of {self.group.size}; its own error says why")
