"""SIGKILL at random moments: what is there afterwards is whole, the old or the new."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from sketchogd import storage
from sketchogd.lab.methods import method
from sketchogd.lab.pages import report
from sketchogd.lab.records import bundles, folder
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.runs.train import run
from tools import pack
from tools.campaign.children import Attempt, rng_of
from tools.campaign.subjects import Subject

CONFIG = RunConfig(
    "split-mnist", method("layer-sketch", rank=10), Training(epochs=2, lr=0.01), tasks=3, n_train=200, n_test=100
)


def killed_after(seconds: float, work: Callable[[], object]) -> None:
    """Do work over and over in a child, and kill it."""
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            while True:
                work()
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def saving(folder: Path, seed: int) -> Attempt:
    """While memories are saved to one file: it is one of them, and nothing is left over but by the last kill."""
    path = folder / "memory.safetensors"
    subjects = [Subject("layers", seed=s) for s in range(4)]
    known = []
    for subject in subjects:
        subject.protection.save(path)
        meta, tensors = storage.read(path)
        known.append((meta, {name: t.clone() for name, t in tensors.items()}))

    def attempt(i: int) -> str:
        def save() -> None:
            for subject in subjects:
                subject.protection.save(path)

        killed_after(rng_of(seed, "save", i).uniform(0.0, 0.03), save)
        left = list(folder.glob(".*.tmp"))
        try:
            meta, tensors = storage.read(path)
        except (ValueError, OSError) as error:
            return f"torn: {error}"
        same = [all(torch.equal(t, found[name]) for name, t in tensors.items()) for _, found in known]
        if not any(same) or meta not in [each for each, _ in known] or len(left) > 1:
            return f"torn: {len(left)} files are left over" if any(same) else "torn: none of the memories saved"
        return "killed in the middle" if left else "killed between"

    return attempt


def training(folder_: Path, seed: int) -> Attempt:
    """While a run trains: continued, it comes to the same accuracies."""
    run(CONFIG, folder_ / "whole")
    expected = folder.load(folder_ / "whole").accuracy

    def attempt(i: int) -> str:
        place = folder_ / f"run-{i}"
        killed_after(rng_of(seed, "run", i).uniform(0.0, 2.0), lambda: run(CONFIG, place))
        try:
            run(CONFIG, place)
            found = folder.load(place).accuracy
        except Exception as error:
            return f"unclear: {type(error).__name__}: {error}"
        same = found is not None and expected is not None and np.array_equal(found, expected, equal_nan=True)
        return "continued" if same else "torn: other accuracies"

    return attempt


def reporting(folder_: Path, seed: int) -> Attempt:
    """While a page is written: it is whole."""
    run(CONFIG, folder_ / "runs" / "one" / "seed-0")
    page = folder_ / "report.html"
    report.write_html(folder_ / "runs", page)
    size = page.stat().st_size

    def attempt(i: int) -> str:
        killed_after(rng_of(seed, "report", i).uniform(0.0, 0.05), lambda: report.write_html(folder_ / "runs", page))
        text = page.read_text(encoding="utf-8")
        return "whole" if text.rstrip().endswith("</html>") and abs(len(text.encode()) - size) < 100 else "torn: a page"

    return attempt


def packing(folder_: Path, seed: int) -> Attempt:
    """While runs are packed: the bundle is whole."""
    run(CONFIG, folder_ / "runs" / "one" / "seed-0")
    out = folder_ / "bundles"
    pack.pack(folder_ / "runs", out)

    def attempt(i: int) -> str:
        killed_after(rng_of(seed, "pack", i).uniform(0.0, 0.03), lambda: pack.pack(folder_ / "runs", out))
        try:
            found = [bundles.read(path) for path in bundles.find(out)]
        except ValueError as error:
            return f"torn: {error}"
        return "whole" if [len(runs) for runs in found] == [1] else "torn: runs are lost"

    return attempt
