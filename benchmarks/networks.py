"""Networks people use, on streams of ten tasks: unprotected, protected by the default, and GPM where it was published.

    python benchmarks/networks.py run vit --method default --data DATA --out runs/networks
    python benchmarks/networks.py table runs/networks                       # a Markdown table of all that was run

Every task has a head of its own, and which task an example belongs to is known, but in the last stream. `minilm`, a
pretrained MiniLM on the ten domains of CLINC150 (AdamW, one cycle); `vit` (AdamW) and `resnet` (ResNet-18, momentum),
10-split CIFAR-100, 12 epochs; `alexnet`, 10-split CIFAR-100, and `permuted`, MNIST with other permutations of its
pixels and one head, both as GPM's authors train them (Saha, Garg, Roy 2021), plain SGD. DATA holds the folder clinc150
and the weights of MiniLM in minilm, the files of CIFAR-100, or those of MNIST. Accuracies are percent: `learned` is
that of each task when it was learned, `bwt` what the others lost or won until the end. Settings are chosen with
`--held-out --order N`: tested on a fifth of the training data, with classes dealt to tasks at random, and with other
permutations.
"""

import argparse
import itertools
import json
import platform
import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sketchogd as so

TASKS, CLASSES = 10, 10


# ---------------------------------------------------------------- networks


class Heads(nn.Module):
    """A body and a linear head for each task, of which `task` is in use."""

    def __init__(self, body: nn.Module, width: int, classes: int = CLASSES, tasks: int = TASKS, bias: bool = True):
        super().__init__()
        self.body, self.task = body, 0
        self.heads = nn.ModuleList(nn.Linear(width, classes, bias=bias) for _ in range(tasks))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.heads[self.task % len(self.heads)](self.body(*inputs))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches of 4 × 4, six blocks of width 192, the mean of all tokens: 2.7 million weights."""

    def __init__(self, width: int = 192, depth: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, stride=4)
        self.position = nn.Parameter(torch.randn(64, width) * 0.02)
        self.blocks, self.norm = nn.Sequential(*(Block(width, heads) for _ in range(depth))), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(self.embed(x).flatten(2).mT + self.position).mean(1))


class Basic(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.norm2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.skip = (
            nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) if stride > 1 else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.skip(x))


def resnet18(width: int = 64) -> nn.Module:
    sizes = [width, width, 2 * width, 4 * width, 8 * width]
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for n, (i, o) in enumerate(itertools.pairwise(sizes)):
        layers += [Basic(i, o, 1 if n == 0 else 2), Basic(o, o, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def alexnet() -> nn.Module:
    """As in the script of GPM: no biases, batch normalisation without running statistics."""

    def norm(d: int, kind: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
        return kind(d, track_running_stats=False)

    def conv(i: int, o: int, size: int, drop: float) -> list[nn.Module]:
        pool = nn.MaxPool2d(2)
        return [nn.Conv2d(i, o, size, bias=False), norm(o), nn.ReLU(), nn.Dropout(drop), pool]

    def full(i: int, o: int) -> list[nn.Module]:
        return [nn.Linear(i, o, bias=False), norm(o, nn.BatchNorm1d), nn.ReLU(), nn.Dropout(0.5)]

    convolutions = [*conv(3, 64, 4, 0.2), *conv(64, 128, 3, 0.2), *conv(128, 256, 2, 0.5)]
    return nn.Sequential(*convolutions, nn.Flatten(), *full(1024, 2048), *full(2048, 2048))


class Sentences(nn.Module):
    """A BERT and the mean over tokens."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from safetensors.torch import load_file
        from transformers import BertConfig, BertModel

        self.bert = BertModel(BertConfig.from_json_file(folder / "config.json"), add_pooling_layer=False)
        weights = {name: t.float() for name, t in load_file(folder / "model.safetensors").items()}
        self.bert.load_state_dict(weights, strict=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        longest = int(attention_mask.sum(1).max())
        input_ids, attention_mask = input_ids[:, :longest], attention_mask[:, :longest]
        h = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(h.dtype)
        return (h * mask).sum(1) / mask.sum(1)


# ---------------------------------------------------------------- streams


@dataclass
class Task:
    """Inputs, a tensor or a tuple of tensors (n, …), and labels (n,), for training and for tests."""

    train: tuple[tuple[Tensor, ...], Tensor]
    test: tuple[tuple[Tensor, ...], Tensor]


def dealt(names: list[Any], order: int | None) -> list[Any]:
    """Classes as they are, or in an order drawn with this seed."""
    return names if order is None else random.Random(order).sample(names, len(names))


def cifar(folder: Path, device: str, mean: list[float], std: list[float], order: int | None) -> list[Task]:
    from sketchogd.lab.data import datasets

    images = datasets.load("cifar100", folder)
    shift, scale = (torch.tensor(v, device=device).view(3, 1, 1) for v in (mean, std))
    places = torch.tensor(dealt(list(range(CLASSES * TASKS)), order))

    def placed(x: Tensor, y: Tensor, task: int) -> tuple[tuple[Tensor, ...], Tensor]:
        y = places[y]
        mine = (y // CLASSES == task).nonzero().flatten()
        return ((x[mine].to(device) / 255 - shift) / scale,), y[mine].to(device) % CLASSES

    parts = [(images.x_train, images.y_train), (images.x_test, images.y_test)]
    return [Task(*(placed(x, y, t) for x, y in parts)) for t in range(TASKS)]


def permuted(folder: Path, device: str, order: int | None) -> list[Task]:
    """MNIST in ten permutations, the first 10 % of the training data left out, as GPM's authors do."""
    from sketchogd.lab.data import datasets

    images = datasets.load("mnist", folder)
    parts = [(images.x_train[6000:], images.y_train[6000:]), (images.x_test, images.y_test)]
    parts = [(((x.flatten(1) / 255 - 0.1307) / 0.3081).to(device), y.long().to(device)) for x, y in parts]
    draw = torch.Generator().manual_seed(order or 2)
    orders = [torch.randperm(784, generator=draw).to(device) for _ in range(TASKS)]
    return [Task(*(((x[:, pixels],), y) for x, y in parts)) for pixels in orders]


def clinc150(folder: Path, device: str, order: int | None) -> list[Task]:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "minilm" / "tokenizer.json"), pad_token="[PAD]")
    data = json.loads((folder / "clinc150" / "data_full.json").read_text())
    domains = list(json.loads((folder / "clinc150" / "domains.json").read_text()).values())
    if order is not None:
        intents = dealt([intent for domain in domains for intent in domain], order)
        domains = [intents[i : i + 15] for i in range(0, len(intents), 15)]

    def placed(part: str, intents: list[str]) -> tuple[tuple[Tensor, ...], Tensor]:
        rows = [(text, intents.index(intent)) for text, intent in data[part] if intent in intents]
        found = tokenizer(
            [t for t, _ in rows], padding="max_length", truncation=True, max_length=32, return_tensors="pt"
        )
        inputs = found["input_ids"].to(device), found["attention_mask"].to(device)
        return inputs, torch.tensor([y for _, y in rows], device=device)

    return [Task(placed("train", intents), placed("test", intents)) for intents in domains]


