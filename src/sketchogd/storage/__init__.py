"""Memory files.

* `atomic`: atomic writing of files
* `file`: one safetensors file per memory
* `restore`: a memory from the contents of a file, checked against the model
"""

from .file import FORMAT, read, write

__all__ = ["FORMAT", "read", "write"]
