"""The error metric against its definition, streamed and not; principal angles; singular values."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sketchogd import theory
from sketchogd.linalg.dense import BLOCK_BYTES


def orthonormal(r: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, r, generator=generator, dtype=torch.float64))[0].T.contiguous().to(dtype)


def gradients(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_error_is_the_definition():
    G, B = gradients(700, 50).double(), orthonormal(7, 50, 1)
    expected = (G @ (torch.eye(50, dtype=torch.float64) - B.T @ B)).square()
    assert theory.reconstruction_error(G, B) == pytest.approx(float(expected.sum()), rel=1e-12)
    assert theory.reconstruction_error(G, B, relative=True) == pytest.approx(float(expected.sum() / G.square().sum()))
    torch.testing.assert_close(theory.reconstruction_error(G, B, per_example=True), expected.sum(1))
    torch.testing.assert_close(
        theory.reconstruction_error(G, B, relative=True, per_example=True), expected.sum(1) / G.square().sum(1)
    )
    assert theory.captured_energy(G, B) == pytest.approx(float((G @ B.T).square().sum() / G.square().sum()))


def test_batches_from_a_generator_give_the_same():
    G, B = gradients(700, 50), orthonormal(7, 50, 1, torch.float32)
    whole = theory.reconstruction_error(G, B, per_example=True)
    parts = theory.reconstruction_error((batch for batch in G.split(33)), B, per_example=True)
    torch.testing.assert_close(parts, whole)


def test_many_column_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch):
    G, B = gradients(20, 300), orthonormal(4, 300, 1, torch.float32)
    expected = theory.reconstruction_error(G, B, per_example=True)
    monkeypatch.setattr(theory.metric.column_blocks, "__defaults__", (1000,))
    torch.testing.assert_close(theory.reconstruction_error(G, B, per_example=True), expected)


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result._is_view():
            self.nbytes = max(self.nbytes, result.numel() * result.element_size())
        return result


def test_no_second_copy_of_the_gradients_is_made():
    G, B = gradients(1000, 20_000), orthonormal(4, 20_000, 1, torch.float32)
    with Largest() as largest:
        theory.reconstruction_error(G, B)
    assert 0 < largest.nbytes <= BLOCK_BYTES < G.numel() * 4 / 4


def test_gradients_are_left_as_they_were():
    for dtype in (torch.float32, torch.float64):
        G, B = gradients(30, 20).to(dtype), orthonormal(4, 20, 1, dtype)
        before = G.clone(), B.clone()
        theory.reconstruction_error(G, B)
        assert torch.equal(G, before[0])
        assert torch.equal(B, before[1])


def test_small_errors_are_not_drowned_by_a_float32_basis():
    """A float32 basis is orthonormal to 1e-7 only; ‖g‖² − ‖Bg‖² would show that, the residual shows its square."""
    B = orthonormal(10, 400, 2, torch.float32)
    G = gradients(50, 10, 3) @ B
    assert theory.reconstruction_error(G, B, relative=True) < 1e-12


def test_edges():
    G = gradients(5, 8)
    nothing, everything = torch.zeros(0, 8), torch.eye(8)
    assert theory.reconstruction_error(G, nothing, relative=True) == 1.0
    assert theory.reconstruction_error(G, everything) == 0.0
    assert theory.reconstruction_error(torch.zeros(3, 8), nothing, relative=True) == 0.0
    assert theory.reconstruction_error(torch.zeros(3, 8), nothing, True, per_example=True).tolist() == [0.0, 0.0, 0.0]
    assert theory.reconstruction_error([], nothing) == 0.0
    with pytest.raises(ValueError, match="do not fit a basis"):
        theory.reconstruction_error(G, torch.eye(7))
    with pytest.raises(ValueError, match="one row per example"):
        theory.reconstruction_error(G[0], everything)


def test_principal_angles_are_the_ones_that_were_built_in():
    angles = torch.tensor([0.0, 1e-6, 1e-3, 0.4, 1.2, math.pi / 2], dtype=torch.float64)
    axes = orthonormal(12, 30, 4)
    A = axes[:6]
    B = angles.cos()[:, None] * axes[:6] + angles.sin()[:, None] * axes[6:]
    torch.testing.assert_close(theory.principal_angles(A, B), angles, atol=2e-8, rtol=1e-6)
    torch.testing.assert_close(theory.principal_angles(B, A), angles, atol=2e-8, rtol=1e-6)
    turned = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64))[0] @ B
    torch.testing.assert_close(theory.principal_angles(A[:4], turned)[:3], angles[:3], atol=2e-8, rtol=1e-6)
    with pytest.raises(ValueError, match="same row length"):
        theory.principal_angles(A, B[:, 1:])


@pytest.mark.parametrize("shape", [(20, 600), (600, 20), (7, 7)])
def test_singular_values_are_those_of_an_svd(shape: tuple[int, int]):
    G = gradients(*shape)
    torch.testing.assert_close(theory.singular_values(G), torch.linalg.svdvals(G.double()))
    expected = float(G.double().square().sum()) / float(torch.linalg.matrix_norm(G.double(), ord=2)) ** 2
    assert theory.stable_rank(theory.singular_values(G)) == pytest.approx(expected)
    assert theory.stable_rank(torch.zeros(3)) == 0.0
