"""Networks people use, small: shapes, equality with the packages they come from, and whole runs on random data."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sketchogd.lab import records
from sketchogd.lab.data import datasets, weights
from sketchogd.lab.methods import method
from sketchogd.lab.models import MultiHead
from sketchogd.lab.models.efficientnet import EfficientNetLite0, padded
from sketchogd.lab.models.resnet import resnet18
from sketchogd.lab.models.vit import ViT
from sketchogd.lab.runs import train
from sketchogd.lab.runs.config import RunConfig, Training
from sketchogd.lab.streams import BENCHMARKS, Stream, record
from sketchogd.paper.networks import tries
from tests.lab.streams.noise import data_of


@pytest.fixture(autouse=True)
def _random_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", lambda name, folder=None: data_of(name, 8))


SIZES = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}


def narrow(name: str, stream: Stream) -> MultiHead | None:
    """The benchmark's network with fewer channels, where it has a width; None where it is small enough."""
    from sketchogd.lab.models.sentences import Sentences

    made = {
        "resnet-cifar100": lambda: (resnet18(4), 32),
        "vit-cifar100": lambda: (ViT(12, 1, 3), 12),
        "efficientnet-cifar100": lambda: (EfficientNetLite0(side=None), 1280),
        "minilm-clinc150": lambda: (Sentences(**SIZES), 24),
        "minilm-lora-clinc150": lambda: (Sentences(4, **SIZES), 24),
    }.get(name)
    return None if made is None else MultiHead(*made(), stream.classes, stream.heads)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch):
    """A config with two tasks, one epoch and two batches, of the benchmark with a narrow network."""

    def make(name: str, settings, **changes) -> RunConfig:
        known = record(name)
        if known.weights == "minilm":
            pytest.importorskip("transformers")
            pytest.importorskip("peft")
        made = lambda stream, seed: narrow(name, stream) or known.network(stream, seed)  # noqa: E731
        monkeypatch.setitem(BENCHMARKS, name, replace(known, network=made, weights=""))
        n = 30 if known.dataset == "clinc150" else 40
        training = replace(known.training, epochs=1, batch=20)
        return RunConfig(name, settings, training, tasks=2, n_train=n, n_test=20, **changes)

    return make


LARGE = ("gpm-cifar100", "gpm-superclasses", "efficientnet-cifar100")
"""Networks without a width: they are trained with what remembers at once."""


@pytest.mark.parametrize("name", tries.compared())
def test_each_benchmark_runs_and_records_what_it_kept(name: str, tmp_path: Path, small) -> None:
    settings = method("l2", implicit=True) if name in LARGE else method("protect", share=4.0, examples=10)
    config = small(name, settings)
    result = train.run(config, tmp_path)
    assert result.learner.nbytes > 0
    assert result.accuracy.shape == (2, 2)
    found = records.load(tmp_path)
    assert found.record["config"]["method"] == settings.name
    assert found.record["ledger"]["nbytes"] == result.learner.nbytes
    assert all(0 <= value <= 1 for row in result.accuracy for value in row)


@pytest.mark.parametrize("name", ["sgd", *tries.OPTIONS])
def test_each_method_trains_a_network_of_convolutions_norms_and_attention(name: str, tmp_path: Path, small) -> None:
    benchmark = "vit-cifar100"
    settings = method("sgd") if name == "sgd" else tries.tried(name, benchmark)[-1]
    if name in ("laplace", "ewc"):
        settings = replace(settings, options={**settings.options, "samples": 4})
    result = train.run(small(benchmark, settings), tmp_path)
    assert (result.learner.nbytes > 0) == (name != "sgd")
    if name in tries.SIZED:
        assert result.learner.nbytes <= record(benchmark).budget
    if name in tries.KEEP_DATA:
        assert result.learner.tensors()["inputs"].dtype == torch.uint8


