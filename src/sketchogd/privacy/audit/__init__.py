"""What a memory reveals: attacks by someone who has the weights and the memory, with baselines.

* `membership`: what a memory says of an example, and what the weights say
* `reconstruction`: inputs that can be read off a memory
* `scores`: how well an attack tells members from others, and what a guarantee allows
* `report`: all of it, for a protection
"""

from .report import Audit, audit
from .scores import Attack, allowed, allowed_area

__all__ = ["Attack", "Audit", "allowed", "allowed_area", "audit"]
