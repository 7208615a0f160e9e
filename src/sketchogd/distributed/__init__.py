"""More than one process: exact merging, sketches split by columns, FSDP2, all on torch.distributed.

`so.protect` on a DDP or FSDP2 model uses this by itself; see docs/distributed.md.

* `launch`, `samplers`: joining the processes that torchrun started, and dealing out examples
* `group`: a process group, and the few collectives that are used
* `team`: what a `Protection` asks of its processes; the team of one
* `agreement`: whether all processes have the same settings
* `processes`: the team of several
* `shards`: how the columns of a gradient sketch are split
* `observe`: how the examples of several processes come to one memory
* `checkpoint`: states for torch.distributed.checkpoint
* `cost`: bytes moved and kept, as formulas
"""

from . import cost
from .group import Group
from .launch import start
from .samplers import deal
from .team import Alone, Team

__all__ = ["Alone", "Group", "Team", "cost", "deal", "start"]
