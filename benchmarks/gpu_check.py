"""Compare the library on a GPU with the CPU (test matrices, sketches, leak, layer memory, files); prints a table."""

import os
import tempfile
import time

import torch
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.lab.models import mlp
from sketchogd.sketch.testmatrix import SparseSign


def check(name: str, value: float, limit: float) -> bool:
    print(f"{'ok  ' if value <= limit else 'FAIL'} {name:58} {value:9.2e}  (limit {limit:.0e})")
    return value <= limit


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here")
    print(torch.cuda.get_device_name(0), torch.__version__)
    rows = torch.randn(64, 100_000) * torch.logspace(0, -3, 64)[:, None]
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    results = []

    pair = [SparseSign().bind(100_000, 256, 3, torch.float64, d).apply(rows.double().to(d)).cpu() for d in (cpu, gpu)]
    results.append(check("sparse signs differ", float((pair[0] - pair[1]).abs().max()), 1e-9))
    for sketch in (so.ProductSketch(24), so.SymmetricSketch(12, 12), so.GradientSketch(24), so.FrequentDirections(24)):
        bases = []
        for d in (cpu, gpu):
            s = sketch.fresh().bind(100_000, device=d)
            s.observe(rows.to(d))
            bases.append(s.basis().cpu().double())
        angle = torch.linalg.matrix_norm(bases[0] - (bases[0] @ bases[1].T) @ bases[1], 2)
        results.append(check(f"span of {type(sketch).__name__} differs", float(angle), 2e-3))

    x, y = torch.randn(2000, 1, 32, 32), torch.randint(0, 10, (2000,))
    for memory in (
        so.ProductSketch(1200),
        so.GradientMemory(so.ProductSketch(1200), basis_dtype="bfloat16", offload="cpu"),
        so.LayerSketch(rank=200, ridge=0.0, outputs=False),
    ):
        model = mlp().cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        protection = so.protect(model, optimizer, memory=memory)
        start = time.perf_counter()
        protection.remember(zip(x.split(500), y.split(500), strict=True))
        torch.cuda.synchronize()
        remembered = time.perf_counter() - start
        for i in range(100):
            optimizer.zero_grad()
            cross_entropy(model(x[10 * i : 10 * i + 10].cuda()), y[10 * i : 10 * i + 10].cuda()).backward()
            optimizer.step()
        name = type(protection.memory).__name__
        results.append(check(f"leak of {name} ({remembered:.1f} s to remember 2,000)", protection.leak, 1e-6))

    # A memory saved on the GPU is loaded and continued on the CPU.
    model = mlp().cuda()
    protection = so.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), memory=so.ProductSketch(50))
    protection.remember([(x[:200], y[:200])])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "memory.safetensors")
        protection.save(path)
        twin = mlp()
        loaded = so.protect(twin, torch.optim.SGD(twin.parameters(), lr=0.1), memory=so.ProductSketch(50))
        loaded.load(path)
    for p in (protection, loaded):
        p.remember([(x[200:400], y[200:400])])
    A, B = protection.projector.basis.cpu().double(), loaded.projector.basis.double()
    results.append(
        check("span after continuing on the CPU differs", float(torch.linalg.matrix_norm(A - (A @ B.T) @ B, 2)), 5e-2)
    )
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    raise SystemExit(not all(results))


if __name__ == "__main__":
    main()
