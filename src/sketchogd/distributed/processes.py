"""A team of several processes: who they are, how a sketch is split over them, how their examples come together."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..errors import ProtectionError
from ..memory import GradientMemory, Memory
from ..model.parameters import ProtectedParameters
from ..storage import file
from . import checkpoint
from .group import Group
from .observe import Sharing, sharing_for
from .samplers import own_examples
from .shards import FlatShard, ParameterShards, gathered, mesh_of
from .team import Batch, Team


class Processes(Team):
    """The processes of a process group: the given one, that of the parameters' device mesh (FSDP2), or the default one.

    Args:
        parameters: the protected parameters, which must be the same in all processes (ValueError).
        process_group: the group; None for the mesh's or the default one. Raises ProtectionError if there is none.
        shard: whether a gradient sketch is split, each process keeping p / R of its columns.
    """

    def __init__(self, parameters: ProtectedParameters, process_group: dist.ProcessGroup | None, shard: bool) -> None:
        mesh = mesh_of(parameters.tensors)
        if process_group is None and mesh is not None:
            process_group = mesh.get_group(0)
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
        self.require_same(parameters.describe(), "parameters")
        if parameters.split:
            parameters.held_in(ParameterShards(parameters, self.group))
        elif shard:
            parameters.held_in(FlatShard(parameters.p, self.group))

    sharing: Sharing

    def of(self, parameters: ProtectedParameters) -> Team:
        """See `Team`; parameters and sketches are whole in every process."""
        return Processes(parameters, self.group.process_group, shard=False)

    def require_same(self, plain: Any, what: str) -> None:
        """Raise ValueError if plain data is not the same in all processes."""
        digest = hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=7).digest()
        found = self.group.numbers(int.from_bytes(digest, "little"))
        others = [r for r, number in enumerate(found) if number != found[0]]
        if others:
            raise ValueError(
                f"all processes must protect the same way; process {others[0]} has other {what} than process 0. Build "
                "model and memory in every process from the same settings and seed"
            )

    def require_fit(self, memory: Memory) -> None:
        """See `Team`: split parameters have gradient memories that project."""
        if self.parameters.split and isinstance(memory, GradientMemory) and memory.rule.anchor is not None:
            raise ValueError(
                "a pull keeps a copy of the weights, which cannot be stored where those are split (FSDP2); use "
                "rule=so.Project()"
            )
        if isinstance(memory, GradientMemory):
            return
        if self.parameters.split:
            raise ValueError(
                "a layer memory needs whole weights, and those of this model are split (FSDP2); use a gradient sketch "
                "such as so.ProductSketch(rank), which is split the same way"
            )
        if isinstance(self.parameters.columns, FlatShard):
            raise ValueError(
                "shard=True is for gradient sketches; a layer memory is small: every process keeps all of it"
            )

    def share(self, memory: Memory) -> None:
        """See `Team`; the settings must be the same in all processes."""
        meta = memory.state_dict()["meta"]
        self.require_same({key: value for key, value in meta.items() if key != "examples"}, "settings of the memory")
        self.sharing = sharing_for(memory, self.group)

    def limit(self, batches: Any, examples: int | None) -> int | None:
        """See `Team`; what a DistributedSampler repeats is padding."""
        own = own_examples(batches)
        return examples if own is None else own if examples is None else min(own, examples)

    def observe(self, memory: Memory, batches: Iterable[Batch], outdate: Callable[[], None]) -> None:
        """See `Sharing`."""
        outdate()
        self.group.same_buffers(self.parameters.model)
        self.sharing.observe(memory, batches)

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
        return checkpoint.unpadded(meta, checkpoint.as_local(self.parameters, tensors))

    def save(self, path: str | os.PathLike[str], meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Process 0 writes one file; split tensors come to it row by row."""
        whole: dict[str, Tensor | None] = dict(tensors)
        if self.parameters.columns.width < self.parameters.p or self.group.size > 1:
            for name in tensors:
                if checkpoint.has_columns(self.parameters, name):
                    whole[name] = gathered(self.parameters.columns, tensors[name], self.group)

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