@pytest.mark.parametrize("name", ["vit-cifar100", "minilm-clinc150"])
def test_one_head_for_all_tasks(name: str, tmp_path: Path, small) -> None:
    result = train.run(small(name, method("l2", implicit=True), single_head=True), tmp_path)
    assert isinstance(result.model, MultiHead)
    assert len(result.model.heads) == 1
    assert result.model.heads[0].out_features == (150 if name.startswith("minilm") else 100)
    assert result.learner.nbytes == 4 * sum(t.numel() for t in result.model.parameters()), (
        "the head is shared, and held"
    )


def test_orfit_in_one_pass(tmp_path: Path) -> None:
    training = Training(epochs=1, batch=1, lr=0.01, curve=False)
    config = RunConfig("split-mnist", method("orfit", rank=20, share=0.1), training, tasks=2, n_train=10, n_test=10)
    assert train.run(config, tmp_path).steps == 20


def test_the_pretrained_weights_are_those_that_a_run_starts_from(monkeypatch: pytest.MonkeyPatch) -> None:
    known = record("efficientnet-cifar100")
    given = known.network(
        known.stream(data_of("cifar100"), seed=9, tasks=2, n_train=None, n_test=None), 9
    ).body.state_dict()
    monkeypatch.setattr(weights, "load", lambda name, folder: given if name == known.weights else {})
    stream = known.stream(data_of("cifar100"), seed=0, tasks=None, n_train=None, n_test=None)
    model = known.model(stream, 0, None)
    assert all(torch.equal(t, given[name]) for name, t in model.body.state_dict().items())
    with pytest.raises(ValueError, match="another network"):
        model.load_pretrained({"_bn0.weight": torch.zeros(32)})


def test_padding_is_tensorflow_s() -> None:
    for n, size, stride in ((8, 3, 2), (9, 3, 2), (7, 5, 2), (8, 3, 1)):
        convolution = torch.nn.Conv2d(1, 1, size, stride, bias=False)
        x = padded(torch.ones(1, 1, n, n), convolution)
        assert convolution(x).shape[-1] == -(-n // stride)
        assert float(x[0, 0, 0].sum()) == 0 or (size, stride, n) == (3, 2, 8), "the odd pixel comes after"
        assert float(x[0, 0, -1].sum()) == 0


def test_efficientnet_has_the_weights_of_the_published_one() -> None:
    body = EfficientNetLite0()
    assert sum(t.numel() for t in body.parameters()) == 3_371_008
    assert len(body.state_dict()) == 294  # and the classifier's two
    assert body.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 1280)


def test_sentences_are_the_mean_over_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    from sketchogd.lab.models.sentences import Sentences

    torch.manual_seed(0)
    body = Sentences(**SIZES, vocab_size=50).eval()
    tokens = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 0, 0, 0]])
    found = body(tokens)
    for row, n in ((0, 3), (1, 2)):
        alone = body.bert(input_ids=tokens[row : row + 1, :n]).last_hidden_state.mean(1)
        torch.testing.assert_close(found[row : row + 1], alone)
    theirs = transformers.BertModel(transformers.BertConfig(**SIZES, vocab_size=50))
    body.load_pretrained(theirs.state_dict())
    assert torch.equal(body.bert.embeddings.word_embeddings.weight, theirs.embeddings.word_embeddings.weight)


def test_lora_trains_its_adapters_only_and_starts_as_the_network() -> None:
    pytest.importorskip("peft")
    from sketchogd.lab.models.sentences import Sentences

    plain = Sentences(**SIZES, vocab_size=50).eval()
    adapted = Sentences(4, **SIZES, vocab_size=50).eval()
    adapted.load_pretrained(plain.bert.state_dict())
    tokens = torch.tensor([[5, 6, 7, 0, 0]])
    torch.testing.assert_close(plain(tokens), adapted(tokens))
    trained = [name for name, t in adapted.named_parameters() if t.requires_grad]
    assert len(trained) == 2 * 2
    assert all("lora_" in name and ("query" in name or "value" in name) for name in trained)


def test_the_networks_of_every_benchmark_are_told_apart_by_their_seed() -> None:
    assert len({known.network for known in BENCHMARKS.values()}) == len(BENCHMARKS) - 2, "the MLP is shared by three"
