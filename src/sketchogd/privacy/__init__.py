"""Privacy: memories that are differentially private, and an honest measurement of what a memory reveals.

`so.protect(..., privacy=so.Privacy(epsilon, delta))` bounds what each example adds to every sum that is kept, adds
noise to each sum once, and leaves the arithmetic of ε to dp-accounting. Data passes the files in this order:

* `settings`, `units`: the guarantee that is asked for, and whose presence it hides
* `account`: what is spent, and which memories can have a guarantee
* `release`: one release; `layers`, `gradients`: what an example adds, for each kind of memory; `rows`: for one sketch
* `mechanism/`: sums with noise, their accountant, and spectra that know of the noise
* `guarantee`: what files say; `advice`: how many examples a task needs
* `audit/`: attacks, and how well they work
"""

from .advice import examples_needed
from .audit import Audit, audit
from .guarantee import Guarantee
from .settings import Privacy
from .units import Example, Unit, User

__all__ = ["Audit", "Example", "Guarantee", "Privacy", "Unit", "User", "audit", "examples_needed"]
