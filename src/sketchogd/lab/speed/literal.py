"""SketchOGD-1 exactly as in the paper's pseudocode, one gradient at a time: what the library's speed is compared with.

The letters and the layout are the paper's: gradients are columns, Y and B are (p, k). Nothing here is used elsewhere.
"""

import torch
from torch import Tensor, nn


def gradient(model: nn.Module, x: Tensor, y: int) -> Tensor:
    """g = ∇_w f(x; w)_y, the gradient (p,) of the true logit of one example."""
    model.zero_grad()
    model(x[None])[0, y].backward()
    return torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])


def update_sketch(Y: Tensor, g: Tensor) -> Tensor:
    """Y ← Y + g ωᵀ, with a new ω (k,) from the standard normal distribution."""
    omega = torch.randn(Y.shape[1], device=Y.device)
    Y += torch.outer(g, omega)
    return Y


def basis(Y: Tensor) -> Tensor:
    """B (p, k), the Q of Y = Q R."""
    return torch.linalg.qr(Y).Q


def step(model: nn.Module, loss: Tensor, lr: float, B: Tensor | None) -> None:
    """w ← w − lr (g − B Bᵀ g), projecting at every step."""
    model.zero_grad()
    loss.backward()
    weights = [w for w in model.parameters() if w.grad is not None]
    g = torch.cat([w.grad.flatten() for w in weights if w.grad is not None])
    if B is not None:
        g = g - B @ (B.T @ g)
    with torch.no_grad():
        for w, part in zip(weights, g.split([w.numel() for w in weights]), strict=True):
            w.sub_(part.view_as(w), alpha=lr)
