"""The module inside its wrappers, whose parameters are the same: DDP, DataParallel, torch.compile, Fabric."""

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_CHILDREN = ("_orig_mod", "_forward_module")
"""The only child of a wrapper of torch.compile, and what a wrapper of Fabric calls."""


def unwrapped_model(model: nn.Module, group: "ProcessGroup | None" = None) -> tuple[nn.Module, "ProcessGroup | None"]:
    """Return the module inside all wrappers, and the given process group or, in its absence, that of DDP."""
    while True:
        children = dict(model.named_children())
        wrapped = next((name for name in _CHILDREN if name in children), None)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            group = model.process_group if group is None else group
            model = model.module
        elif isinstance(model, nn.DataParallel):
            model = model.module
        elif wrapped is not None:
            model = children[wrapped]
        else:
            return model, group
