"""FSDP2: weights, optimizer state and the weights that are pulled back to are sharded over the processes.

The factors of a layer memory are small and whole in every process.

torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import argparse
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.distributed import start
from sketchogd.lab import benchmark, mlp


def sharded_mlp(device: torch.device) -> torch.nn.Module:
    model = mlp(outputs=2).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(tasks, options, device: torch.device, protected: bool):
    model = sharded_mlp(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    protection = so.protect(model, optimizer, memory=so.LayerMemory(options.rank)) if protected else None
    rank, size = dist.get_rank(), dist.get_world_size()
    for task in tasks:
        x, y = task.x_train[: options.examples].to(device), task.y_train[: options.examples].to(device)
        for epoch in range(options.epochs):
            order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch)).to(device)
            for batch in order.split(20):
                mine = batch[rank::size]
                optimizer.zero_grad()
                cross_entropy(model(x[mine]), y[mine]).backward()
                optimizer.step()
        if protection is not None:
            own = torch.arange(rank, options.remembered, size)
            protection.remember([(x[part], y[part]) for part in own.split(50)])  # every process passes its own
    with torch.no_grad():
        scores = [float((model(t.x_test.to(device)).argmax(1).cpu() == t.y_test).float().mean()) for t in tasks]
    return scores, protection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, default=100, help="rank of the layer memory")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2, help="epochs per task")
    parser.add_argument("--examples", type=int, default=1000, help="examples per task")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--remembered", type=int, default=100, help="examples to remember per task")
    options = parser.parse_args()
    device = start(timeout=timedelta(minutes=2))  # init_process_group, with NCCL or gloo
    tasks = list(benchmark("split-mnist"))[: options.tasks]
    for name, protected in (("plain Adam", False), ("protected", True)):
        scores, protection = train(tasks, options, device, protected)
        if dist.get_rank() == 0:
            print(name, "  ".join(f"{task.name} {score:.3f}" for task, score in zip(tasks, scores, strict=True)))
    if dist.get_rank() == 0:
        print(protection.ledger())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
