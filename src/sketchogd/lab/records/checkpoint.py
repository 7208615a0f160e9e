"""The state of an interrupted run in one safetensors file, without pickle.

A state is a tree of dicts, lists and tuples whose leaves are tensors, numbers, strings, booleans and None, as returned
by `state_dict` of models, optimizers and sketches. Tensors are stored as the file's tensors; the rest is JSON in its
header, where a tensor is {"tensor": "3"}, a tuple {"tuple": […]} and a dict {"dict": [[key, value], …]}, which keeps
integer keys.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sketchogd.storage import atomic

FORMAT = "sketchogd-checkpoint-1"


class CheckpointError(ValueError):
    """A checkpoint cannot be written, because of a leaf of another type, or cannot be read."""


def save(path: str | Path, state: Any) -> None:
    """Write the tree `state` to `path`, whole or not at all; tensors are stored on the CPU with their exact bytes.

    Raises:
        CheckpointError: a leaf or a key is of a type that cannot be stored.
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = json.dumps(_encode(state, tensors))
    with atomic.replacing(Path(path)) as temporary:
        save_file(tensors, temporary, metadata={"format": FORMAT, "tree": tree})


def load(path: str | Path) -> Any:
    """The tree that `save` wrote, tensors on the CPU.

    Raises:
        CheckpointError: the file is damaged or of another format.
        FileNotFoundError: there is no such file.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(f"{path}: expected the format {FORMAT!r}, found {metadata.get('format')!r}")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return _decode(json.loads(metadata["tree"]), tensors)
    except CheckpointError:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable checkpoint: {error}") from error


def _encode(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(node, torch.Tensor):
        key = str(len(tensors))
        # A copy: safetensors refuses tensors that share storage, as tied weights and views do.
        tensors[key] = node.detach().to("cpu", copy=True).contiguous()
        return {"tensor": key}
    if isinstance(node, dict):
        for key in node:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise CheckpointError(f"keys must be strings or integers, found {key!r}")
        return {"dict": [[key, _encode(value, tensors)] for key, value in node.items()]}
    if isinstance(node, tuple):
        return {"tuple": [_encode(item, tensors) for item in node]}
    if isinstance(node, list):
        return [_encode(item, tensors) for item in node]
    if node is None or type(node) in (bool, int, float, str):
        return node
    raise CheckpointError(f"a state is made of tensors, numbers, strings and containers; found {type(node).__name__}")


def _decode(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _decode(value, tensors) for key, value in content}
    if kind == "tuple":
        return tuple(_decode(item, tensors) for item in content)
    raise CheckpointError(f"unknown kind of node {kind!r}")
