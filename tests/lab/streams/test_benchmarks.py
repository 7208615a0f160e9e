"""Benchmarks: a record says of each what is true of its stream and its network, and no other file names one."""

import ast
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import nn

import sketchogd as so
from sketchogd.lab import records
from sketchogd.lab.data import datasets
from sketchogd.lab.methods import KINDS, method
from sketchogd.lab.methods.baselines.examples import bytes_of_example
from sketchogd.lab.runs import grid
from sketchogd.lab.runs.config import RunConfig, Training, default_method
from sketchogd.lab.runs.sidebyside import partition
from sketchogd.lab.streams import BENCHMARKS, Benchmark, benchmark, record
from sketchogd.lab.streams.streams import split
from sketchogd.paper.settings import PAPER
from tests.lab.streams.noise import stream_of

SOURCE = Path(so.__file__).parent


def same(a, b) -> bool:
    return all(torch.equal(x.x_train, y.x_train) and torch.equal(x.x_test, y.x_test) for x, y in zip(a, b, strict=True))


each = pytest.mark.parametrize("known", BENCHMARKS.values(), ids=BENCHMARKS)
PER_CLASS = {"mnist": 0.9 * 6_000, "cifar100": datasets.CIFAR_PER_CLASS["train"], "clinc150": 100}


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    """Language models come from other packages."""
    known = request.node.callspec.params.get("known") if hasattr(request.node, "callspec") else None
    if known is not None and known.weights == "minilm" and "network" in request.node.name:
        pytest.importorskip("transformers")
        pytest.importorskip("peft")


@each
def test_the_network_has_the_parameters_that_it_says(known: Benchmark) -> None:
    stream = stream_of(known)
    model = known.network(stream, 3)
    assert so.ProtectedParameters(model, known.held(stream)).p == known.parameters
    assert model.eval()(stream.test(0)[0]).shape[1] == stream.classes
    again, other = known.network(stream, 3).state_dict(), known.network(stream, 4).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())
    assert any(not torch.equal(value, other[name]) for name, value in model.state_dict().items())


@each
def test_the_stream_has_the_tasks_and_examples_that_it_says(known: Benchmark) -> None:
    stream = stream_of(known)
    assert len(stream) == known.tasks
    assert bytes_of_example(*stream.train(0)) == known.example_nbytes
    assert set(known.curves) <= set(range(1, known.tasks + 1))
    if known.dataset == "mnist-subset":
        assert len(benchmark(known.name).train(0)[1]) == known.examples
    else:
        assert stream.classes * PER_CLASS[known.dataset] == known.examples


@each
def test_the_stream_depends_on_the_seed_if_it_says_so(known: Benchmark) -> None:
    assert same(stream_of(known, seed=1), stream_of(known, seed=2)) is not known.seeded


@each
def test_its_options_change_the_stream_and_are_fields_of_a_config(known: Benchmark) -> None:
    assert known.options <= {field.name for field in fields(RunConfig)}
    for name in known.options:
        value = {"degrees": 20.0, "released": True, "per_task": 5, "single_head": True}[name]
        changed, usual = stream_of(known, **{name: value}), stream_of(known)
        if name == "single_head":  # the same examples with other labels
            assert (changed.heads, changed.classes) == (1, usual.heads * usual.classes)
            assert torch.equal(changed.train(1)[1], usual.train(1)[1] + usual.classes)
            assert known.held(usual) is not None
            assert known.held(changed) is None
        else:
            assert len(changed) != len(usual) or not same(changed, usual)


@each
def test_what_is_tuned_are_options_of_methods(known: Benchmark) -> None:
    assert known.tuned.keys() <= KINDS.keys()
    for name, options in known.tuned.items():
        chosen = default_method(name, known.name)
        assert {key: chosen.options[key] for key in options} == options
    assert default_method("sgd", known.name) == method("sgd")


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_training_can_be_stacked(name: str) -> None:
    known = BENCHMARKS[name]
    config = RunConfig(known.name, method("sgd"), known.training)
    assert partition.joins(config)
    assert not partition.joins(replace(config, training=replace(known.training, frozen=("*1*",))))


