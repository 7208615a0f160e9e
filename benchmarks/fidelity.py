"""Does a layer memory predict how far remembered outputs move? Measured over predicted, for kinds of networks.

    python benchmarks/fidelity.py                       # a Markdown table
    python benchmarks/fidelity.py --json benchmarks/results/fidelity-cpu.json
    python benchmarks/fidelity.py --budget 25% --budget 100% --budget 200% \\
        --json benchmarks/results/fidelity-budget-cpu.json

A memory of 48 examples predicts the mean square change of their logits for a displacement D of the weights as
Dᵀ H D / strength, H being what its pull is made of. Measured is the change to first order, by forward-mode derivatives.
Displacements: random; the gradient of a new task (the same inputs, other labels); 60 steps of AdamW on it. For each
layer alone, and for all together, whose cross terms no block-diagonal memory has. BERT, GPT-2, Llama and T5 need
transformers, and are left out without it.

With --budget the memory is the one that `so.protect` picks for AdamW and `every=10` (--every); a share is one of the
network's bytes. Damping, which is no prediction, is left out in any case. A budget that is refused, or with which
nothing is pulled back, has no ratios, and is named.
"""

import argparse
import json
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

import sketchogd as so
from sketchogd.optimizer.anchor import tension

EXAMPLES, STEPS, STRENGTH, CLASSES = 48, 60, 2.0, 4

Ratios = dict[str, dict[str, float]]
"""{displacement: {layer or "together": measured over predicted}} of one network."""


class Tokens(nn.Module):
    """Token embeddings, blocks, mean pooling, a head."""

    def __init__(self, *blocks: nn.Module, width: int = 24, positions: bool = True) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(30, width), nn.ModuleList(blocks)
        self.position = nn.Embedding(10, width) if positions else None
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        if self.position is not None:
            h = h + self.position(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


class Residual(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x)


class Attention(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, T, w = x.shape
        q, k, v = (t.view(b, T, 4, w // 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT / (w // 4) ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, T, w))


class Experts(nn.Module):
    """Every token goes to the better of two experts."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        share, chosen = self.gate(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero().flatten()
            out = out.index_add(0, rows, expert(flat[rows]) * share[rows, None])
        return out.view_as(x)


class Last(nn.Module):
    """A recurrent cell that is used at every position, written out."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.input, self.state = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], x.shape[2])
        for t in range(x.shape[1]):
            (ar, az, an), (br, bz, bn) = self.input(x[:, t]).chunk(3, -1), self.state(h).chunk(3, -1)
            z = torch.sigmoid(az + bz)
            h = (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn) + z * h
        return h[:, None]


class LoRA(nn.Module):
    """A frozen linear layer and a trained product of rank 4 beside it."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.base(x) + self.up(self.down(x)))


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def conv(i: int, o: int, **options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, **options), nn.BatchNorm2d(o), nn.ReLU())


def block(width: int = 24) -> list[nn.Module]:
    mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
    return [Residual(nn.LayerNorm(width), Attention(width)), Residual(mlp)]


class Patches(nn.Module):
    """A vision transformer's way from images to tokens."""

    def __init__(self, *blocks: nn.Module, width: int = 24) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Conv2d(3, width, 4, stride=4), nn.Sequential(*blocks)
        self.position, self.head = nn.Parameter(torch.randn(16, width) * 0.1), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x).flatten(2).transpose(1, 2) + self.position).mean(1))


def alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, CLASSES),
    )  # fmt: skip


def images() -> Tensor:
    return torch.rand(EXAMPLES, 3, 16, 16)


def tokens() -> Tensor:
    return torch.randint(1, 30, (EXAMPLES, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "MLP": (
        lambda: nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES)),
        lambda: torch.rand(EXAMPLES, 40),
    ),
    "CNN, global pooling": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.ReLU(), Pooled(), nn.Linear(24, CLASSES)
        ),
        images,
    ),
    "AlexNet": (alexnet, images),
    "ResNet": (
        lambda: nn.Sequential(
            conv(3, 16),
            Residual(conv(16, 16), conv(16, 16)),
            Residual(conv(16, 16), conv(16, 16)),
            Pooled(),
            nn.Linear(16, CLASSES),
        ),
        images,
    ),
    "CNN, grouped and depthwise": (
        lambda: nn.Sequential(
            conv(3, 16), conv(16, 16, groups=4), conv(16, 16, groups=16), Pooled(), nn.Linear(16, CLASSES)
        ),
        images,
    ),
    "ViT": (lambda: Patches(*block(), *block()), images),
    "token MLP": (lambda: Tokens(Residual(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24)), positions=False), tokens),
    "transformer": (lambda: Tokens(*block(), *block()), tokens),
    "nn.TransformerEncoderLayer": (
        lambda: Tokens(nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)),
        tokens,
    ),
    "GRU, written out": (lambda: Tokens(Last(), positions=False), tokens),
    "mixture of experts": (lambda: Tokens(Residual(Experts()), positions=False), tokens),
    "LoRA": (lambda: Tokens(LoRA(), LoRA()), tokens),
}


