"""Gradients for parameters of no layer from one backward pass, against one pass per example in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sketchogd as so
from sketchogd.memory.layout import OfNoLayer
from sketchogd.memory.others import CALLS, EXAMPLES, TOGETHER
from sketchogd.model.batches import call, map_tensors
from sketchogd.model.parameters import ProtectedParameters
from tests import models


class RMSNorm(nn.Module):
    """As Llama and T5 have it; with 1 + weight as Gemma has it."""

    def __init__(self, width, plus=0.0):
        super().__init__()
        self.weight, self.plus = nn.Parameter(torch.randn(width)), plus

    def forward(self, x):
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (self.plus + self.weight) * h if self.plus else self.weight * h.to(x.dtype)


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class VisionTokens(nn.Module):
    """A class token, positions, layer scale, a query of its own, writing in place."""

    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 5, 6))
        self.scale, self.shift = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(6))
        self.query = nn.Parameter(torch.randn(2, 6))
        self.norm, self.key, self.out = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position[:, : x.shape[1] + 1]
        x = x + self.scale * torch.tanh(self.norm(x))
        x += self.shift
        x.mul_(self.scale + 1)
        x = F.scaled_dot_product_attention(self.key(self.norm(self.query)).expand(len(x), -1, -1), self.key(x), x)
        filled = torch.zeros(len(x), 3, 6, dtype=x.dtype)
        filled[:, 0] = self.token[:, 0]
        filled[:, 1:] = x
        return self.out(filled.mean(1))


class Folded(nn.Module):
    """A norm that sees all positions of a batch as one dimension, with positions first."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        b, T, _ = x.shape
        h = self.norm(x.reshape(-1, 4)).view(b, T, 4)
        h = h + self.norm(h.transpose(0, 1).reshape(-1, 4)).view(T, b, 4).transpose(0, 1)
        return self.out(torch.tanh(h)[:, :3].sum(1))