def augmented(x: Tensor) -> Tensor:
    """Images shifted by up to 4 pixels and mirrored at random, each in its own way."""
    b = len(x)
    flip = torch.rand(b, device=x.device) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(3), x)
    at = torch.randint(0, 9, (2, b, 1), device=x.device) + torch.arange(32, device=x.device)
    padded = F.pad(x, (4, 4, 4, 4))
    rows = torch.arange(b, device=x.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[rows, at[0][:, :, None], at[1][:, None, :]].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Setting:
    """How a stream is trained, and the bytes that a memory may take."""

    epochs: int
    batch: int
    budget: str
    lr: float
    optimizer: str
    schedule: str
    augment: bool = False
    examples: int | None = 1000


SETTINGS = {
    "minilm": Setting(4, 32, "100%", 1e-4, "adamw", "onecycle", examples=None),
    "vit": Setting(12, 64, "100%", 1e-3, "adamw", "onecycle", augment=True),
    "resnet": Setting(12, 64, "100%", 0.05, "momentum", "onecycle", augment=True),
    "alexnet": Setting(200, 64, "24MB", 0.01, "sgd", "plateau"),
    "permuted": Setting(5, 10, "1.3MB", 0.01, "sgd", "constant"),
}

GPM_SETTINGS: dict[str, tuple[list[int], list[float], float]] = {
    "alexnet": ([24, 100, 100, 125, 125], [0.97] * 5, 0.003),
    "permuted": ([300] * 3, [0.95, 0.99, 0.99], 0.0),
}
"""Samples, shares of energy and what is added to these with every task, as in the authors' scripts."""


def prepared(name: str, folder: Path, device: str, order: int | None) -> tuple[list[Task], nn.Module]:
    if name == "minilm":
        return clinc150(folder, device, order), Heads(Sentences(folder / "minilm"), 384, 15)
    if name == "permuted":
        sizes = [nn.Linear(784, 100, bias=False), nn.ReLU(), nn.Linear(100, 100, bias=False), nn.ReLU()]
        return permuted(folder, device, order), Heads(nn.Sequential(*sizes), 100, tasks=1, bias=False)
    if name == "alexnet":
        mean, std = [v / 255 for v in (125.3, 123, 113.9)], [v / 255 for v in (63, 62.1, 66.7)]
        return cifar(folder, device, mean, std, order), Heads(alexnet(), 2048, bias=False)
    tasks = cifar(folder, device, [0.507, 0.487, 0.441], [0.267, 0.256, 0.276], order)
    return tasks, Heads(ViT(), 192) if name == "vit" else Heads(resnet18(), 512)


# ---------------------------------------------------------------- methods


class Unprotected:
    """Plain training."""

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None: ...

    def before_step(self) -> None: ...

    def end_task(self, inputs: tuple[Tensor, ...], targets: Tensor) -> None: ...

    def bytes(self) -> int:
        return 0

    def settled(self) -> None: ...

    def forgetting(self) -> float | None:
        """What is predicted of the change of old outputs."""
        return None

    def joint(self, steps: int) -> AbstractContextManager[None]:
        """A block of steps that call no hooks of the optimizer."""
        return nullcontext()


class Protected(Unprotected):
    """`so.protect` with a budget, and nothing else set but what the command line says.

    Args:
        budget: bytes, or a share of the model.
        every: steps between two projections.
        batch: examples that are remembered at once.
        given: further arguments, such as strength; with `memory` it stands in place of the budget.
    """

    def __init__(self, budget: str, every: int, batch: int, given: dict[str, Any]) -> None:
        self.batch = batch
        self.given = {"every": every, **({} if "memory" in given else {"budget": budget}), **given}
        self.protection: so.Protection | None = None

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if self.protection is not None:
            self.protection.attach(optimizer)
            return
        heads = model.heads
        chosen = ["!heads.*"] if isinstance(heads, nn.ModuleList) and len(heads) > 1 else None
        self.protection = so.protect(model, optimizer, parameters=chosen, **self.given)

    def end_task(self, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
        assert self.protection is not None
        parts = zip(zip(*(x.split(self.batch) for x in inputs), strict=True), targets.split(self.batch), strict=True)
        self.protection.remember([(x[0] if len(x) == 1 else x, y) for x, y in parts])

    def bytes(self) -> int:
        assert self.protection is not None
        return self.protection.ledger().nbytes

    def settled(self) -> None:
        assert self.protection is not None
        self.protection.settle()

    def forgetting(self) -> float | None:
        assert self.protection is not None
        return self.protection.forgetting()

    def joint(self, steps: int) -> AbstractContextManager[None]:
        assert self.protection is not None
        return self.protection.joint(steps)


class GPM(Unprotected):
    """Gradient projection memory as its authors have it: per task an SVD of each layer's inputs, hard projection.

    Of some examples of a task the inputs of every layer are taken; directions are added until so much of their energy
    lies in the memory. The affine parameters of norms are trained on the first task only.

    Args:
        samples: examples per layer.
        shares: of the energy, per layer, for the first task.
        more: added to the shares with every task.
    """

    def __init__(self, samples: list[int], shares: list[float], more: float) -> None:
        self.samples, self.shares, self.more = samples, shares, more
        self.bases: dict[nn.Module, Tensor] = {}
        self.model: nn.Module | None = None
        self.tasks = 0

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.layers = [m for m in shared(model) if isinstance(m, nn.Conv2d | nn.Linear)]
        self.projections = {layer: basis @ basis.T for layer, basis in self.bases.items()}

    def before_step(self) -> None:
        if not self.projections:
            return
        for layer, P in self.projections.items():
            G = layer.weight.grad.flatten(1)  # type: ignore[union-attr]
            G -= G @ P
        for module in shared(self.model):  # type: ignore[arg-type]
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.weight.grad.zero_()  # type: ignore[union-attr]
                module.bias.grad.zero_()  # type: ignore[union-attr]

    @torch.no_grad()
    def end_task(self, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
        assert self.model is not None
        seen: dict[nn.Module, Tensor] = {}
        hooks = [layer.register_forward_pre_hook(lambda m, x: seen.__setitem__(m, x[0])) for layer in self.layers]
        self.model.eval()
        chosen = torch.randperm(len(targets), device=targets.device)[: max(self.samples)]
        self.model(*(x[chosen] for x in inputs))
        for hook in hooks:
            hook.remove()
        for layer, samples, share in zip(self.layers, self.samples, self.shares, strict=True):
            x = seen[layer][:samples]
            A = F.unfold(x, layer.kernel_size).transpose(0, 1).flatten(1) if isinstance(layer, nn.Conv2d) else x.T
            self.bases[layer] = extended(self.bases.get(layer), A, share + self.more * self.tasks)
        self.tasks += 1

    def bytes(self) -> int:
        return sum(4 * basis.numel() for basis in self.bases.values())


def shared(model: nn.Module) -> list[nn.Module]:
    """The modules that all tasks use: all but the heads, unless there is one for all."""
    heads = set(model.heads.modules()) if len(model.heads) > 1 else set()  # type: ignore[arg-type]
    return [module for module in model.modules() if module not in heads]


def extended(U: Tensor | None, A: Tensor, share: float) -> Tensor:
    """U (d, r) with the fewest more directions so that it holds this share of the energy of A (d, n).

    The first task gets one direction less, as in the authors' script.
    """
    whole = A.double().square().sum()
    rest = A if U is None else A - U @ (U.T @ A)
    values, vectors = torch.linalg.eigh(rest.double() @ rest.double().T)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1).to(A.dtype)
    held = whole - values.sum()
    if held >= share * whole:
        return U if U is not None else vectors[:, :0]
    more = int((held + values.cumsum(0) < share * whole).sum())
    return vectors[:, :more] if U is None else torch.cat([U, vectors[:, : more + 1]], 1)[:, : len(A)]


# ---------------------------------------------------------------- training


def optimizer_of(setting: Setting, model: nn.Module) -> torch.optim.Optimizer:
    if setting.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=setting.lr, weight_decay=0.01)
    momentum = {"momentum": 0.9, "weight_decay": 5e-4} if setting.optimizer == "momentum" else {}
    return torch.optim.SGD(model.parameters(), lr=setting.lr, **momentum)


def batches(task: tuple[tuple[Tensor, ...], Tensor], size: int) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    inputs, targets = task
    for rows in torch.randperm(len(targets), device=targets.device).split(size):
        yield tuple(x[rows] for x in inputs), targets[rows]


def train(model: Heads, task: Task, setting: Setting, method: Unprotected) -> int:
    """One task; returns the number of steps."""
    optimizer = optimizer_of(setting, model)
    method.attach(model, optimizer)
    if setting.schedule == "plateau":
        return train_to_plateau(model, task, setting, method, optimizer)
    steps = setting.epochs * -(-len(task.train[1]) // setting.batch)
    schedule = None
    if setting.schedule == "onecycle":
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, setting.lr, steps, pct_start=0.1, cycle_momentum=False, anneal_strategy="cos"
        )
    model.train()
    for _ in range(setting.epochs):
        for inputs, targets in batches(task.train, setting.batch):
            inputs = (augmented(inputs[0]),) if setting.augment else inputs
            step(model, inputs, targets, optimizer, method)
            if schedule is not None:
                schedule.step()
    return steps


def step(
    model: Heads,
    inputs: tuple[Tensor, ...],
    targets: Tensor,
    optimizer: torch.optim.Optimizer,
    method: Unprotected,
) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(*inputs), targets).backward()
    method.before_step()
    if isinstance(optimizer, torch.optim.AdamW):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def train_to_plateau(
    model: Heads, task: Task, setting: Setting, method: Unprotected, optimizer: torch.optim.Optimizer
) -> int:
    """The rate is halved when the loss on 5 % of the data has not fallen for 6 epochs; the best weights count."""
    order = torch.randperm(len(task.train[1]), device=task.train[1].device)
    held = len(order) // 20
    own, kept = ((tuple(x[rows] for x in task.train[0]), task.train[1][rows]) for rows in (order[held:], order[:held]))
    best, weights, patience, steps = float("inf"), None, 6, 0
    graph = GraphedStep(model, own, setting.batch, method) if held and order.is_cuda else None
    for _ in range(setting.epochs):
        model.train()
        if graph is not None:
            steps += graph.epoch(own, optimizer.param_groups[0]["lr"])
        else:
            for inputs, targets in batches(own, setting.batch):
                step(model, inputs, targets, optimizer, method)
                steps += 1
        method.settled()
        loss = measured(model, kept, setting.batch)[0]
        if loss < best:
            best, weights, patience = loss, {k: v.clone() for k, v in model.state_dict().items()}, 6
            continue
        patience -= 1
        if patience <= 0:
            optimizer.param_groups[0]["lr"] /= 2
            patience = 6
            if optimizer.param_groups[0]["lr"] < 1e-5:
                break
    model.load_state_dict(weights)  # type: ignore[arg-type]
    return steps