def of_transformers() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]]:
    """The same of transformers, with random weights, where it is installed."""
    try:
        import transformers as hf
    except ImportError:
        return {}

    class Head(nn.Module):
        """Mean pooling of the last hidden states, and a head."""

        def __init__(self, body: nn.Module, width: int, decoder: bool = False) -> None:
            super().__init__()
            self.body, self.head, self.decoder = body, nn.Linear(width, CLASSES), decoder

        def forward(self, x: Tensor) -> Tensor:
            given = {"input_ids": x} | ({"decoder_input_ids": x[:, :4]} if self.decoder else {"use_cache": False})
            return self.head(self.body(**given).last_hidden_state.mean(1))

    small = {"vocab_size": 30, "attn_implementation": "eager"}
    bert = hf.BertConfig(
        **small, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    gpt2 = hf.GPT2Config(
        **small, n_embd=24, n_layer=2, n_head=4, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    llama = hf.LlamaConfig(
        **small, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=16,
    )  # fmt: skip
    t5 = hf.T5Config(vocab_size=30, d_model=24, d_kv=6, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0)
    return {
        "BERT": (lambda: Head(hf.BertModel(bert, add_pooling_layer=False), 24), tokens),
        "GPT-2": (lambda: Head(hf.GPT2Model(gpt2), 24), tokens),
        "Llama": (lambda: Head(hf.LlamaModel(llama), 24), tokens),
        "T5": (lambda: Head(hf.T5Model(t5), 24, decoder=True), tokens),
    }


def fit(model: nn.Module, x: Any, y: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


class NothingIsPulled(ValueError):
    """A budget picked a memory without an anchor, which predicts no change of outputs."""


def with_memory(model: nn.Module, **memory: Any) -> so.Protection:
    """The model protected by a layer memory with these settings."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return so.protect(model, optimizer, memory=so.LayerMemory(rule=so.Pull(STRENGTH, damping=0.0), **memory))


def with_budget(model: nn.Module, budget: str, every: int) -> so.Protection:
    """The model protected by what a budget picks. Raises ValueError where it is refused or pulls nothing back."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    protection = so.protect(model, optimizer, budget=budget, strength=STRENGTH, every=every)
    memory = protection.memory
    if not isinstance(memory, so.LayerMemory) or not isinstance(memory.rule, so.Pull):
        raise NothingIsPulled(f"{memory!r} pulls nothing back")
    memory.rule = replace(memory.rule, damping=0.0)
    return protection


def ratios(make: Callable[[], nn.Module], inputs: Callable[[], Any], **memory: Any) -> Ratios:
    """Measured over predicted for one network under a layer memory with these settings."""
    return measured_over_predicted(make, inputs, lambda model: with_memory(model, **memory))[0]


def measured_over_predicted(
    make: Callable[[], nn.Module], inputs: Callable[[], Any], protect: Callable[[nn.Module], so.Protection]
) -> tuple[Ratios, str]:
    """Measured over predicted for one network, and its memory in words."""
    torch.manual_seed(0)
    model, x = make(), inputs()
    old, new = (torch.randint(0, CLASSES, (EXAMPLES,), generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    fit(model, x, old, STEPS)
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", so.ProtectionWarning)
        protection = protect(model)
        protection.remember([(x[i : i + 16], None) for i in range(0, EXAMPLES, 16)])
    kept = protection.memory
    assert isinstance(kept, so.LayerMemory)
    parameters, projector = protection.parameters, protection.projector
    assert projector is not None
    protection.detach()
    start = {name: t.detach().clone() for name, t in model.named_parameters()}

    def measured(D: Tensor) -> float:
        pieces = dict(zip(parameters.names, parameters.unflatten(D), strict=True))
        values = {name: start[name] for name in parameters.names}
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):  # others have no forward-mode derivative
            warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
            _, change = jvp(lambda w: functional_call(model, {**start, **w}, (x,)), (values,), (pieces,))
        return float(change.square().mean())

    def predicted(D: Tensor) -> float:
        return float(D @ tension(projector, D.clone())) / (STRENGTH * kept.weight * kept.logits * kept.examples)

    gradient = torch.autograd.grad(F.cross_entropy(model(x), new), list(parameters.tensors), allow_unused=True)
    displacements = {"random": torch.randn(parameters.width), "gradient": parameters.flatten(gradient)}
    fit(model, x, new, STEPS)
    moved = [t.detach() - start[name] for name, t in zip(parameters.names, parameters.tensors, strict=True)]
    displacements["training"] = parameters.flatten(moved)
    places = {id(t): place for t, place in parameters.slices()}
    found: dict[str, dict[str, float]] = {}
    for kind, D in displacements.items():
        found[kind] = {}
        for name, factors in kept.factors.items():
            own = torch.zeros_like(D)
            for t in (factors.layer.weight, factors.layer.bias):
                if t is not None:
                    own[places[id(t)]] = D[places[id(t)]]
            counted = predicted(own)
            if counted > 0:
                found[kind][name] = measured(own) / counted
        found[kind]["together"] = measured(D) / (predicted(D) * kept.together**0.5)
    return found, f"{kept!r}, {protection.ledger().nbytes:,} bytes for {parameters.p:,} weights"


def summary(found: Ratios) -> list[str]:
    """Range over layers, the share of layers within a factor of two, and all together, per displacement."""
    cells = []
    for by_layer in found.values():
        layers = [r for name, r in by_layer.items() if name != "together"]
        near = sum(0.5 <= r <= 2 for r in layers)
        text = f"{min(layers):.2g} – {max(layers):.2g} ({near}/{len(layers)})"
        cells += [text, f"{by_layer['together']:.2g}"]
    return cells


def table(
    networks: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Any]]],
    protect: Callable[[nn.Module], so.Protection],
    near: float,
    far: float,
) -> dict[str, Any]:
    """Measure these networks and print a Markdown table.

    Args:
        networks: by name, what makes the model and its inputs.
        protect: protects a model.
        near: in a factor of so much should lie nine of ten layers, for displacements of training.
        far: in one of so much all.

    Returns:
        Ratios and memories of each network, and why others have none.
    """
    everything: dict[str, Ratios] = {}
    memories, without = {}, {}
    print("| network | random: layers (within ½ – 2) | together | gradient | together | training | together |")
    print("|---|---|---|---|---|---|---|")
    for name, (make, inputs) in networks.items():
        try:
            everything[name], memories[name] = measured_over_predicted(make, inputs, protect)
        except ValueError as error:
            without[name] = str(error)
            print(f"| {name} | {error} |", flush=True)
            continue
        print(f"| {name} | {' | '.join(summary(everything[name]))} |", flush=True)
    layers = [r for found in everything.values() for n, r in found["training"].items() if n != "together"]
    inside, beyond = sum(1 / near <= r <= near for r in layers), sum(not 1 / far <= r <= far for r in layers)
    print(
        f"\n{inside} of {len(layers)} layers within a factor of {near:g} and {beyond} beyond one of {far:g}, training."
    )
    return {"ratios": everything, "memories": memories, "without": without}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curvature", default="traces", choices=["traces", "positions"])
    parser.add_argument("--rank", type=int, default=1000, help="1000 is full rank for all of these")
    parser.add_argument("--budget", action="append", help="in place of a rank; may be given several times")
    parser.add_argument("--every", type=int, default=10, help="steps between projections, of which a budget depends")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # it has no forward-mode derivative
    machine = {"torch": torch.__version__, "system": f"{platform.system()} {platform.machine()}"}
    networks = {**NETWORKS, **of_transformers()}
    if options.budget is None:
        settings = {"curvature": options.curvature, "rank": options.rank}
        found = table(networks, lambda model: with_memory(model, **settings), 2, 4)
        record = {"machine": machine, **settings, "ratios": found["ratios"]}
    else:
        record = {"machine": machine, "optimizer": "AdamW", "every": options.every, "budgets": {}}
        for budget in options.budget:
            print(f"\nA budget of {budget}:\n")
            record["budgets"][budget] = table(
                networks, lambda model, b=budget: with_budget(model, b, options.every), 3, 5
            )
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