def test_names_are_looked_up_and_unknown_ones_refused() -> None:
    assert [each.name for each in BENCHMARKS.values()] == list(BENCHMARKS)
    assert record("split-mnist") is BENCHMARKS["split-mnist"]
    with pytest.raises(ValueError, match="unknown benchmark 'split-mnits'; did you mean split-mnist"):
        record("split-mnits")
    with pytest.raises(ValueError, match="did you mean split-mnist"):
        default_method("sgd", "split-mnits")


def test_options_go_to_the_benchmarks_that_take_them() -> None:
    turned = benchmark("rotated-mnist", tasks=2, n_train=10, n_test=10, degrees=20.0, released=False)
    assert (turned.name, turned.recipes[1].name) == ("rotated-mnist", "rotated 20°")
    flat = benchmark("rotated-mnist", tasks=2, n_train=10, n_test=10, degrees=0.0)
    assert torch.equal(flat[0].x_train, flat[1].x_train)
    with pytest.raises(ValueError, match="degrees is an option of rotated-mnist; split-mnist has none"):
        benchmark("split-mnist", degrees=3.0)
    with pytest.raises(ValueError, match="angle is an option of no benchmark; split-mnist has none"):
        benchmark("split-mnist", angle=3.0)


class Small(nn.Module):
    """A network with a body, which is protected, and a head."""

    def __init__(self, outputs: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.head = nn.Linear(32 * 32, 4), nn.Linear(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.flatten(1)).tanh())


def test_a_benchmark_is_an_entry_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Benchmark(
        name="own",
        title="Own",
        dataset="mnist-subset",
        stream=lambda images, **given: split(images, 5, **{key: given[key] for key in ("tasks", "n_train", "n_test")}),
        network=lambda stream, seed: Small(stream.classes, seed),
        parameters=4 * 32 * 32 + 4,
        tasks=2,
        examples=5_000,
        example_nbytes=4 * 32 * 32 + 16,
        protected="body*",
        tuned={"layer-sketch": {"strength": 3.0}},
    )
    monkeypatch.setitem(BENCHMARKS, own.name, own)
    chosen = default_method("layer-sketch", "own", rank=5)
    assert chosen.options["strength"] == 3.0
    config = RunConfig("own", chosen, Training(epochs=1, lr=0.05), tasks=2, n_train=30, n_test=20)
    assert not partition.joins(config), "there are no stacked passes for its network"
    assert partition.groups([config, replace(config, seed=1)], 8) == [[config], [replace(config, seed=1)]]
    (outcome,) = grid.run_grid([config], tmp_path, together=4)
    assert (outcome.status, outcome.message) == ("finished", "")
    found = records.load(tmp_path / config.name)
    assert found.record["parameters"] == {"all": 4 * 1024 + 4 + 5 * 4 + 5, "protected": own.parameters}
    assert found.accuracy.shape == (2, 2)


NAMED_ELSEWHERE = {
    "paper/settings.py",  # the paper's settings on each
    "paper/published.py",  # the paper's numbers on each
}


def strings(path: Path) -> list[str]:
    """The string literals of a file, without docstrings and strings that document a constant."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in bare]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_no_other_file_names_a_benchmark() -> None:
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE)
        own = {name for name in BENCHMARKS if place.as_posix() == f"lab/streams/benchmarks/{name.replace('-', '_')}.py"}
        if place.as_posix() in NAMED_ELSEWHERE:
            continue
        text = json.dumps(strings(path))
        named = {name for name in BENCHMARKS if re.search(rf"(?<![\w-]){name}(?![\w-])", text)}
        assert named == own, f"{place} names {', '.join(named - own)}: look it up with `record` instead"
