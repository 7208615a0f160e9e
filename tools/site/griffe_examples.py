"""What mkdocstrings calls for every docstring: examples become blocks of code."""

from typing import Any

from griffe import Extension, Object

from tools.site.examples import fenced


class Examples(Extension):
    """Fences the examples of every docstring that griffe reads."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Change the docstring of an object before it is parsed."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
