"""More than one process: exact merging, sketches split by columns, FSDP2, all on torch.distributed.

`so.protect` on a DDP or FSDP2 model uses this by itself; see docs/distributed.md.
"""

from .group import Group
from .launch import start
from .samplers import deal
from .team import Team

__all__ = ["Group", "Team", "deal", "start"]
