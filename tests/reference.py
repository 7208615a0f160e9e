"""Slow twins in float64, written from the paper's equations in its own layout: gradients are columns, G (p, n)."""

import torch


def orth(A: torch.Tensor, tolerance: float = 1e-10) -> torch.Tensor:
    """An orthonormal basis (p, r) of the columns of A, by SVD."""
    U, S, _ = torch.linalg.svd(A.double(), full_matrices=False)
    return U[:, tolerance * S[:1] < S]


def method2(G: torch.Tensor, omega: torch.Tensor) -> torch.Tensor:
    """SketchOGD-2, one gradient at a time."""
    Y = torch.zeros(G.shape[0], omega.shape[1], dtype=torch.float64)
    for g in G.double().T:
        Y += torch.outer(g, omega.T @ g)
    return Y


def method3(G: torch.Tensor, omega: torch.Tensor, psi: torch.Tensor) -> torch.Tensor:
    """SketchOGD-3: the basis, line by line as in the paper."""
    Y = method2(G, omega)
    W = torch.zeros(psi.shape[0], G.shape[0], dtype=torch.float64)
    for g in G.double().T:
        W += torch.outer(psi @ g, g)
    Q = orth(Y)
    U, T = torch.linalg.qr(psi @ Q)
    X = torch.linalg.pinv(T) @ (U.T @ W)
    return orth(torch.cat([Q, X.T], dim=1))


def projector(B: torch.Tensor) -> torch.Tensor:
    """B Bᵀ of columns, or of rows given as B.T."""
    return B.double() @ B.double().T


def relative_error(rows: torch.Tensor, basis: torch.Tensor) -> float:
    """‖(I − BᵀB) G‖² / ‖G‖² for rows and a row basis."""
    G, B = rows.double(), basis.double()
    return float((G - (G @ B.T) @ B).square().sum() / G.square().sum())


def optimal_error(rows: torch.Tensor, rank: int) -> float:
    """The smallest relative error that any basis of this rank has."""
    squares = torch.linalg.svdvals(rows.double()).square()
    return float(squares[rank:].sum() / squares.sum())


def gradients_by_loop(model, inputs, targets, output, tensors) -> torch.Tensor:
    """Per-example gradients by one backward pass an example, the model in eval mode."""
    rows = []
    for i in range(len(inputs)):
        scalar = output(model(inputs[i : i + 1])[0], targets[i])
        found = torch.autograd.grad(scalar, tensors, allow_unused=True)
        rows.append(
            torch.cat(
                [(torch.zeros_like(t) if g is None else g).flatten() for g, t in zip(found, tensors, strict=True)]
            )
        )
    return torch.stack(rows)


def patches_by_loop(image, kernel, stride, padding, dilation):
    """Patches (positions, C·kh·kw) of one image (C, H, W), by indexing."""
    C, H, W = image.shape
    padded = torch.zeros(C, H + 2 * padding[0], W + 2 * padding[1], dtype=image.dtype)
    padded[:, padding[0] : padding[0] + H, padding[1] : padding[1] + W] = image
    rows = []
    for y in range(0, padded.shape[1] - dilation[0] * (kernel[0] - 1), stride[0]):
        for x in range(0, padded.shape[2] - dilation[1] * (kernel[1] - 1), stride[1]):
            taps = [
                padded[c, y + i * dilation[0], x + j * dilation[1]]
                for c in range(C)
                for i in range(kernel[0])
                for j in range(kernel[1])
            ]
            rows.append(torch.stack(taps))
    return torch.stack(rows)


def soft_layer_update(D, inputs, deltas, ridge):
    """ΔW − V_δ (α ∘ (V_δᵀ ΔW V_a)) V_aᵀ with full eigendecompositions of the two second moments; D (out, in + 1)."""
    la, Va = torch.linalg.eigh(inputs.double().T @ inputs.double())
    ld, Vd = torch.linalg.eigh(deltas.double().T @ deltas.double())
    products = ld[:, None] * la[None, :]
    alpha = products / (products + ridge * products.mean())
    return D - Vd @ (alpha * (Vd.T @ D @ Va)) @ Va.T


def projected(projector, v, travelled=1.0):
    """v − A v as a new tensor."""
    return v - projector.protected_part_(v.clone(), travelled)
