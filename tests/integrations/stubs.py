"""Stand-ins for what Avalanche imports and a plain training loop never calls: torchvision, wandb and others."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

NAMES = ("torchvision", "wandb", "gdown", "GPUtil", "pytorchcv", "qpsolvers", "sklearn", "quadprog")


class Missing(type):
    """A class of which every attribute is such a class, and that can be subclassed and called."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(name, (), {"__init__": lambda self, *args, **kwargs: None})


class Module(types.ModuleType):
    __path__ = ()  # every name below it may be imported too

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(name, (), {"__init__": lambda self, *args, **kwargs: None})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of these names where nothing else does."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


def import_avalanche():
    """Import Avalanche, whose own imports of these names then succeed; afterwards they are as missing as before."""
    finder = Finder()
    sys.meta_path.append(finder)
    try:
        return importlib.import_module("avalanche.training.supervised")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, Module)]:
            del sys.modules[name]