class Products(nn.Module):
    """Parameters that enter products of many forms."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.randn(5, 5)) for _ in "abc")
        self.bilinear, self.prelu = nn.Bilinear(5, 5, 3), nn.PReLU(5)

    def forward(self, x):
        h = torch.tanh(x @ self.a) + torch.einsum("be,fe->bf", x, self.b[:, :5])
        h = self.prelu(torch.matmul(h, self.c.T))
        return self.bilinear(h, x)


def features(n):
    return torch.randn(n, 5, dtype=torch.float64)


def images(n):
    return torch.randn(n, 3, 8, 8, dtype=torch.float64)


def rows(n):
    return torch.randn(n, 4, 4, dtype=torch.float64)  # as many positions as examples


def tokens(n):
    return torch.randint(0, 20, (n, 6))


def sequential(*parts):
    return nn.Sequential(*(part if isinstance(part, nn.Module) else Apply(part) for part in parts))


CASES = {
    "nn.TransformerEncoder": (models.TransformerEncoder, tokens),
    "positions first": (
        lambda: sequential(
            lambda x: x.transpose(0, 1), nn.TransformerEncoderLayer(4, 2, 8), lambda h: h[-1], nn.Linear(4, 3)
        ),
        rows,
    ),
    "ResNet": (models.resnet, images),
    "class token": (VisionTokens, lambda n: torch.randn(n, 4, 6, dtype=torch.float64)),
    "folded": (Folded, rows),
    "products": (Products, features),
    "transposed, group and instance norm": (
        lambda: sequential(
            nn.ConvTranspose2d(3, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(True),
            lambda h: h * torch.linspace(1, 2, 17),
            nn.InstanceNorm2d(4, affine=True), lambda h: h.flatten(2).tanh().mean(2), nn.Linear(4, 3),
        ),
        images,
    ),
    "3-d": (
        lambda: sequential(
            lambda x: x[:, None], nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.Flatten(), nn.Linear(4 * 36, 3)
        ),
        images,
    ),
    "parametrizations": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(5, 6)), RMSNorm(6), nn.Tanh(), RMSNorm(6, 1.0),
            nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)),
        ),
        features,
    ),
    "bags of embeddings": (lambda: nn.Sequential(nn.EmbeddingBag(20, 6), nn.LayerNorm(6), nn.Linear(6, 3)), tokens),
    "LSTM": (lambda: sequential(nn.LSTM(4, 5, batch_first=True), lambda h: h[0][:, -1], nn.Linear(5, 3)), rows),
}  # fmt: skip
"""Models and their inputs."""

ENCODERS = ["BERT", "RoBERTa", "ELECTRA", "DeBERTa", "DistilBERT", "T5"]
FAMILIES = [*ENCODERS, "GPT-2", "Llama", "Qwen2", "Mistral", "Gemma", "ViT"]


class Head(nn.Module):
    """Mean pooling of the last hidden states, and a head."""

    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(16, 3)

    def forward(self, **inputs):
        return self.head(self.body(**inputs).last_hidden_state.mean(1))


def of_transformers(name):
    """A model of transformers with random weights, and a batch with an attention mask."""
    hf = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    common = {**small, "vocab_size": 20, "max_position_embeddings": 16}
    decoder = {**common, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0}
    body = {
        "BERT": lambda: hf.BertModel(hf.BertConfig(**common), add_pooling_layer=False),
        "RoBERTa": lambda: hf.RobertaModel(hf.RobertaConfig(**common), add_pooling_layer=False),
        "ELECTRA": lambda: hf.ElectraModel(hf.ElectraConfig(**common, embedding_size=12)),
        "DeBERTa": lambda: hf.DebertaV2Model(hf.DebertaV2Config(**common)),
        "DistilBERT": lambda: hf.DistilBertModel(
            hf.DistilBertConfig(vocab_size=20, dim=16, n_layers=2, n_heads=2, hidden_dim=24)
        ),
        "GPT-2": lambda: hf.GPT2Model(hf.GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=16)),
        "Llama": lambda: hf.LlamaModel(hf.LlamaConfig(**decoder)),
        "Qwen2": lambda: hf.Qwen2Model(hf.Qwen2Config(**decoder)),
        "Mistral": lambda: hf.MistralModel(hf.MistralConfig(**decoder)),
        "Gemma": lambda: hf.GemmaModel(hf.GemmaConfig(**decoder)),
        "T5": lambda: hf.T5EncoderModel(
            hf.T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2)
        ),
        "ViT": lambda: hf.ViTModel(hf.ViTConfig(**small, image_size=8, patch_size=4), add_pooling_layer=False),
    }[name]()  # fmt: skip
    if name == "ViT":
        return Head(body), {"pixel_values": images(4)}
    mask = torch.ones(4, 6, dtype=torch.long)
    mask[0, 4:] = 0
    inputs = {"input_ids": torch.randint(1, 20, (4, 6)), "attention_mask": mask}
    return Head(body), inputs | ({} if name in ENCODERS else {"use_cache": False})


class Rows:
    """Keeps the rows that the sketches would be given, as one for all modules."""

    def __init__(self):
        self.rows = []

    @classmethod
    def of(cls, memory):
        """In place of the sketches of a memory."""
        found = cls()
        memory.others.parts = [OfNoLayer("rest", slice(0, memory.others.parameters.p), found)]
        return found

    def require_finite(self, rows):
        assert bool(rows.isfinite().all())

    def observe(self, rows):
        self.rows.append(rows)


def remembered(model, x):
    """A memory after one batch, the gradients of its parameters of no layer, and the scalars they are of."""
    memory = so.LayerMemory(4)
    memory.bind(ProtectedParameters(model), None)
    sketch, stage, scalars = Rows.of(memory), memory.others.stage, []
    memory.others.stage = lambda reading, targets, weights: scalars.append(targets) or stage(reading, targets, weights)
    memory.observe(x, None)
    return memory, torch.cat(sketch.rows), scalars[0]


def one_by_one(memory, x, signs):
    """The same gradients by a forward and a backward pass per example."""
    model, parameters = memory.parameters.model.eval(), memory.others.parameters
    found = []
    for i in range(len(signs)):
        one = map_tensors(lambda t: t[i : i + 1], x)  # noqa: B023
        scalar = (call(model, one) * signs[i]).sum()
        found.append(parameters.flatten(torch.autograd.grad(scalar, parameters.tensors, allow_unused=True)))
    return torch.stack(found)


def made(name):
    torch.manual_seed(0)
    if name in FAMILIES:
        model, x = of_transformers(name)
    else:
        make, inputs = CASES[name]
        model, x = make(), inputs(4)
    return model.double().eval(), x


@pytest.mark.parametrize("name", [*CASES, *FAMILIES])
def test_gradients_are_those_of_single_examples(name, recwarn):
    model, x = made(name)
    memory, found, signs = remembered(model, x)
    assert memory.others.way == CALLS
    assert not [w for w in recwarn if issubclass(w.category, so.ProtectionWarning)]
    torch.testing.assert_close(found, one_by_one(memory, x, signs))
    assert bool((found != 0).any(0).float().mean() > 0.5)


def ways(memory):
    return {way.__name__ for way in memory.others._calls._ways.values()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, {"by_scaling"}) for name in [*FAMILIES, "nn.TransformerEncoder", "folded"]),
        ("ResNet", {"by_scaling_channels"}),
        ("products", {"by_vmap", "by_scaling"}),
        ("class token", {"by_scaling", "by_masks"}),
    ],
)
def test_norms_need_no_pass_per_example_and_most_calls_are_vectorised(name, expected):
    memory, _, _ = remembered(*made(name))
    assert ways(memory) == expected


@pytest.mark.parametrize("function", [torch.abs, torch.square, F.relu, torch.sin], ids=lambda f: f.__name__)
def test_what_is_no_scaling_is_not_taken_for_one(function):
    """The weight is positive, where |w| is w; it need not stay so."""
    torch.manual_seed(0)

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return x * function(self.weight)

    model = nn.Sequential(nn.Linear(5, 6), Scale(), nn.Linear(6, 3)).double()
    memory, _, _ = remembered(model, features(4))
    assert ways(memory) == {"by_vmap"}


def test_sequences_of_other_lengths_and_batches_of_one_need_no_new_look(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 6), nn.LayerNorm(6), Apply(lambda h: h.mean(1)), nn.Linear(6, 3)).double()
    memory, _, _ = remembered(model, torch.randint(0, 20, (4, 7)))

    def refuse(*_):
        raise AssertionError("looked for examples again")

    monkeypatch.setattr("sketchogd.model.call_gradients._probed", refuse)
    for x in (torch.randint(0, 20, (4, 4)), torch.randint(0, 20, (1, 5))):
        scalars, stage = [], memory.others.stage
        memory.others.stage = lambda r, t, w, stage=stage, scalars=scalars: scalars.append(t) or stage(r, t, w)
        memory.observe(x, None)
        torch.testing.assert_close(memory.others.parts[0].sketch.rows[-1], one_by_one(memory, x, scalars[0]))


def test_large_batches_come_in_chunks_and_nothing_comes_of_one_that_is_not_finite():
    model, x = made("products")
    x = torch.randn(10, 5, dtype=torch.float64)
    memory = so.LayerMemory(4)
    memory.bind(ProtectedParameters(model), None)
    memory.others.signals.chunk = 3
    memory.observe(x, None)
    sketch = Rows.of(memory)
    memory.observe(x, None)
    assert [len(each) for each in sketch.rows] == [3, 3, 3, 1]
    x[7] = float("nan")
    with pytest.raises(so.NonFiniteError, match=r"examples \[7\] of 10") as caught:
        memory.observe(x, None)
    assert caught.value.examples == [7]
    assert len(sketch.rows) == 4
    assert memory.examples == 20


class Routed(nn.Module):
    """Every token goes to one of two experts, which are slices of one parameter."""

    def __init__(self):
        super().__init__()
        self.embed, self.experts = nn.Embedding(12, 6), nn.Parameter(torch.randn(2, 6, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, tokens):
        h = self.embed(tokens).view(-1, 6)
        out = torch.zeros_like(h)
        for i in range(2):
            rows = (tokens.flatten() % 2 == i).nonzero().flatten()
            out = out.index_add(0, rows, torch.tanh(F.linear(h[rows], self.experts[i])))
        return self.head(out.view(*tokens.shape, 6).mean(1))


@pytest.mark.filterwarnings("ignore:torch.func cannot")
def test_where_calls_mix_examples_each_is_run_by_itself():
    torch.manual_seed(0)
    model, x = Routed().double(), torch.tensor([[0, 1, 3], [2, 4, 6], [1, 5, 8]])
    memory, found, signs = remembered(model, x)
    assert memory.others.way == EXAMPLES
    torch.testing.assert_close(found, one_by_one(memory, x, signs))


def without_running_statistics():
    """Two norms with the statistics of the batch: what comes before the second belongs to no example."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(3, track_running_stats=False) for _ in "ab"]
    model = nn.Sequential(norms[0], nn.Tanh(), norms[1], nn.Tanh(), nn.Linear(3, 2)).double()
    return model, norms, torch.randn(4, 3, dtype=torch.float64)


