"""Layer memories of FSDP2 models against one process: networks, and what every process and the single one do."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so

from . import cases, workers

VOCABULARY, LENGTH, WIDTH = 11, 5, 8


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self):
        super().__init__()
        self.before, self.attention = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.between, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 13), nn.Linear(13, WIDTH)

    def forward(self, x):
        h = self.before(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """Tokens in, logits of tokens out; embedding and output layer are tied, positions are a table."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def mlp():
    """Of three outputs, which four processes have unevenly, and a layer norm."""
    return nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3, stride=2, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def gpt2():
    """The linear layers of transformers' GPT-2 are stored as (inputs, outputs)."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=1, n_head=2)
    return GPT2LMHeadModel(config).eval()


class Recurrent(nn.Module):
    """Weights of no layer: of an LSTM, and a scale in front of it."""

    def __init__(self):
        super().__init__()
        self.scale, self.cell, self.head = nn.Parameter(torch.ones(2)), nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.cell((1 + self.scale) * x.reshape(len(x), 3, 2))[0][:, -1])


class Routed(nn.Module):
    """Positions of all examples go through one of two slices of a parameter, so that calls mix examples."""

    def __init__(self):
        super().__init__()
        self.first, self.experts = nn.Linear(2, 4), nn.Parameter(torch.randn(2, 4, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = self.first(x.reshape(-1, 2))
        out = torch.zeros_like(h)
        for i in range(2):
            rows = ((x.reshape(-1, 2)[:, 0] > 0) == bool(i)).nonzero().flatten()
            out = out.index_add(0, rows, torch.tanh(h[rows] @ self.experts[i]))
        return self.head(out.view(len(x), 3, 4).mean(1))


def normalised():
    """With the statistics of a batch, so that examples are not independent."""
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Tanh(), nn.Linear(4, 3))


NETWORKS = {"recurrent": Recurrent, "routed": Routed, "normalised": normalised}
NETWORKS |= {"mlp": mlp, "transformer": Transformer, "convolutional": convolutional, "gpt2": gpt2}


def network(name):
    torch.manual_seed(0)
    return NETWORKS[name]().double()


def sharded(name, mesh):
    """The same, with every block and the whole sharded by FSDP2."""
    from torch.distributed.fsdp import fully_shard

    net = network(name)
    for part in net.modules():
        if isinstance(part, (Block, nn.Conv2d)) or type(part).__name__ == "GPT2Block":
            fully_shard(part, mesh=mesh)
    if name == "mlp":
        fully_shard(net[0], mesh=mesh)
    return fully_shard(net, mesh=mesh)


def examples(name, task):
    """(inputs, targets) of a task; batches of several examples where they need each other."""
    n = 16 if name == "normalised" else 18
    g = torch.Generator().manual_seed(task)
    if name in ("transformer", "gpt2"):
        tokens = torch.randint(0, VOCABULARY, (n, LENGTH), generator=g)
        return tokens, tokens.roll(-1, 1)
    shape = (2, 6, 6) if name == "convolutional" else (6,)
    return torch.randn(n, *shape, generator=g).double(), torch.randint(0, 3, (n,), generator=g)


def dealt(name, task, rank, size):
    """The batches of one process: uneven, and none at all for the last one in the first task."""
    x, y = examples(name, task)
    owners = max(1, size - (task == 1))
    own = torch.arange(rank, len(y), owners) if rank < owners else torch.arange(0)
    own = own[: max(0, len(own) - rank)]
    return [(x[i], y[i]) for i in own.split(4) if len(i)]


def in_order(name, task, size):
    shards = [dealt(name, task, rank, size) for rank in range(size)]
    for turn in range(max(map(len, shards))):
        yield from (shard[turn] for shard in shards if turn < len(shard))


def train(name, net, optimizer, task, rank=0, size=1, steps=4):
    x, y = examples(name, task)
    for step in range(steps):
        chosen = torch.arange(step * 5, step * 5 + cases.BATCH) % len(y)
        mine = chosen[rank::size]
        optimizer.zero_grad()
        output = net(x[mine])
        logits = output if isinstance(output, torch.Tensor) else output.logits
        loss = cross_entropy(logits.flatten(0, -2), y[mine].flatten())
        loss.backward()
        optimizer.step()


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.5),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


MEMORIES = {
    "pull": lambda: so.LayerMemory(4, strength=3.0),
    "exact": lambda: so.LayerMemory(50, strength=3.0),
    "int8": lambda: so.LayerMemory(4, strength=3.0, anchor_dtype="int8"),
    "span": lambda: so.LayerMemory(4, strength=3.0, anchor_dtype="span"),
    "positions": lambda: so.LayerMemory(4, strength=3.0, curvature="positions"),
    "shrink": lambda: so.LayerMemory(4, ridge=0.1),
    "project": lambda: so.LayerMemory(4, rule=so.Project()),
    "energy": lambda: so.LayerMemory(4, ridge=0.05, energy=0.9),
    "inputs": lambda: so.LayerMemory(4, ridge=0.0, energy=0.95, outputs=False),
    "inputs-pulled": lambda: so.LayerMemory(4, strength=3.0, outputs=False),
    "gradients-pulled": lambda: so.GradientMemory(so.ProductSketch(8), strength=3.0),
}


def lifelong(name, net, rank, size, optimizer="sgd", every=1, steps=4, memory="pull"):
    """Two tasks, remembered and trained on; what must be equal in the end."""
    optimizer = OPTIMIZERS[optimizer](net.parameters())
    protection = so.protect(net, optimizer, memory=MEMORIES[memory](), every=every)
    for task in (1, 2):
        alone = size < 0
        protection.remember(in_order(name, task, -size) if alone else dealt(name, task, rank, size))
        train(name, net, optimizer, 3 + task, *((0, 1) if alone else (rank, size)), steps=steps)
    protection.settle()
    found = {"weights": whole_weights(net), "examples": protection.memory.examples}
    found |= {"forgetting": protection.forgetting(), "leak": protection.leak}
    found["displacement"], found["parts"] = protection.diagnostics()["displacement"], workers.projected(protection)
    found["reference"] = sum(held.nbytes for held in protection.held() if held.name.startswith("reference"))
    protection.detach()
    return found


def whole_weights(net):
    parts = [p.full_tensor() if type(p).__name__ == "DTensor" else p for p in net.parameters()]
    return torch.cat([p.detach().flatten() for p in parts])


def alone(name, size, **options):
    """One process that remembers what `size` processes do."""
    return lifelong(name, network(name), 0, -size, **options)


def mesh_of(size, replicas=1):
    from torch.distributed.device_mesh import init_device_mesh

    if replicas == 1:
        return init_device_mesh("cpu", (size,))
    return init_device_mesh("cpu", (replicas, size // replicas), mesh_dim_names=("replicate", "shard"))


def runs(rank, size, wanted, replicas=1):
    """{key: what `lifelong` finds} for [(key, name of a network, options)]."""
    mesh = mesh_of(size, replicas)
    return {key: lifelong(name, sharded(name, mesh), rank, size, **options) for key, name, options in wanted}


# ---------------------------------------------------------------- files

STORED = [("mlp", "pull"), ("mlp", "int8"), ("mlp", "span"), ("mlp", "gradients-pulled")]


def begun(name, memory, net):
    optimizer = OPTIMIZERS["adamw"](net.parameters())
    return optimizer, so.protect(net, optimizer, memory=MEMORIES[memory](), every=2)


def after(name, net, optimizer, protection, rank, size):
    """Where steps lead from here, with an optimizer that knows nothing yet."""
    train(name, net, optimizer, 5, rank, size)
    protection.settle()
    return {"weights": whole_weights(net), "forgetting": protection.forgetting()}


def saved(rank, size, folder, stored, replicas=1):
    """Remember a task, move away from the anchor, save in both ways, and go on with another optimizer."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    found, mesh = {}, mesh_of(size, replicas)
    for name, memory in stored:
        net, key = sharded(name, mesh), f"{name}-{memory}"
        optimizer, protection = begun(name, memory, net)
        protection.remember(dealt(name, 1, rank, size))
        train(name, net, optimizer, 4, rank, size)
        protection.save(f"{folder}/{key}.safetensors")
        dcp.save({"memory": protection}, checkpoint_id=f"{folder}/{key}")
        weights = {n: p.full_tensor().clone() for n, p in net.named_parameters()}
        if rank == 0:
            save_file(weights, f"{folder}/{key}.weights")
        optimizer = OPTIMIZERS["adamw"](net.parameters())
        protection.attach(optimizer)
        found[key] = after(name, net, optimizer, protection, rank, size)
        protection.detach()
    return found


def filled(net, folder, key):
    """The network with the weights that were saved."""
    from safetensors.torch import load_file
    from torch.distributed.tensor import distribute_tensor

    weights = load_file(f"{folder}/{key}.weights")
    with torch.no_grad():
        for name, p in net.named_parameters():
            split = type(p).__name__ == "DTensor"
            p.copy_(distribute_tensor(weights[name], p.device_mesh, p.placements) if split else weights[name])
    return net


def loaded(rank, size, folder, stored, way, replicas=1):
    """What `saved` finds, from the file or the checkpoint, in any number of processes; size 0 is one without FSDP2."""
    import torch.distributed.checkpoint as dcp

    found, mesh = {}, mesh_of(size, replicas) if size else None
    for name, memory in stored:
        key = f"{name}-{memory}"
        net = filled(network(name) if mesh is None else sharded(name, mesh), folder, key)
        optimizer, protection = begun(name, memory, net)
        if way == "file":
            protection.load(f"{folder}/{key}.safetensors")
        else:
            dcp.load({"memory": protection}, checkpoint_id=f"{folder}/{key}")
        found[key] = after(name, net, optimizer, protection, rank, max(size, 1))
        protection.detach()
    return found
