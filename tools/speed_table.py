"""The table of speeds on docs/speed.md, from what `sketchogd bench --save` wrote; `tools.results` writes and checks it.

Rows are found in the files by the name of the measurement; one that a file does not have is a dash.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sketchogd.storage import atomic
from tools.markdown import DASH, table, with_part

BEGIN, END = "<!-- speed: begin (python -m tools.results --write) -->", "<!-- speed: end -->"
PAGE, FILES = "docs/speed.md", ("benchmarks/results/speed-cpu.json", "benchmarks/results/speed-h200.json")

ROWS = {
    "remembering with GradientSketch": "remembering with `GradientSketch`, share of the float32 matrix product's rate",
    "remembering, gaussian test matrix": "remembering against one gradient at a time, the paper's test matrix",
    "remembering, sparse test matrix": 'the same with `test_matrix="sparse"`',
    "basis of ProductSketch": "basis of `ProductSketch`, time over that of `torch.linalg.qr`",
    "projection, p = 113,610": "one projection, share of the memory bandwidth",
    "projection with a bfloat16 basis, p = 113,610": "a bfloat16 basis, times as fast",
    "a Rotated MNIST run of table 1, gaussian test matrix": "a Rotated MNIST run of table 1 against the literal "
    "algorithm",
    "a Rotated MNIST run of table 1, sparse test matrix": 'the same with `test_matrix="sparse"`',
    "layer memory: step, MLP, SGD": "a step with a 2 MB layer memory over a plain one, MLP, SGD",
    "layer memory: step, transformer, SGD": "the same, transformer, SGD",
    "layer memory: remembering, ResNet-18": "remembering with a layer memory over the passes it needs, ResNet-18",
    "training: 5 seeds side by side, without projection": "five seeds side by side, times as fast as one after another",
    "training: a step of 5 seeds with lazy projection, as a CUDA graph": "a step of five seeds with lazy projection "
    "as a CUDA graph, ms",
    "time of remembering over p": "time of remembering over p, fitted exponent",
    "memory over p": "memory over p, fitted exponent",
}
"""The table's name for each measurement."""


def speed_table(cpu: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    """The table from the contents of the two files, between its markers; values that miss their target are bold."""
    found = [{ratio["name"]: ratio for ratio in file.get("ratios", ())} for file in (cpu, gpu)]
    rows = [[label, *(cell for by_name in found for cell in _cells(by_name.get(name)))] for name, label in ROWS.items()]
    head = ["at the paper's size, p = 113,610, rank 1200", "2-core CPU", "target", "H200", "target"]
    versions = [file.get("machine", {}).get("torch", DASH) for file in (cpu, gpu)]
    said = f"Bold: the target is missed. torch {versions[0]} on the CPU, {versions[1]} on the GPU."
    return "\n".join([BEGIN, *table(head, rows), "", said, END])


def _cells(ratio: Mapping[str, Any] | None) -> tuple[str, str]:
    """Value and target."""
    if ratio is None or ratio["value"] is None:
        return DASH, DASH
    value = f"{ratio['value']:.2f}" if ratio["value"] < 10 else f"{ratio['value']:.0f}"
    if ratio["target"] is None:
        return value, DASH
    return value if ratio["met"] else f"**{value}**", f"{'≥' if ratio['at_least'] else '≤'} {ratio['target']:g}"


def write(repository: str | Path) -> list[Path]:
    """Write the table and return its path; does nothing if there are no measured speeds."""
    home = Path(repository)
    if not _measured(home):
        return []
    atomic.write_bytes(home / PAGE, _renewed(home).encode())
    return [home / PAGE]


def check(repository: str | Path) -> list[str]:
    """A line for each file that does not agree with the measured speeds; empty if there are none."""
    home = Path(repository)
    if not _measured(home) or (home / PAGE).read_text(encoding="utf-8") == _renewed(home):
        return []
    return [f"the speeds in {PAGE} are not those in {' and '.join(FILES)}"]


def _measured(home: Path) -> bool:
    return any((home / name).exists() for name in FILES)


def _renewed(home: Path) -> str:
    cpu, gpu = (json.loads(path.read_text()) if (path := home / name).exists() else {} for name in FILES)
    return with_part((home / PAGE).read_text(encoding="utf-8"), speed_table(cpu, gpu))
