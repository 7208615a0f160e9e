"""Which public names the API pages must have: those that the package and its documented modules export."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

MODULES = ("sketchogd", "sketchogd.distributed", "sketchogd.theory", "sketchogd.privacy", "sketchogd.lab")
"""Modules whose `__all__` is documented."""
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


def documented(folder: Path) -> set[str]:
    """What the pages in a folder document: full names, `sketchogd.protect.protect`."""
    return {name for page in folder.glob("*.md") for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))}


def missing(found: set[str]) -> Iterator[str]:
    """The public names that are not among those found, as `module.name`."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, ModuleType):
                if value.__name__ not in (*MODULES, *found):
                    yield value.__name__
            elif not {f"{value.__module__}.{value.__qualname__}", value.__module__} & found:
                yield f"{module_name}.{name}"


def unknown(found: set[str]) -> Iterator[str]:
    """The documented names that do not exist; those of other frameworks are left to mkdocstrings."""
    for name in sorted(found):
        if name.startswith("sketchogd.integrations."):
            continue
        try:
            importlib.import_module(name)
        except ImportError:
            module, _, attribute = name.rpartition(".")
            if not hasattr(importlib.import_module(module), attribute):
                yield name
