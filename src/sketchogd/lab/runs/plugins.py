"""Plugins: modules or files that register methods, streams or measurements of a user when they are imported."""

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType


def load(plugins: Iterable[str]) -> None:
    """Import plugins that are not imported yet.

    Args:
        plugins: names of modules, or paths of Python files (those that end with .py).

    Raises:
        ImportError: a plugin does not exist, or fails while it is imported; the message says where.
    """
    for plugin in plugins:
        if plugin.endswith(".py"):
            load_file(Path(plugin))
        else:
            importlib.import_module(plugin)


def load_file(path: Path) -> ModuleType:
    """The module of a Python file, imported once per process.

    Its folder is searched for what it imports, as Python does for a script.

    Raises:
        ImportError: it does not exist, or fails while it is imported.
    """
    path = path.resolve()
    if not path.is_file():
        raise ImportError(f"{path}: there is no such Python file")
    # Two files of one name are two modules; the name is the same in every process.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        raise ImportError(f"{path}, line {line}: {type(error).__name__}: {error}") from error
    return module
