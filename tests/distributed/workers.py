"""What the processes do; each function is run by all processes of a group and returns plain data and tensors."""

import warnings

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn

import sketchogd as so

from . import cases

FSDP_EXAMPLES = 10


def projected(protection):
    """The protected parts of the probes; of split parameters put together again."""
    columns = protection.parameters.columns
    parts = []
    with warnings.catch_warnings():  # a memory may be loaded here beside weights that it does not belong to
        warnings.filterwarnings("ignore", message="the weights are not those")
        projector = protection.projector
    for v in cases.probes(protection.parameters.p):
        if not protection.parameters.split:
            parts.append(projector.protected_part_(v))
            continue
        mine = torch.cat([v[part.start : part.stop] for part in columns.ranges])
        mine = projector.protected_part_(mine)
        whole = torch.zeros_like(v)
        for here, there in columns.blocks(columns.d):
            whole[there] = mine[here]
        parts.append(columns.total(whole))
    return torch.stack(parts)


def run(net, inner, rank, size, make, momentum=0.9, n=24, every=1, **options):
    """Two tasks, remembered and trained on, as `cases.single` does."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)
    protection = so.protect(net, optimizer, memory=make(), every=every, **options)
    for task in (1, 2):
        protection.remember(cases.batches_of(task, rank, size, n))
        cases.train(net, optimizer, 3 + task, rank, size)
    protection.settle()
    weights = torch.cat([_whole(p).flatten() for p in inner.parameters()])
    result = {"parts": projected(protection), "weights": weights, **cases.facts(protection)}
    result["nbytes"] = protection.ledger().nbytes
    protection.detach()
    return result


def _whole(p):
    return p.full_tensor() if type(p).__name__ == "DTensor" else p.detach()


def ddp():
    return nn.parallel.DistributedDataParallel(cases.model())


def fsdp(size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, mesh = cases.model(), init_device_mesh("cpu", (size,))
    fully_shard(net[0], mesh=mesh)
    fully_shard(net, mesh=mesh)  # the last layer belongs to the root, which stays gathered after a forward pass
    return net


def every_sketch(rank, size, all_with_fsdp):
    """{(layout, sketch): what `run` gives}."""
    found = {}
    for name, make in cases.SKETCHES.items():
        for way, options in cases.WAYS.items() if name == "product" else [("", {})]:
            key = f"{name}{way}"
            net = ddp()
            found[f"ddp {key}"] = run(net, net.module, rank, size, make, **options)
            net = ddp()
            found[f"flat {key}"] = run(net, net.module, rank, size, make, **options, shard=True)
            # Every example takes a pass through the whole group, so usually only the paper's sketches go through this.
            if all_with_fsdp or name in cases.PAPER:
                net = fsdp(size)
                found[f"fsdp {key}"] = run(net, net, rank, size, make, **options, n=FSDP_EXAMPLES)
    for name, make in {**cases.BLOCKS, **cases.LAYERS}.items():
        net = ddp()
        found[f"ddp {name}"] = run(net, net.module, rank, size, make)
    return found


# ---------------------------------------------------------------- everything else, in one group of three


FILES = ("ddp", "flat", "fsdp", "layer", "layer-rounded", "pulled")
ANCHORED = ("layer", "layer-rounded", "pulled")
LAYOUTS = {
    "ddp": lambda size: (ddp(), {}),
    "flat": lambda size: (ddp(), {"shard": True}),
    "fsdp": lambda size: (fsdp(size), {}),
}


def protected(layout, size, memory=None, every=1, lr=0.1, **more):
    net, options = LAYOUTS[layout](size)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    memory = so.ProductSketch(12) if memory is None else memory
    return net, optimizer, so.protect(net, optimizer, memory=memory, every=every, **options, **more)


def behaviour(rank, size, folder):
    parts = (_padding, _errors, _streams, _scales, _falling_spectrum, _single_precision, _refusals)
    found = {}
    for part in (*parts, _limits, _statistics, _settling, _wire, _files):
        found |= part(rank, size, folder)
    return found


def _padding(rank, size, folder):
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    x, y = cases.examples(1)
    found = {}
    for layout in LAYOUTS:
        for n in (10, 2):
            data = TensorDataset(x[:n], y[:n])
            sampler = DistributedSampler(data, num_replicas=size, rank=rank, shuffle=True)
            _, _, protection = protected(layout, size)
            protection.remember(DataLoader(data, batch_size=3, sampler=sampler))
            parts = projected(protection)
            found[f"padding {layout} {n}"] = {"examples": protection.memory.examples, "parts": parts}
    found["dealt"] = list(so.distributed.deal(range(10)).indices)
    return found


def _errors(rank, size, folder):
    found = {}
    for layout in LAYOUTS:
        _, _, protection = protected(layout, size)
        x, y = cases.examples(1)
        x, y = x[rank::size].clone(), y[rank::size]
        protection.remember([(x[:4], y[:4])])
        if rank == 1:
            x[5] = torch.nan
        try:
            protection.remember([(x[4:], y[4:])])
            kind = "none"
        except (so.ProtectionError, so.NonFiniteError) as error:
            kind = type(error).__name__
        x, y = cases.examples(1)
        protection.remember([(x[rank::size][4:], y[rank::size][4:])])
        found[f"error {layout}"] = {"kind": kind, "rows_after": protection.diagnostics()["sketch"]["rows"]}
    return found


def _streams(rank, size, folder):
    x, y = cases.examples(1)
    net, optimizer, protection = protected("ddp", size)
    protection.observe(*((x[:4], y[:4]) if rank == 0 else (None,)))
    protection.observe(*((x[4:6], y[4:6]) if rank == 2 else (None,)))
    cases.train(net, optimizer, 4, rank, size)
    return {"stream": protection.parameters.flatten()}


def _scales(rank, size, folder):
    """Each process sees numbers of another size, so that each keeps its sketch at another power of two."""
    x, y = cases.examples(1)
    _, _, protection = protected("ddp", size)
    protection.remember([(x[rank::size] * 4.0**rank, y[rank::size])])
    return {"scales": projected(protection)}


def _falling_spectrum(rank, size, folder):
    """A split float32 sketch of rows whose sizes fall by six orders, so that its basis needs polishing."""
    from sketchogd.distributed.shards import FlatShard, cut, gathered

    group = so.distributed.Group(dist.group.WORLD, torch.device("cpu"))
    columns = FlatShard(40, group)
    rows = torch.randn(18, 40, generator=torch.Generator().manual_seed(1))
    rows *= 10.0 ** (-torch.arange(18.0)[:, None] / 3)
    sketch = so.GradientSketch(18).bind(40, columns=columns)
    sketch.observe(cut(columns, rows))
    basis = gathered(columns, sketch.basis(), group)
    whole = so.GradientSketch(18).bind(40)
    whole.observe(rows)
    return {"falling": (basis, whole.basis().clone()) if rank == 0 else None}


def _single_precision(rank, size, folder):
    found = {}
    x, y = cases.examples(1, 12)
    for layout in LAYOUTS:
        cases.DTYPE = torch.float32
        _, _, protection = protected(layout, size)
        protection.remember([(x[rank::size].float(), y[rank::size])])
        found[f"float32 {layout}"] = projected(protection)
        cases.DTYPE = torch.float64
    return found


def _refusals(rank, size, folder):
    def reason(action):
        try:
            action()
        except (ValueError, so.ProtectionError) as error:
            return str(error)
        return "it was accepted"

    def placed(how):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard

        net, mesh = cases.model(), init_device_mesh("cpu", (size,))
        by_column = (lambda p: Shard(1) if p.ndim == 2 else None) if how == "columns" else None
        fully_shard(net[0], mesh=mesh, shard_placement_fn=by_column)
        so.protect(net, torch.optim.SGD(net.parameters(), lr=0.1), memory=so.ProductSketch(12))

    growing = protected("flat", size, so.AllRows())[2]
    return {
        "refused": {
            "other seed": reason(lambda: protected("ddp", size, so.ProductSketch(12, seed=rank))),
            "sharded layer memory": reason(lambda: protected("flat", size, so.LayerSketch(rank=5))),
            "layer memory that does not add up": reason(
                lambda: protected("ddp", size, so.LayerSketch(rank=2, sketch=so.FrequentDirections))
            ),
            "checkpoint of a growing sketch": reason(growing.state_dict),
            "partly split": reason(lambda: placed("rows")),
            "split along columns": reason(lambda: placed("columns")),
        }
    }


def _limits(rank, size, folder):
    limit, whole = 5_000, "it was accepted"
    try:
        protected("ddp", size, so.GradientMemory(so.ProductSketch(12), limit=limit))
    except ValueError as error:
        whole = str(error)
    _, _, protection = protected("flat", size, so.GradientMemory(so.ProductSketch(12), limit=limit))
    protection.remember(cases.batches_of(1, rank, size))
    budgets = []
    for options in ({}, {"shard": True}):
        net = ddp()
        chosen = so.protect(net, torch.optim.SGD(net.parameters(), lr=0.1), budget=9_000, **options)
        chosen.remember(cases.batches_of(1, rank, size))
        budgets.append((chosen.memory.name, chosen.ledger().nbytes))
    missing = -(-protection.parameters.p // size) - protection.parameters.columns.width
    return {
        "limit": {"limit": limit, "whole": whole, "split": protection.ledger().nbytes, "missing": missing},
        "budgets": budgets,
    }


def _statistics(rank, size, folder):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).to(cases.DTYPE)
    net = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    protection = so.protect(net, optimizer, memory=so.ProductSketch(12))
    x, y = cases.examples(1)
    cases.train(net, optimizer, 1, rank, size, steps=1)
    mine = inner[1].running_mean.clone()
    first = mine.clone()
    dist.broadcast(first, 0)
    spread = torch.tensor(float((mine - first).abs().max()))
    dist.all_reduce(spread)
    protection.remember([(x[rank::size], y[rank::size])])
    found = inner[1].running_mean.clone()
    cases.train(net, optimizer, 2, rank, size, steps=2)
    held, state = torch.equal(found, inner[1].running_mean), protection.state_dict()
    return {"statistics": found, "spread": float(spread), "held": held, "digests": state["meta"]["buffers"]}


def _settling(rank, size, folder):
    x, y = cases.examples(1)
    results = []
    for evaluates in (True, False):
        net, optimizer, protection = protected("fsdp", size, every=3)
        protection.remember([(x[rank::size], y[rank::size])])
        cases.train(net, optimizer, 4, rank, size, steps=2)
        if evaluates:
            with warnings.catch_warnings(record=True) as caught, torch.no_grad():
                warnings.simplefilter("always", so.ProtectionWarning)  # two steps wait; others stay errors
                net(x[:2])
                net(x[:2])
        protection.settle()
        with torch.no_grad():
            results.append(net(x))
    net(x[:3]).square().sum().backward()
    before = [p.grad.to_local().clone() for p in net.parameters()]
    protection.remember([(x[:1], y[:1])])
    kept = all(torch.equal(p.grad.to_local(), b) for p, b in zip(net.parameters(), before, strict=True))
    said = [str(warning.message) for warning in caught]
    return {"settled": results[0], "expected settled": results[1], "unsettled": said, "gradients kept": kept}


class Wire:
    """Counts the payloads of collectives, by taking their place in torch.distributed."""

    def __init__(self):
        self.payload = {}

    def __enter__(self):
        from sketchogd.distributed import group

        self.kept = [(dist, "all_reduce"), (dist, "all_to_all_single"), (group, "_gather_into")]
        self.kept += [(group, "_reduce_scatter"), (dist, "broadcast")]
        self.kept = [(where, name, getattr(where, name)) for where, name in self.kept]
        kinds = {"all_to_all_single": "all_to_all", "_gather_into": "all_gather", "_reduce_scatter": "reduce_scatter"}
        self.payload = {"all_reduce": 0, "reduce_scatter": 0, "all_gather": 0, "all_to_all": 0}
        for where, name, function in self.kept:
            setattr(where, name, self._counting(kinds.get(name, name), function))
        return self

    def _counting(self, kind, function):
        def counted(*args, **kwargs):
            tensor = args[1] if kind in ("all_to_all", "reduce_scatter") else args[0]
            if kind in self.payload:
                self.payload[kind] += tensor.numel() * tensor.element_size()
            return function(*args, **kwargs)

        return counted

    def __exit__(self, *_):
        for where, name, function in self.kept:
            setattr(where, name, function)


def _wire(rank, size, folder):
    found = {}
    x, y = cases.examples(1, 60)
    for layout, kind in (("whole", "ddp"), ("flat", "flat"), ("fsdp", "fsdp")):
        traffic = {}
        for b in (5, 14):
            net, optimizer, protection = protected(kind, size)
            with Wire() as wire:
                protection.remember([(x[rank::size][:b], y[rank::size][:b])])
            traffic[f"remember {b}"] = wire.payload
        for step in (1, 2, 3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rank::size]), y[rank::size]).backward()
            with Wire() as wire:
                optimizer.step()
            traffic["step" if step == 3 else "measured step"] = wire.payload
        traffic["rank"] = len(protection.projector.basis)
        found[f"wire {layout}"] = traffic
    return found


def _stored(layout, size):
    """A protection for the tests of files: anchored layer memories with DDP, an anchored gradient sketch split."""
    if layout == "pulled":
        return protected("flat", size, so.GradientMemory(so.ProductSketch(12), strength=3.0))
    if layout.startswith("layer"):
        return protected(
            "ddp", size, so.LayerSketch(rank=5, anchor_dtype="int8" if layout == "layer-rounded" else None)
        )
    return protected(layout, size)


def _outcome(net, optimizer, protection, layout, rank, size):
    """What must be the same after a save and a load: the projections, and for an anchored memory where steps lead."""
    if layout not in ANCHORED:
        return projected(protection)
    cases.train(net, optimizer, 4, rank, size, steps=2)
    return protection.parameters.flatten()


def _files(rank, size, folder):
    import torch.distributed.checkpoint as dcp

    found = {}
    for layout in FILES:
        net, optimizer, protection = _stored(layout, size)
        protection.remember(cases.batches_of(1, rank, size, 12))
        cases.train(net, optimizer, 5, rank, size, steps=3)  # away from the anchor
        weights = {name: _whole(p).clone() for name, p in (net if layout == "fsdp" else net.module).named_parameters()}
        if rank == 0:
            save_file(weights, f"{folder}/{layout}.weights")
        protection.save(f"{folder}/{layout}.safetensors")
        dcp.save({"memory": protection}, checkpoint_id=f"{folder}/{layout}.checkpoint")
        if layout not in ANCHORED:
            found[f"rank {layout}"] = len(protection.projector.basis)
            again = _stored(layout, size)
            again[2].load(f"{folder}/{layout}.safetensors")
            found[f"read {layout}"] = projected(again[2])
        found[f"saved {layout}"] = _outcome(net, optimizer, protection, layout, rank, size)
        if layout not in ANCHORED:
            protection.remember(cases.batches_of(2, rank, size, 12))
            found[f"continued {layout}"] = (protection.memory.examples, projected(protection))
    return found


def load_checkpoints(rank, size, folder):
    """Load what three processes saved, in this number of processes, and go on as they did."""
    import torch.distributed.checkpoint as dcp

    found = {}
    for layout in FILES:
        net, optimizer, protection = _stored(layout, size)
        weights = load_file(f"{folder}/{layout}.weights")
        with torch.no_grad():
            for name, p in net.named_parameters():
                value = weights[name.removeprefix("module.")]
                if type(p).__name__ == "DTensor":
                    from torch.distributed.tensor import distribute_tensor

                    value = distribute_tensor(value, p.device_mesh, p.placements)
                p.copy_(value)
        dcp.load({"memory": protection}, checkpoint_id=f"{folder}/{layout}.checkpoint")
        if layout not in ANCHORED:
            found[f"rank {layout}"] = len(protection.projector.basis)
        if layout in ("ddp", "flat"):
            _, _, other = protected({"ddp": "flat", "flat": "ddp"}[layout], size)
            dcp.load({"memory": other}, checkpoint_id=f"{folder}/{layout}.checkpoint")
            found[f"{layout} by the other"] = projected(other)
        found[layout] = _outcome(net, optimizer, protection, layout, rank, size)
        if layout not in ANCHORED:
            batches = list(cases.in_order(2, 3, 12))
            protection.remember(batches[rank::size])
            found[f"continued {layout}"] = (protection.memory.examples, projected(protection))
    return found


# ---------------------------------------------------------------- other settings


def _first_sum(output, targets):
    return output.sum()


def _last_sum(output, targets):
    return output[-1]


def disagreements(rank, size):
    """{what process 1 has otherwise: (the message, the seconds until it came)} of every setting that must agree."""
    import time

    from sketchogd.distributed import processes

    def protect(net=None, optimizer=torch.optim.SGD, version=None, **options):
        net = cases.model() if net is None else net
        options = {"memory": so.ProductSketch(12)} | options if "budget" not in options else options
        before, processes.__version__ = processes.__version__, version or processes.__version__
        try:
            so.protect(net, optimizer(net.parameters(), lr=0.1), group=dist.group.WORLD, **options)
        finally:
            processes.__version__ = before

    protect()  # what is slow the first time, such as imports, is not timed
    other = rank == 1
    wide = nn.Sequential(nn.Linear(6, 7 + other), nn.Tanh(), nn.Linear(7 + other, 3))
    deep = nn.ModuleList([nn.Linear(2, 2 + (other and number == 30)) for number in range(40)])
    tries = {
        "every": {"every": 1 + other},
        "output": {"output": _last_sum if other else _first_sum},
        "shard": {"shard": other},
        "seed": {"memory": so.ProductSketch(12, seed=int(other))},
        "rule": {"memory": so.GradientMemory(so.ProductSketch(12), rule=so.Pull(3.0) if other else so.Project())},
        "kind": {"memory": so.LayerMemory(3) if other else so.ProductSketch(12)},
        "budget": {"budget": "25%" if other else 9000},
        "strength": {"budget": 9000, "strength": 2.0 + other},
        "optimizer": {"optimizer": torch.optim.RMSprop if other else torch.optim.SGD},
        "shapes": {"net": wide},
        "one of many": {"net": deep},
        "parameters": {"parameters": ["0.*"] if other else None},
        "version": {"version": "9.9" if other else None},
    }
    found = {}
    for name, options in tries.items():
        began = time.monotonic()
        try:
            protect(**options)
            message = "it was accepted"
        except ValueError as error:
            message = str(error)
        found[name] = (message, time.monotonic() - began)
    protect()  # they can go on
    return found


# ---------------------------------------------------------------- failure


HANGS = 14
"""Seconds that a process hangs, several times the timeout: machines may be busy."""


def one_is_lost(rank, size, how):
    """Process 1 dies or hangs while it remembers; how long the others wait, and what they say."""
    import os
    import time

    x, y = cases.examples(1)
    _, _, protection = protected("ddp", size)
    began = [0.0]

    def batches():
        yield x[:2], y[:2]
        began[0] = time.monotonic()
        if rank == 1 and how == "dies":
            os._exit(1)
        if rank == 1:
            time.sleep(HANGS)
        yield x[2:4], y[2:4]

    try:
        protection.remember(batches())
    except so.ProtectionError as error:
        return time.monotonic() - began[0], str(error)
    return 0.0, "no error"
