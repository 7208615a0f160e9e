"""What the commands share about what they are given.

* `arguments`: the types of options that several commands have
* `completion`: what a shell completes
* `devices`: devices by name, and whether they are here
* `guard`: exit codes, and a user's mistakes as one line
* `help`: the help, readable from 40 columns on
"""

from sketchogd.cli.options import completion
from sketchogd.cli.options.arguments import (
    Budget,
    Data,
    Device,
    Epochs,
    Every,
    Format,
    Jobs,
    Json,
    Out,
    Plugin,
    Seeds,
    SideBySide,
    form_of,
)
from sketchogd.cli.options.devices import devices
from sketchogd.cli.options.guard import FAILED, INTERRUPTED, UNFINISHED, WRONG, friendly

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "UNFINISHED",
    "WRONG",
    "Budget",
    "Data",
    "Device",
    "Epochs",
    "Every",
    "Format",
    "Jobs",
    "Json",
    "Out",
    "Plugin",
    "Seeds",
    "SideBySide",
    "completion",
    "devices",
    "form_of",
    "friendly",
]
