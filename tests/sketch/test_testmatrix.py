import pytest
import torch

from sketchogd.seeds import derive_seed, hash32, normal_rows
from sketchogd.sketch.testmatrix import BLOCK, Gaussian, Identity, SparseSign, named_test_matrix

CPU = torch.device("cpu")


def dense(matrix, d, k, seed=3):
    """Ω (d, k) itself."""
    return matrix.bind(d, k, seed, torch.float64, CPU).apply(torch.eye(d, dtype=torch.float64))


@pytest.mark.parametrize("matrix", [SparseSign(1), SparseSign(2), SparseSign(4), Gaussian(), Gaussian(stored=True)])
class TestEvery:
    def test_is_linear_and_fixed_by_its_seed(self, matrix):
        rows = torch.randn(7, 300, dtype=torch.float64)
        omega = dense(matrix, 300, 20)
        again = matrix.bind(300, 20, 3, torch.float64, CPU)
        assert torch.allclose(again.apply(rows), rows @ omega)
        assert not torch.allclose(dense(matrix, 300, 20, seed=4), omega)

    def test_columns_have_unit_second_moment(self, matrix):
        """E[Ω Ωᵀ] / scale = I: over 40,000 coordinates the mean square row is 1 (or k for Gaussian) to 4 sigma."""
        d, k = 5000, 8
        omega = dense(matrix, d, k)
        expected = k if isinstance(matrix, Gaussian) else 1.0
        assert float(omega.square().sum(1).mean()) == pytest.approx(expected, rel=0.08)
        assert abs(float(omega.sum(1).mean())) < 0.2
        cross = omega[0::2] @ omega[1::2].T / expected
        assert abs(float(cross.mean())) < 0.01

    def test_columns_are_used_evenly(self, matrix):
        """Column energies of 20,000 coordinates in 10 columns differ by less than 10 % (5 sigma)."""
        energy = dense(matrix, 4000, 10).square().sum(0)
        assert float(energy.max() / energy.min()) < 1.35

    def test_blocks_beyond_the_first_are_applied(self, matrix):
        d = BLOCK + 100
        bound = matrix.bind(d, 4, 0, torch.float32, CPU)
        last = torch.zeros(1, d)
        last[0, -1] = 1
        assert bound.apply(last).norm() > 0
        first = torch.zeros(1, d)
        first[0, -1 - BLOCK] = 1
        assert not torch.equal(bound.apply(first), bound.apply(last))


def test_sparse_rows_have_zeta_entries_and_no_bytes():
    omega = dense(SparseSign(2), 2000, 64)
    assert set(omega.count_nonzero(1).tolist()) <= {0, 1, 2}
    assert (omega.count_nonzero(1) == 2).float().mean() > 0.95
    assert SparseSign().bind(10, 5, 0, torch.float32, CPU).tensors() == {}
    assert SparseSign().cost(100, 10, 4) == 0


def test_stored_gaussian_is_the_regenerated_one_and_counts_its_bytes():
    stored = Gaussian(stored=True).bind(500, 6, 9, torch.float32, CPU)
    rows = torch.randn(3, 500)
    assert torch.allclose(stored.apply(rows), Gaussian().bind(500, 6, 9, torch.float32, CPU).apply(rows), atol=1e-4)
    assert sum(t.numel() * 4 for t in stored.tensors().values()) == stored.cost(500, 6, 4) == 500 * 6 * 4


def test_hash_is_the_recorded_one():
    """The hash defines what a saved memory means: these values must never change."""
    x = torch.tensor([0, 1, 2, 12345, 2**33 + 1])
    assert hash32(x, 0).tolist() == HASH_SEED_0
    assert hash32(x, derive_seed(7, "column", 0)).tolist() == HASH_SEED_7
    assert int(hash32(torch.arange(100_000), 5).min()) >= 0
    assert hash32(torch.arange(100_000), 5).unique().numel() > 99_990


@pytest.mark.gpu
def test_sparse_sign_is_the_same_on_the_gpu():
    rows = torch.randn(5, 40_000)
    cpu = SparseSign().bind(40_000, 64, 3, torch.float32, CPU).apply(rows)
    gpu = SparseSign().bind(40_000, 64, 3, torch.float32, torch.device("cuda")).apply(rows.cuda())
    assert torch.allclose(cpu, gpu.cpu(), atol=1e-3)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="sparse"):
        named_test_matrix("dense")
    with pytest.raises(ValueError, match="zeta"):
        SparseSign(0).bind(4, 2, 0, torch.float32, CPU)
    with pytest.raises(ValueError, match="square"):
        Identity().bind(4, 2, 0, torch.float32, CPU)


HASH_SEED_0 = [0, 3854966607, 1774710975, 1646158330, 2550535270]
HASH_SEED_7 = [1783257731, 2074683903, 2071883126, 1566174941, 3745861951]


def test_normal_rows_depend_on_their_number_alone():
    cpu = torch.device("cpu")
    whole = normal_rows(5, 6, 7, 3, torch.float32, cpu)
    assert torch.equal(whole[2:4], normal_rows(7, 2, 7, 3, torch.float32, cpu))
    assert not torch.equal(whole, normal_rows(5, 6, 7, 4, torch.float32, cpu))


def test_normal_rows_are_standard_normal():
    """100,000 numbers: mean, variance, fourth moment and correlations of columns and rows, each to 4 sigma."""
    n = 200
    X = normal_rows(0, 500, n, 1, torch.float64, torch.device("cpu"))
    size = X.numel()
    assert abs(float(X.mean())) < 4 / size**0.5
    assert abs(float(X.square().mean()) - 1) < 4 * (2 / size) ** 0.5
    assert abs(float(X.pow(4).mean()) - 3) < 4 * (96 / size) ** 0.5
    between = (X[:, : n // 2] * X[:, n // 2 :]).mean()  # the two halves come from the same pairs of hashes
    assert abs(float(between)) < 4 / (size / 2) ** 0.5
    assert abs(float((X[1:] * X[:-1]).mean())) < 4 / size**0.5
