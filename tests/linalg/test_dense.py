import pytest
import torch

from sketchogd.linalg import dense


def spectrum_rows(m, d, decades, seed=0):
    """Rows (m, d) in float32 whose singular values fall over the given number of decades."""
    g = torch.Generator().manual_seed(seed)
    U = torch.linalg.qr(torch.randn(m, m, generator=g, dtype=torch.float64))[0]
    V = torch.linalg.qr(torch.randn(d, m, generator=g, dtype=torch.float64))[0].T
    return ((U * torch.logspace(0, -decades, m, dtype=torch.float64)) @ V).float()


@pytest.mark.parametrize("decades", [0, 3, 5, 7])
def test_orthonormal_rows_to_1e_5_on_steep_spectra(decades, device):
    S = spectrum_rows(60, 3000, decades).to(device)
    before = S.clone()
    R = dense.orthonormalise_(S)
    r = R.shape[1]
    B = S[:r].double()
    assert (B @ B.T - torch.eye(r, dtype=torch.float64, device=device)).abs().max() < 1e-5
    assert not S[r:].any()
    # Directions above the rank tolerance are all there: log-spaced values down to 5e-7 of the first.
    expected = int((torch.logspace(0, -decades, 60) > 1.5e-6).sum())
    assert r >= expected
    # What is left out is rounding of float32 rows.
    assert (before.double() - R @ B).norm() / before.double().norm() < 1e-6


def test_rows_come_in_the_order_of_singular_values():
    S = spectrum_rows(30, 500, 3)
    exact = torch.linalg.svd(S.double(), full_matrices=False)[2]
    dense.orthonormalise_(S)
    overlap = (S.double() * exact).sum(1).abs()
    assert overlap.min() > 0.999


def test_dependent_and_zero_rows_are_dropped():
    base = torch.randn(3, 50)
    S = torch.cat([base, 2 * base, torch.zeros(4, 50)])
    assert dense.orthonormalise_(S).shape[1] == 3
    assert dense.orthonormalise_(torch.zeros(4, 50)).shape[1] == 0


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e18])
def test_scale_does_not_matter(scale):
    S = spectrum_rows(10, 200, 3) * scale
    assert dense.orthonormalise_(S).shape[1] == 10
    assert (S @ S.T - torch.eye(10)).abs().max() < 1e-5


def test_restore_is_the_inverse():
    S = spectrum_rows(20, 300, 4)
    before = S.clone()
    R = dense.orthonormalise_(S)
    dense.restore_(S, R.float())
    assert (S - before).norm() / before.norm() < 1e-6


def test_blocks_give_the_same_as_one_piece(monkeypatch):
    S = spectrum_rows(8, 1001, 2)
    T = S.clone()
    dense.orthonormalise_(S)
    monkeypatch.setattr(dense, "column_blocks", lambda rows, d, _: iter([slice(0, 7), slice(7, 500), slice(500, d)]))
    dense.orthonormalise_(T)
    assert (S - T).abs().max() < 1e-6


def test_extra_memory_is_a_few_small_matrices_and_one_block():
    """Peak allocation on top of S, counted by a dispatch mode: at most 8 (m, m) matrices and 4 blocks in float64."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.weak import WeakTensorKeyDictionary

    class Largest(TorchDispatchMode):
        largest = 0
        seen = WeakTensorKeyDictionary()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() != S.untyped_storage().data_ptr():
                    self.largest = max(self.largest, t.untyped_storage().nbytes())
            return out

    S = spectrum_rows(64, 1 << 17, 3)
    with Largest() as mode:
        dense.orthonormalise_(S)
    assert mode.largest <= dense.BLOCK_BYTES + 8 * 64 * 64
    assert S.untyped_storage().nbytes() > 1.9 * mode.largest


def test_nystrom_recovers_a_low_rank_moment_exactly():
    g = torch.Generator().manual_seed(0)
    V = torch.linalg.qr(torch.randn(40, 5, generator=g, dtype=torch.float64))[0].T
    values = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    M = V.T @ (values[:, None] * V)
    omega = torch.randn(40, 8, generator=g, dtype=torch.float64)
    Y = omega.T @ M
    C = Y @ omega
    T, R = dense.whiten(dense.gram(Y))
    found, Z = dense.nystrom(C, R)
    assert torch.allclose(found[:5], values)
    rows = Z.T @ T @ Y
    assert ((rows[:5] * V).sum(1).abs() - 1).abs().max() < 1e-8


def test_a_basis_in_fewer_bits_is_widened_by_blocks():
    B, v = torch.randn(5, 700).bfloat16(), torch.randn(700)
    c = dense.coefficients(B, v)
    assert torch.allclose(c, B.float() @ v, atol=1e-4)
    assert torch.allclose(dense.combination(B, c, out=torch.empty(700)), B.float().T @ c, atol=1e-3)


def test_a_gram_matrix_in_bands_is_the_whole_one(device):
    """Bands of rows up to the diagonal, mirrored: 300 rows make six of 50 or, as here, five of at least 64."""
    S = torch.randn(300, 1000, device=device)
    K = dense.gram(S)
    assert torch.allclose(K, S.double() @ S.double().T, rtol=1e-12, atol=1e-9)


def test_eigenpairs_stand_in_the_place_of_the_matrix(device):
    A = torch.randn(20, 30, device=device, dtype=torch.float64)
    K = A @ A.T
    before = K.clone()
    values, rows = dense.eigenpairs_(K)
    assert rows.data_ptr() == K.data_ptr()
    assert bool((values.diff() >= 0).all())
    assert torch.allclose(rows.T @ (values[:, None] * rows), before)


@pytest.mark.parametrize("decades", [3.6, 4.2, 6])
def test_only_doubtful_rows_are_polished_and_all_end_orthonormal(decades, monkeypatch):
    """To 2e-7 in the spectral norm, whatever part of the rows the correction takes."""
    S = spectrum_rows(100, 5000, decades)
    seen = []
    gram = dense.gram
    monkeypatch.setattr(dense, "gram", lambda rows: seen.append(len(rows)) or gram(rows))
    r = dense.orthonormalise_(S).shape[1]
    error = gram(S[:r]) - torch.eye(r, dtype=torch.float64)
    assert torch.linalg.matrix_norm(error, 2) < 2e-7
    polished = seen[1] if len(seen) > 1 else 0
    assert {3.6: polished == 0, 4.2: 0 < polished < r, 6: polished > r / 2}[decades]
