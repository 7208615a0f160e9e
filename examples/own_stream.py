"""A custom stream from a list of tasks: points in the plane, divided into two classes by a line that turns per task.

Run it: python examples/own_stream.py
"""

import math

import torch

from sketchogd.lab import Task, Training, fit, from_datasets, method, mlp


def turned(angle: float, place: int, n: int = 200) -> Task:
    """Return a task: points divided by a line at this angle; a one-hot code of `place` in the inputs marks the task."""
    x = torch.randn(2 * n, 2, generator=torch.Generator().manual_seed(place))
    y = (x @ torch.tensor([math.cos(angle), math.sin(angle)]) > 0).long()
    x = torch.cat([x, torch.eye(4)[place].expand(2 * n, 4)], dim=1)
    return Task(x[:n], y[:n], x[n:], y[n:], name=f"turned {math.degrees(angle):.0f}°", classes=2)


if __name__ == "__main__":
    stream = from_datasets([turned(i * math.pi / 4, i) for i in range(4)], name="turning-line")
    for name in ("sgd", "sketchogd", "layer-sketch", "replay"):
        settings = {"rank": 100} if name == "sketchogd" else {}
        model = mlp(6, (64, 64), 2, seed=1)
        result = fit(stream, model, method(name, **settings), Training(epochs=20, lr=0.05))
        final = "  ".join(f"{score:.2f}" for score in result.accuracy[-1])
        print(f"{name:14} {final}   mean {result.summary.average_accuracy:.3f}  {result.ledger['nbytes']:>9,} bytes")
