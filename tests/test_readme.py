"""The README's lines, copied into a file and run on every kind of model, over three small tasks with Adam."""

import re
from pathlib import Path

import pytest
import torch

import sketchogd as so

from . import models

README = Path(__file__).parents[1] / "README.md"
EPOCHS = 5
MEMORIES = {
    "gradient": lambda: so.ProductSketch(100),
    "pulled": lambda: so.GradientMemory(so.ProductSketch(60), blocks=4, strength=200.0),
    "layer": lambda: so.LayerSketch(rank=40),
    "rounded": lambda: so.LayerSketch(rank=40, anchor_dtype="int8"),
}


class Unprotected:
    """Stands in for a protection that does nothing."""

    def remember(self, task):
        pass


def readme_train(tmp_path, protect):
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    assert len(code.splitlines()) <= 20
    (tmp_path / "train.py").write_text(code)
    namespace = {}
    exec(compile((tmp_path / "train.py").read_text(), "train.py", "exec"), namespace)
    namespace["so"] = type("so", (), {"protect": staticmethod(protect)})
    return namespace["train"]


def tasks_for(kind):
    """Three tasks on one kind of input, each a list of batches: other inputs, other labels."""
    tasks = []
    for t in range(3):
        _, draw = models.MODELS[kind]
        g = torch.Generator().manual_seed(100 + t)
        x, y = draw(48, g), torch.randint(0, 4, (48,), generator=g)
        tasks.append(list(zip(x.split(12), y.split(12), strict=True)))
    return tasks


def drift(kind, protect, tmp_path, memory):
    """How far the outputs on the first task's examples move while the other two are learned."""
    outputs, train = [], readme_train(tmp_path, protect)
    for tasks in (tasks_for(kind)[:1], tasks_for(kind)):
        model, _, _ = models.make(kind)
        # Statistics of BatchNorm are not parameters and drift with any data; here they are frozen.
        for module in model.modules():
            if isinstance(module, (torch.nn.modules.batchnorm._BatchNorm, torch.nn.Dropout)):
                module.momentum = 0.0
                module.p = 0.0
        torch.manual_seed(1)
        train(model, tasks, memory(), epochs=EPOCHS)
        model.eval()
        with torch.no_grad():
            outputs.append(model(torch.cat([x for x, _ in tasks[0]])))
    return float((outputs[1] - outputs[0]).norm())


@pytest.mark.filterwarnings("ignore:torch.func cannot")
@pytest.mark.parametrize("kind", models.MODELS)
@pytest.mark.parametrize("name", MEMORIES)
def test_old_outputs_move_less_with_the_readme_lines(kind, name, tmp_path):
    memory = MEMORIES[name]
    protected = drift(kind, so.protect, tmp_path, memory)
    free = drift(kind, lambda *args, **kwargs: Unprotected(), tmp_path, memory)
    print(f"{kind}: moved {protected:.3f}, {free:.3f} without protection")
    assert protected < 0.95 * free


def test_the_trainer_lines_are_those_of_the_recipe_which_runs():
    def lines(path, number):
        block = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)[number]
        kept = (line.partition("#")[0].rstrip() for line in block.splitlines())
        return [line for line in kept if line]

    assert lines(README, 1) == lines(README.parent / "docs" / "recipes" / "transformers.md", 0)
