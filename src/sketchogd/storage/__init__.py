"""Memory files.

* `atomic`: atomic writing of files
* `file`: one safetensors file per memory
* `fingerprint`: whether weights are those that a memory was saved beside
* `restore`: a memory from the contents of a file, checked against the model
"""

from .file import FORMAT, read, write

__all__ = ["FORMAT", "read", "write"]
