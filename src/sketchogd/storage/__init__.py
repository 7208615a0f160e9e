"""Memory files.

* `atomic`: files that are either whole or not there
* `file`: one safetensors file per memory
* `restore`: from a file's contents back to a memory, checked against the model
"""

from .file import FORMAT, read, write

__all__ = ["FORMAT", "read", "write"]