class GraphedStep:
    """A step of plain SGD as a CUDA graph, without hooks of an optimizer; ten at a time are projected together.

    Args:
        model: in training mode from now on.
        data: examples of the task, of which whole batches replay the graph and the last takes the same step without it.
        size: examples in a batch.
        method: changes the gradients, or projects blocks of steps.
    """

    BLOCK = 10

    def __init__(self, model: Heads, data: tuple[tuple[Tensor, ...], Tensor], size: int, method: Unprotected) -> None:
        self.model, self.method, self.size = model, method, size
        inputs, targets = data
        self.inputs, self.targets = tuple(x[:size].clone() for x in inputs), targets[:size].clone()
        self.rate = torch.zeros((), device=targets.device)  # 0 while it is captured: nothing moves
        self.tensors = [p for p in model.parameters() if p.requires_grad]
        model.train()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step(self.inputs, self.targets)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step(self.inputs, self.targets)

    def step(self, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
        for p in self.tensors:
            p.grad = None
        F.cross_entropy(self.model(*inputs), targets).backward()
        self.method.before_step()
        with torch.no_grad():
            moved = [p for p in self.tensors if p.grad is not None]
            torch._foreach_sub_(moved, torch._foreach_mul([p.grad for p in moved], self.rate))

    def epoch(self, data: tuple[tuple[Tensor, ...], Tensor], rate: float) -> int:
        """All batches once; returns how many."""
        self.rate.fill_(rate)
        all_batches = list(batches(data, self.size))
        for start in range(0, len(all_batches), self.BLOCK):
            block = all_batches[start : start + self.BLOCK]
            with self.method.joint(len(block)):
                for inputs, targets in block:
                    if len(targets) < self.size:
                        self.step(inputs, targets)
                        continue
                    for own, given in zip((*self.inputs, self.targets), (*inputs, targets), strict=True):
                        own.copy_(given)
                    self.graph.replay()
        return len(all_batches)


@torch.no_grad()
def measured(model: Heads, data: tuple[tuple[Tensor, ...], Tensor], size: int) -> tuple[float, float]:
    """Mean loss, and the share that is right, in shuffled batches: norms may have no statistics but a batch's."""
    model.eval()
    loss, right = torch.zeros((), device=data[1].device), torch.zeros((), device=data[1].device)
    for inputs, targets in batches(data, size):
        logits = model(*inputs)
        loss += F.cross_entropy(logits, targets, reduction="sum")
        right += (logits.argmax(1) == targets).sum()
    return float(loss) / len(data[1]), float(right) / len(data[1])


def method_of(options: argparse.Namespace, setting: Setting) -> Unprotected:
    if options.method == "gpm":
        return GPM(*GPM_SETTINGS[options.stream])
    if options.method == "none":
        return Unprotected()
    given: dict[str, Any] = {} if options.strength is None else {"strength": options.strength}
    if options.rank is not None:
        damping = {} if options.damping is None else {"damping": options.damping, "strength": 6.0}
        given = {"memory": so.LayerMemory(options.rank, anchor_dtype=options.anchor, **damping | given)}
    batch = setting.batch if options.stream == "alexnet" else 256  # whose norms have the statistics of a batch
    return Protected(setting.budget, options.every, batch, given)


def run(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    setting = SETTINGS[options.stream]
    if options.epochs is not None:
        setting = replace(setting, epochs=options.epochs)
    if options.budget is not None:
        setting = replace(setting, budget=options.budget)
    if options.lr is not None:
        setting = replace(setting, lr=options.lr)
    if options.examples is not None:
        setting = replace(setting, examples=options.examples)
    tasks, model = prepared(options.stream, options.data, options.device, options.order)
    if options.held_out:  # a fifth of the training data is tested on, to choose settings
        tasks = [Task(*halves(task.train)) for task in tasks]
    tasks, model = tasks[: options.tasks], model.to(options.device)
    method = method_of(options, setting)
    matrix, spent, steps = [], {"train": 0.0, "remember": 0.0}, 0
    kept: list[Any] = []  # of each task what was remembered of it, and its logits at its end
    changes: list[tuple[float | None, float]] = []
    for t, task in enumerate(tasks):
        model.task = t
        with Clock(spent, "train", options.device):
            steps += train(model, task, setting, method)
            method.settled()
        if kept:
            changes.append((method.forgetting(), changed(model, kept, setting.batch)))
        with Clock(spent, "remember", options.device):
            rows = torch.randperm(len(task.train[1]), device=options.device)[: setting.examples]
            mine = tuple(x[rows] for x in task.train[0])
            method.end_task(mine, task.train[1][rows])
        kept.append((t, mine, outputs(model, t, mine, setting.batch)))
        model.task = t
        row = []
        for s, other in enumerate(tasks[: t + 1]):
            model.task = s
            row.append(100 * measured(model, other.test, setting.batch)[1])
        matrix.append(row)
        print(options.stream, options.method, t, " ".join(f"{a:.1f}" for a in row), spent, flush=True)
        save(options, setting, model, method, matrix, spent, steps, changes)


@torch.no_grad()
def outputs(model: Heads, task: int, inputs: tuple[Tensor, ...], size: int) -> Tensor:
    """Logits (n, classes) of a task, less their mean per example."""
    model.eval()
    model.task = task
    logits = torch.cat([model(*x) for x in zip(*(x.split(size) for x in inputs), strict=True)])
    return logits - logits.mean(1, keepdim=True)


def changed(model: Heads, kept: list[Any], size: int) -> float:
    """How much the logits of old tasks changed since these ended, as a share of their spread (root mean square)."""
    task = model.task
    pairs = [(outputs(model, s, x, size), before) for s, x, before in kept]
    model.task = task
    total = sum(float(before.square().sum()) for _, before in pairs)
    return (sum(float((now - before).square().sum()) for now, before in pairs) / total) ** 0.5


def halves(data: tuple[tuple[Tensor, ...], Tensor]) -> tuple[tuple[tuple[Tensor, ...], Tensor], ...]:
    inputs, targets = data
    at = torch.arange(len(targets), device=targets.device) % 5 > 0
    return tuple((tuple(x[rows] for x in inputs), targets[rows]) for rows in (at, ~at))


class Clock:
    """Adds the seconds of a block to an entry."""

    def __init__(self, spent: dict[str, float], entry: str, device: str) -> None:
        self.spent, self.entry, self.device = spent, entry, device

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.spent[self.entry] = round(self.spent[self.entry] + time.perf_counter() - self.start, 1)


def save(
    options: argparse.Namespace,
    setting: Setting,
    model: Heads,
    method: Unprotected,
    matrix: list[list[float]],
    spent: dict[str, float],
    steps: int,
    changes: list[tuple[float | None, float]],
) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    last, T = matrix[-1], len(matrix)
    learned = [row[-1] for row in matrix]
    found = {
        "stream": options.stream,
        "method": options.method,
        "seed": options.seed,
        "every": options.every,
        "strength": options.strength,
        "rank": options.rank,
        "order": options.order,
        "held_out": options.held_out,
        "epochs": setting.epochs,
        "tasks": T,
        "examples": setting.examples,
        "bytes": method.bytes(),
        "model_bytes": sum(p.nbytes for name, p in model.named_parameters() if not name.startswith("heads.")),
        "accuracy": sum(last) / T,
        "learned": sum(learned) / T,
        "bwt": sum(a - b for a, b in zip(last[:-1], learned[:-1], strict=True)) / max(1, T - 1),
        "changes": changes,  # of old logits since their tasks, as shares of their spread: predicted, and measured
        "matrix": matrix,
        "seconds": spent,
        "steps": steps,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu",
        "torch": torch.__version__,
    }
    if isinstance(method, Protected) and method.protection is not None:
        found["memory"] = repr(method.protection.memory)
    tag = f"{options.tag}-" if options.tag else ""
    path = options.out / f"{tag}{options.stream}-{options.method}-{options.seed}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")


# ---------------------------------------------------------------- table


def table(folder: Path) -> str:
    """One row for each stream and method, mean and range over seeds."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        groups.setdefault((found["stream"], found["method"]), []).append(found)
    lines = ["| stream | method | bytes (of the model) | learned | at the end | backward transfer | seeds |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|"]
    for (stream, method), rows in sorted(groups.items()):
        mean: Callable[[str], float] = lambda key, rows=rows: sum(r[key] for r in rows) / len(rows)  # noqa: E731
        size = f"{mean('bytes') / 1e6:.1f} MB ({mean('bytes') / mean('model_bytes'):.0%})" if mean("bytes") else "–"
        numbers = f"{mean('learned'):.1f} | {mean('accuracy'):.1f} | {mean('bwt'):+.1f} | {len(rows)}"
        lines.append(f"| {stream} | {method} | {size} | {numbers} |")
    return "\n".join(lines)


def draw(folder: Path, stream: str, out: Path) -> None:
    """Mean accuracy on the tasks before the last one learned, by method, as an SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"font.size": 10, "svg.hashsalt": "sketchogd", "axes.spines.top": False})
    matplotlib.rcParams.update({"axes.spines.right": False, "axes.grid": True, "grid.color": "#e3e5e0"})
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7.2, 3.2), layout="constrained")
    names = {"none": ("not protected", "#c2571a"), "default": ("protected", "#1d6fa5"), "gpm": ("GPM", "#565c66")}
    tasks = 0
    for method, (label, color) in names.items():
        found = [json.loads(path.read_text())["matrix"] for path in sorted(folder.glob(f"{stream}-{method}-*.json"))]
        if found:
            tasks = len(found[0])
            old = [sum(sum(m[t][:t]) / t for m in found) / len(found) for t in range(1, tasks)]
            axis.plot(range(2, tasks + 1), old, "o-", color=color, markersize=4, label=label)
            axis.annotate(f"{old[-1]:.1f}", (tasks, old[-1]), (7, -3), textcoords="offset points", color=color)
    axis.set(xlabel="tasks learned, one after the other", ylabel="accuracy on the earlier ones, %")
    axis.set_xticks(range(2, tasks + 1))
    axis.legend(frameon=False, loc="lower left")
    figure.savefig(out, metadata={"Date": None}, facecolor="white")
    out.write_text("\n".join(line.rstrip() for line in out.read_text().splitlines()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("stream", choices=list(SETTINGS))
    one.add_argument("--method", choices=["none", "default", "gpm"], default="default")
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--out", type=Path, default=Path("runs/networks"))
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--tasks", type=int, default=TASKS)
    one.add_argument("--epochs", type=int)
    one.add_argument("--lr", type=float)
    one.add_argument("--examples", type=int, help="remembered of each task")
    one.add_argument("--every", type=int, default=10)
    one.add_argument("--strength", type=float)
    one.add_argument("--budget")
    one.add_argument("--rank", type=int, help="in place of a budget")
    one.add_argument("--damping", type=float, help="with a rank")
    one.add_argument("--anchor", help="with a rank: int8 or span")
    one.add_argument("--order", type=int, help="deal classes to tasks at random with this seed")
    one.add_argument("--held-out", action="store_true", help="test on a fifth of the training data")
    one.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    one.add_argument("--tag", default="")
    commands.add_parser("table").add_argument("folder", type=Path)
    figure = commands.add_parser("figure", help="accuracy on earlier tasks along a stream, of its records in a folder")
    figure.add_argument("folder", type=Path)
    figure.add_argument("stream", choices=list(SETTINGS))
    figure.add_argument("out", type=Path, help="an SVG file")
    options = parser.parse_args()
    if options.command == "figure":
        draw(options.folder, options.stream, options.out)
        return
    if options.command == "table":
        print(table(options.folder))
        return
    warnings.simplefilter("default")
    run(options)


if __name__ == "__main__":
    main()