def of_every_logit(model, tensors, x):
    rows = [torch.autograd.grad(o, tensors, retain_graph=True) for o in model(x).flatten()]
    return torch.stack([torch.cat(row) for row in rows])


def test_batch_statistics_make_few_rows_of_a_batch():
    """One example alone has no output: sums with random signs, whose second moment is right on average."""
    model, _, x = without_running_statistics()
    found = []
    for seed in range(60):
        memory = so.LayerMemory(4, seed=seed)
        memory.bind(ProtectedParameters(model), None)
        sketch, memory.others.way = Rows.of(memory), TOGETHER if seed else None
        memory.observe(x, None)
        assert memory.others.way == TOGETHER
        found += sketch.rows
    found = torch.cat(found)
    assert found.shape == (60 * 8, 12)
    G = of_every_logit(model, memory.others.parameters.tensors, x)
    assert (found.T @ found / 60 - G.T @ G).norm() < 0.2 * (G.T @ G).norm()


def test_what_comes_after_batch_statistics_belongs_to_examples():
    model, norms, x = without_running_statistics()
    chosen = so.excluding(norms[0])
    memory = so.LayerMemory(4)
    memory.bind(ProtectedParameters(model, chosen), None)
    sketch = Rows.of(memory)
    for _ in range(2):
        memory.observe(x, None)
    assert memory.others.way == CALLS
    assert len(sketch.rows[1]) == 4


def test_scalars_of_examples_may_be_of_another_kind():
    torch.manual_seed(0)
    model, x, y = models.TransformerEncoder().double().eval(), tokens(5), torch.randint(0, 4, (5,))
    memory = so.LayerMemory(4)
    memory.bind(ProtectedParameters(model), so.true_logit)
    sketch = Rows.of(memory)
    memory.observe(x, y)
    assert memory.others.way == CALLS
    chosen = memory.others.parameters
    names = list(chosen.names)
    expected = so.per_example_gradients(model, x, y, parameters=names)
    torch.testing.assert_close(torch.cat(sketch.rows), expected)
