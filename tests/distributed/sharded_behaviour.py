"""What the processes of an FSDP2 model do beside remembering and training: errors, streams, refusals, bytes."""

import torch
import torch.distributed as dist
from torch import nn

import sketchogd as so

from . import cases, sharded
from .workers import Wire, projected

BUDGETS = {3_600: "full", 2_300: "none"}
"""Bytes of one process, and how its part of the anchor is kept."""


def everything(rank, size):
    found = {}
    for part in (_failure, _stream, _single_examples, _given_weights, _gradients, _budget, _refusals, _wire, _mixed):
        found |= part(rank, size)
    return found


def protected(net, memory="pull", every=1, **options):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    return optimizer, so.protect(net, optimizer, memory=sharded.MEMORIES[memory](), every=every, **options)


def _failure(rank, size):
    """Process 1 has an example that is not a number; then all go on without it."""
    net = sharded.sharded("mlp", sharded.mesh_of(size))
    _, protection = protected(net)
    x, y = sharded.examples("mlp", 1)
    bad = x[rank::size].clone()
    bad[0, 0] = torch.nan if rank == 1 else 0.0
    kinds = []
    for batch in ((bad, y[rank::size]), (x[rank::size], y[rank::size] if rank else None)):
        try:
            protection.remember([batch])
            kinds.append("none")
        except (so.ProtectionError, so.NonFiniteError) as error:
            kinds.append(type(error).__name__)
    return {"failure": {"kinds": kinds, "examples": protection.memory.examples, "parts": projected(protection)}}


def stream(net, rank, size):
    """Observe between steps, some processes nothing: a pull keeps what it was holding."""
    optimizer, protection = protected(net)
    x, y = sharded.examples("mlp", 1)
    for task, part in ((3, slice(0, 6)), (4, slice(6, 11))):
        own = (x[part], y[part]) if rank == task % size else (None,)
        protection.observe(*own)
        sharded.train("mlp", net, optimizer, task, rank, size, steps=3)
    return {"weights": sharded.whole_weights(net), "forgetting": protection.forgetting()}


def _stream(rank, size):
    return {"stream": stream(sharded.sharded("mlp", sharded.mesh_of(size)), rank, size)}


def _single_examples(rank, size):
    """One process brings batches of one example, others of several."""
    net = sharded.sharded("transformer", sharded.mesh_of(size))
    _, protection = protected(net)
    x, y = sharded.examples("transformer", 1)
    protection.remember([(x[i : i + 1], y[i : i + 1]) for i in (0, 1)] if rank == 0 else [(x[2:6], y[2:6])])
    return {"single examples": projected(protection)}


def _given_weights(rank, size):
    """How far the weights of a state_dict would be from what is remembered."""
    net = sharded.sharded("mlp", sharded.mesh_of(size))
    optimizer, protection = protected(net)
    protection.remember(sharded.dealt("mlp", 1, rank, size))
    sharded.train("mlp", net, optimizer, 4, rank, size, steps=2)
    moved = {name: t.detach().clone() for name, t in net.state_dict().items()}
    now = protection.forgetting()
    sharded.train("mlp", net, optimizer, 5, rank, size, steps=2)
    return {"given weights": (now, protection.forgetting(moved))}


def _gradients(rank, size):
    """Remembering leaves gradients, modes and parameters as they are."""
    net = sharded.sharded("mlp", sharded.mesh_of(size))
    _, protection = protected(net)
    x, y = sharded.examples("mlp", 1)
    net(x[:3]).square().sum().backward()
    before = [p.grad.to_local().clone() for p in net.parameters()]
    protection.remember([(x[:4], y[:4])])
    same = all(torch.equal(p.grad.to_local(), b) for p, b in zip(net.parameters(), before, strict=True))
    return {"as before": same and net.training and all(type(p).__name__ == "DTensor" for p in net.parameters())}


def _budget(rank, size):
    found = []
    for budget in BUDGETS:
        net = sharded.sharded("mlp", sharded.mesh_of(size))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        protection = so.protect(net, optimizer, budget=budget)
        protection.remember(sharded.dealt("mlp", 1, rank, size))
        sharded.train("mlp", net, optimizer, 3, rank, size, steps=1)
        anchor = protection.memory.rule.anchor
        kept = "none" if anchor is None else anchor.dtype or "full"
        found.append((protection.memory.name, kept, protection.ledger().nbytes))
    return {"budget": found}


def _refusals(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def reason(build, memory):
        try:
            net = build()
            so.protect(net, torch.optim.SGD(net.parameters(), lr=0.1), memory=memory)
        except ValueError as error:
            return str(error)
        return "it was accepted"

    def tensor_parallel(shard):
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("dp", "tp"))
        parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return fully_shard(net, mesh=mesh["dp"]) if shard else net

    def plain():
        return sharded.sharded("mlp", sharded.mesh_of(size))

    return {
        "refused": {
            "tensor parallel": reason(lambda: tensor_parallel(False), so.LayerMemory(4)),
            "tensor parallel, gradients": reason(lambda: tensor_parallel(False), so.ProductSketch(4)),
            "tensor parallel and FSDP2": reason(lambda: tensor_parallel(True), so.LayerMemory(4)),
            "does not add up": reason(plain, so.LayerMemory(4, sketch=so.FrequentDirections)),
        }
    }


def _wire(rank, size):
    """Payloads of a step, of observing and of the end of a task, and what the formulas need to know."""
    net = sharded.sharded("mlp", sharded.mesh_of(size))
    optimizer, protection = protected(net)
    x, y = sharded.examples("mlp", 1)
    traffic = {}
    for name in ("first round", "round"):
        with Wire() as wire:
            protection.observe(x[rank::size], y[rank::size])
        traffic[name] = wire.payload
    with Wire() as wire:
        protection.remember([(x[rank::size], y[rank::size])])
    traffic["remember"] = wire.payload
    sketches = [sketch for _, sketch in protection.memory.sketches()]
    traffic["numbers"], traffic["sketches"] = sum(s.summand().numel() for s in sketches), len(sketches)
    protection.refresh()
    for step in (1, 2, 3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rank::size]), y[rank::size]).backward()
        with Wire() as wire:
            optimizer.step()
        traffic["step" if step == 3 else "measured step"] = wire.payload
    spectra = {name: layer.spectra for name, layer in protection.projector.layers.items()}
    traffic["ranks"] = {name: (len(s.outputs), len(s.inputs), s.unseen > 0) for name, s in spectra.items()}
    traffic["others"] = sum(len(layer.spectra.input_values) for layer in protection.projector.others.layers)
    return {"wire": traffic}


def _mixed(rank, size):
    """Parameters are gathered in bfloat16 and kept in float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    cases_dtype, cases.DTYPE = cases.DTYPE, torch.float32
    net = fully_shard(
        sharded.network("mlp").float(),
        mesh=sharded.mesh_of(size),
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32),
    )
    _, protection = protected(net)
    protection.remember([(x.float(), y) for x, y in sharded.dealt("mlp", 1, rank, size)])
    found = projected(protection)
    cases.DTYPE = cases_dtype
    return {"mixed": found, "world": dist.get_world_size()}
