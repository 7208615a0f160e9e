"""Metadata and tensors that lie: a random change at a random place, signed with the right checksum."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from sketchogd.storage.file import checksum

DEEP = "\0deep\0"
"""Stands for a list of lists of lists …, which `json.dumps` could not write."""

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 10**6, 10**12, 2**63, 10**400, -(10**400), 0.5, -0.5, 1e-320, 1e308, -1e308,
    float("nan"), float("inf"), "", "a", "cpu", "cuda:9", "meta", "int8", "float64", "\ud800", "x" * 10**4, [], [1],
    [[]], {}, {"a": 1}, {"kind": "sparse", "zeta": 10**12}, {"kind": "gaussian", "stored": True}, "product", "moment",
    "all", "pca", "random", "gradient", "layers", "gradients", DEEP,
)  # fmt: skip
"""What a value may be replaced by."""


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a tree but the root."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    found = []
    for key, value in items:
        found += [(*path, key), *places(value, (*path, key))]
    return found


def lie_in_metadata(meta: dict[str, Any], rng: random.Random) -> str:
    """Change one place of the metadata; returns what was done."""
    path = rng.choice(places(meta))
    node: Any = meta
    for key in path[:-1]:
        node = node[key]
    key, how = path[-1], rng.random()
    if how < 0.12:
        del node[key]
        return f"{path} deleted"
    if how < 0.2 and isinstance(node, dict):
        node[rng.choice(["a", "rank", "seed", "limit", "count", key + "x"])] = rng.choice(VALUES)
        return f"added beside {path}"
    if how < 0.35 and isinstance(node[key], int | float) and not isinstance(node[key], bool):
        node[key] = rng.choice([node[key] + 1, node[key] - 1, -node[key], node[key] * 1000, node[key] * 10**12])
        return f"{path} = {node[key]}"
    if how < 0.45:
        other = rng.choice(places(meta))
        source: Any = meta
        for part in other:
            source = source[part]
        node[key] = json.loads(json.dumps(source))
        return f"{path} from {other}"
    node[key] = rng.choice(VALUES)
    return f"{path} = {str(node[key])[:30]!r}"


def lie_in_tensors(tensors: dict[str, Tensor], rng: random.Random) -> str:
    """Change one tensor; returns what was done."""
    name = rng.choice(sorted(tensors))
    t = tensors[name]
    changes = {
        "deleted": lambda: None,
        "nan": lambda: _with(t, rng, float("nan")),
        "infinite": lambda: _with(t, rng, float("inf")),
        "negative": lambda: -t,
        "zero": lambda: torch.zeros_like(t),
        "huge": lambda: t.double().mul(1e30).to(t.dtype),
        "tiny": lambda: t.double().mul(1e-30).to(t.dtype),
        "noise": lambda: torch.randn(t.shape, generator=torch.Generator().manual_seed(rng.randrange(99))).to(t.dtype),
        "shorter": lambda: t[:-1],
        "longer": lambda: torch.cat([t, t]) if t.ndim else t,
        "flat": lambda: t.reshape(-1),
        "transposed": lambda: t.mT if t.ndim > 1 else t[None],
        "empty": lambda: t[:0],
        "scalar": lambda: torch.tensor(1.0),
        "dtype": lambda: t.to(rng.choice([torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8])),
        "byte floats": lambda: t.float().to(torch.float8_e4m3fn),
        "renamed": lambda: None,
        "added": lambda: t,
    }
    how = rng.choice(sorted(changes))
    changed = changes[how]()
    if how == "renamed":
        tensors[name + rng.choice(["x", ".rows", ".values"])] = tensors.pop(name)
    elif how == "added":
        tensors[rng.choice(["extra", "sketch.extra", "anchor.extra", name + ".more"])] = t.clone()
    elif changed is None:
        del tensors[name]
    else:
        tensors[name] = changed.contiguous().clone()
    return f"{name} {how}"


def _with(t: Tensor, rng: random.Random, value: float) -> Tensor:
    if not t.is_floating_point() or not t.numel():
        return t[:0]
    t = t.clone()
    t.view(-1)[rng.randrange(t.numel())] = value
    return t


def signed(path: Path, meta: dict[str, Any], tensors: dict[str, Tensor], rng: random.Random) -> None:
    """Write a file whose checksum is right, whatever it contains."""
    text = json.dumps(meta)
    if json.dumps(DEEP) in text:
        n = rng.choice([50, 900, 10**5])
        text = text.replace(json.dumps(DEEP), "[" * n + "]" * n)
    plain = {name: t.contiguous() for name, t in tensors.items()}
    path.write_bytes(save(plain, metadata={"sketchogd": text, "sha256": checksum(text, plain)}))
