"""Compare measured peak memory with the ledger, for the paper's MLP with a product sketch of rank 1200.

A fresh process protects the network, remembers 2,000 examples and takes 50 projected steps. Its peak resident memory
above that of importing torch is compared with the bytes of the ledger.
"""

import argparse
import json
import resource
import sys

import torch


def peak() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, default=1200)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    imported = peak()
    # torch loads some of its parts on demand: at the first factorisation, backward pass and optimizer step.
    warm = torch.nn.Parameter(torch.randn(64, 64))
    torch.linalg.eigh(warm.double() @ warm.double().T)[0].sum().backward()
    torch.optim.SGD([warm], lr=0.1, momentum=0.9).step()
    start = peak()

    import sketchogd as so
    from sketchogd.lab.models import mlp
    from sketchogd.lab.streams import benchmark

    x, y = benchmark("rotated-mnist", tasks=1, n_train=options.examples).train(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    with_data = peak()

    protection = so.protect(model, optimizer, memory=so.ProductSketch(options.rank))
    protection.remember(zip(x.split(500), y.split(500), strict=True))
    for i in range(options.steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[10 * i : 10 * i + 10]), y[10 * i : 10 * i + 10]).backward()
        optimizer.step()

    ledger = protection.ledger().nbytes
    result = {
        "rank": options.rank,
        "ledger_bytes": ledger,
        "peak_bytes": peak() - start,
        "peak_bytes_above_bare_import": peak() - imported,
        "of_which_data_and_model_bytes": with_data - start,
        "ratio": (peak() - start) / ledger,
        "leak": protection.leak,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"ledger                        {ledger / 1e6:8.1f} MB")
    print(f"peak above torch at work      {result['peak_bytes'] / 1e6:8.1f} MB")
    print(f"peak above a bare import      {result['peak_bytes_above_bare_import'] / 1e6:8.1f} MB")
    print(f"ratio                         {result['ratio']:8.2f}")
    print(f"leak of the projector         {protection.leak:8.1e}")


if __name__ == "__main__":
    main()
