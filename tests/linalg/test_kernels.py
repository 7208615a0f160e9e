"""The kernels against their plain twins: values, odd shapes, threads, and what they decline."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from sketchogd.linalg import cpu, dense, dispatch

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None or sys.platform != "linux", reason="needs a C compiler with OpenMP"
)
# Rows that do not fill a group of 4 or 8, columns that do not fill a stretch or a tile, several tiles.
SHAPES = [(1, 1), (3, 1023), (9, 4096), (33, 1025), (65, 40_001)]


def exact(B, v):
    return B.double() @ v.double()


def relative(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_products_are_the_exact_ones(shape, dtype, threads):
    torch.set_num_threads(threads)
    library = cpu.library(dtype)
    assert library is not None
    B = torch.randn(shape[0], shape[1] + 3).to(dtype)[:, : shape[1]]  # the rows are not next to each other
    v, c, out = torch.randn(shape[1]), torch.randn(shape[0]), torch.full((shape[1],), 7.0)
    assert relative(cpu.coefficients(library, B, v), exact(B, v)) < 1e-6
    assert cpu.combination(library, B, c, out) is out
    assert relative(out, exact(B.T, c)) < 1e-6


@needs_compiler
def test_long_sums_keep_their_precision():
    """A float32 sum of equal terms is rounded the same way again and again: by 1e-5 and more over 4,000,000 of them."""
    library = cpu.library(torch.float32)
    assert library is not None
    B, v = torch.full((2, 4_000_000), 0.1), torch.full((4_000_000,), 0.3)
    assert relative(cpu.coefficients(library, B, v), exact(B, v)) < 1e-6


@needs_compiler
def test_large_bases_take_the_kernel_and_small_ones_do_not(monkeypatch):
    called = []
    monkeypatch.setattr(cpu, "coefficients", lambda library, B, v: called.append(B.shape) or exact(B, v))
    large, small = torch.randn(4, dispatch.LEAST // 4), torch.randn(4, 100)
    for B in (large, small):
        dense.coefficients(B, torch.ones(B.shape[1]))
    assert called == [large.shape]
    monkeypatch.setenv("SKETCHOGD_KERNELS", "0")
    dense.coefficients(large, torch.ones(large.shape[1]))
    assert len(called) == 1


def test_other_types_and_layouts_are_declined():
    B, v = torch.randn(8, dispatch.LEAST), torch.ones(dispatch.LEAST)
    assert dispatch.coefficients(B.double(), v.double()) is None
    assert dispatch.coefficients(B.half(), v) is None
    assert dispatch.coefficients(torch.randn(dispatch.LEAST, 8).T, v) is None
    assert dispatch.combination(B, torch.ones(8), torch.empty(dispatch.LEAST, 2)[:, 0]) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_products_agree_with_the_dispatched_ones(dtype, device):
    B, v = torch.randn(7, 1 << 17, device=device).to(dtype), torch.randn(1 << 17, device=device)
    c = dense.coefficients(B, v)
    assert c.dtype == torch.float32
    assert relative(c, dense.plain_coefficients(B, v).double()) < 3e-6
    found, plain = (f(B, c, torch.empty_like(v)) for f in (dense.combination, dense.plain_combination))
    assert relative(found, plain.double()) < 3e-6


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_that_works_plain_torch_is_used(compiler, tmp_path):
    code = (
        "import torch; from sketchogd.linalg import cpu, dense, dispatch\n"
        "B, v = torch.ones(4, dispatch.LEAST), torch.ones(dispatch.LEAST)\n"
        "assert cpu.library(torch.float32) is None\n"
        "print(float(dense.coefficients(B, v)[0]) / dispatch.LEAST)"
    )
    environment = {**os.environ, "CC": compiler, "XDG_CACHE_HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert found.stdout.strip() == "1.0", found.stderr


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, (1200, 11_361), (5, 2_000_002)])
def test_triton_products_are_the_exact_ones_and_repeat(shape, dtype):
    gemv = pytest.importorskip("sketchogd.linalg.gpu")
    B = torch.randn(shape[0], shape[1] + 3, device="cuda").to(dtype)[:, : shape[1]]
    v, c = torch.randn(shape[1], device="cuda"), torch.randn(shape[0], device="cuda")
    for M in (B, B.contiguous()):
        found = gemv.coefficients(M, v)
        assert relative(found, exact(M, v)) < 1e-6
        assert torch.equal(found, gemv.coefficients(M, v))
        for programs in (1, 4096):
            out, again = (gemv.combination(M, c, torch.full_like(v, 7.0), programs=programs) for _ in range(2))
            assert relative(out, exact(M.T, c)) < 1e-6
            assert torch.equal(out, again)
