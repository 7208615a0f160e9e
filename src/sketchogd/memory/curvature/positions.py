"""Ωᵀ M for the inputs or sensitivities of a layer, M = Σ v vᵀ over their rows v, without a check or a copy too many.

A sketch of rows G needs Z = G Ω and then Zᵀ G = Ωᵀ M (k, d), a small matrix. It says whether the rows were finite,
since NaN and infinity pass through both products, and can be thrown away if they were not. Here it is computed from
the tensors as the network has them. For the patches of a convolution, Z is the convolution with Ωᵀ in the place of the
weight, and Zᵀ G the gradient of that weight when Z is the gradient of the output: no patch is written down.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv1d_weight, conv2d_weight

from ...model.layers import Use, input_rows, patches, sensitivity_rows
from ...sketch import SecondMoment, Sketch, SketchedMoment
from ...sketch.testmatrix import TestMatrix

SMALLEST, LARGEST = 1e-20, 1e25
"""Between these sums of squares float32 loses no square that matters; others are for `Sketch.observe`, which scales."""

_FEW_COLUMNS = 64
"""Up to this k a CPU multiplies rows by a dense Ω faster than it adds up the few entries of a sparse one."""

_SUM_WIDTH = 4096
"""Float32 sums of so many squares err by 1e-7, much longer ones by more."""

_CONVOLUTIONS = {1: (F.conv1d, conv1d_weight), 2: (F.conv2d, conv2d_weight)}


class Product:
    """Ωᵀ M (k, d) of the rows added so far, for one sketch.

    `norms` are those of parts of the rows, from which `products_of` finds their energy Σ ‖v‖² in the end.
    """

    def __init__(self, sketch: SketchedMoment | SecondMoment) -> None:
        self.sketch = sketch
        self.omega: TestMatrix | None = sketch.omega if isinstance(sketch, SketchedMoment) else None
        self._dense: Tensor | None = None
        self.total = torch.zeros(sketch.rank_limit or 0, sketch.d, dtype=sketch.dtype, device=sketch.device)
        self.norms: list[Tensor] = []
        self.count = 0
        self.energy = 0.0

    @staticmethod
    def possible(sketch: Sketch) -> bool:
        """Whether a sketch can be given products in the place of rows: one that is linear in M and whole."""
        return isinstance(sketch, (SketchedMoment, SecondMoment)) and sketch.columns.width == sketch.d

    @property
    def dense(self) -> Tensor:
        """Ω (d, k), made on the CPU: it has these few hashes before a GPU has started all the kernels for them."""
        assert self.omega is not None
        if self._dense is None:
            self._dense = self.omega.dense(self.total.dtype, torch.device("cpu")).to(self.total.device)
        return self._dense

    def commit(self) -> None:
        """Give the product to the sketch."""
        self.sketch.add_product(self.total, self.count, self.energy)

    # ---------------------------------------------------------------- adding

    def add_inputs(self, use: Use) -> None:
        """Add the input rows of a use."""
        if self._as_images(use, use.input):
            self._add_patches(use)
        else:
            self._add_rows(input_rows(use, self.total.dtype))

    def add_sensitivities(self, use: Use, deltas: Sequence[Tensor]) -> None:
        """Add the gradients of some scalars with respect to a use's output."""
        if self._as_images(use, deltas[0]):
            X = torch.cat([delta.flatten(2) for delta in deltas]).to(self.total.dtype)
            self.total.addbmm_(self.dense.T @ X, X.transpose(1, 2))
            self._count(X, X.shape[0] * X.shape[2])
        else:
            self._add_rows(torch.cat([sensitivity_rows(use, delta, self.total.dtype) for delta in deltas]))

    def _as_images(self, use: Use, x: Tensor) -> bool:
        """Whether a convolution's tensors are multiplied as they are: on a CPU, where writing down rows takes longest.

        A GPU writes rows in no time, and its convolutions round to TF32 unless they are told not to.
        """
        if use.layer.kind != "conv" or self.omega is None or x.device.type != "cpu" or self.total.device.type != "cpu":
            return False
        return x.ndim == len(use.options["kernel"]) + 2 and not isinstance(use.options["padding"], str)

    def _add_rows(self, G: Tensor) -> None:
        G = G.to(self.total.device)
        if self.omega is None:
            Z = G
        else:
            dense = G.is_cuda or len(self.total) <= _FEW_COLUMNS
            Z = G @ self.dense if dense else self.omega.apply(G)
        self.total.addmm_(Z.T, G)
        self._count(G, len(G))

    def _add_patches(self, use: Use) -> None:
        x, fan_in = use.input.to(self.total.dtype), use.layer.fan_in
        options = {key: use.options[key] for key in ("stride", "padding", "dilation", "groups")}
        groups, k = options["groups"], self.total.shape[0]
        convolve, weight_gradient = _CONVOLUTIONS[len(use.options["kernel"])]
        # The groups of a convolution share one sketch: the same Ω for each.
        omega = self.dense.T.repeat(groups, 1)
        W = omega[:, :fan_in].reshape(groups * k, -1, *use.options["kernel"])
        has_bias = use.layer.bias is not None
        Z = convolve(x, W, omega[:, -1].contiguous() if has_bias else None, **options)
        gradient = weight_gradient(x, W.shape, Z, **options)
        self.total[:, :fan_in] += gradient.reshape(groups, k, fan_in).sum(0)
        rows = groups * Z.shape[0] * math.prod(Z.shape[2:])
        if has_bias:
            self.total[:, -1] += Z.flatten(2).sum((0, 2)).view(groups, k).sum(0)
            self.norms.append(x.new_tensor([rows]).sqrt())
        # Each pixel counts as often as it is in a patch, whatever its channel.
        squares = x.square().sum((0, 1))[None, None]
        self.norms.append(patches(squares, **{**use.options, "groups": 1}).sqrt().flatten())
        self.count += rows

    def _count(self, rows: Tensor, count: int) -> None:
        flat = rows.reshape(-1)
        n = len(flat) - len(flat) % _SUM_WIDTH
        self.norms += [torch.linalg.vector_norm(X, dim=1) for X in (flat[:n].view(-1, _SUM_WIDTH), flat[None, n:])]
        self.count += count


def products_of(
    uses: Sequence[Use], deltas: Iterator[Sequence[Tensor]], sketches: Mapping[tuple[str, str], Sketch]
) -> list[Product] | None:
    """What sketches, given by (layer, "inputs" or "outputs"), have to add for the uses of a batch and their deltas.

    None where float32 products cannot hold it: NaN and infinity, and sums of squares that are too large or too small.
    """
    products: dict[tuple[str, str], Product] = {}

    def product(use: Use, part: str) -> Product | None:
        key = use.layer.name, part
        sketch = sketches.get(key)
        if key not in products and isinstance(sketch, (SketchedMoment, SecondMoment)):
            products[key] = Product(sketch)
        return products.get(key)

    kind = uses[0].input.device.type if uses else "cpu"
    with torch.no_grad(), torch.autocast(kind, enabled=False):
        for use in uses:
            inputs = product(use, "inputs")
            if inputs is not None:
                inputs.add_inputs(use)
        for group in _grouped(deltas):
            for i, use in enumerate(uses):
                outputs, seen = product(use, "outputs"), [delta[i] for delta in group if delta[i] is not None]
                if outputs is not None and seen:
                    outputs.add_sensitivities(use, seen)
        found = [each for each in products.values() if each.count]
        return found if not found or _hold(found) else None


def _hold(products: Sequence[Product]) -> bool:
    """Whether products hold what their rows held. All numbers are read at once; the energies are noted."""
    energies = torch.stack([torch.cat(product.norms).double().square().sum() for product in products])
    largest = torch.stack([product.total.abs().max() for product in products])
    for product, energy in zip(products, energies.tolist(), strict=True):
        product.energy = energy
    return bool(((energies > SMALLEST) & (energies < LARGEST) & (largest < LARGEST)).all())


_GROUP_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}


def _grouped(deltas: Iterator[Sequence[Tensor]]) -> Iterator[list[Sequence[Tensor]]]:
    """The sensitivities of several scalars together as long as they are small, so that small products are few."""
    group, size = [], 0
    for delta in deltas:
        group.append(delta)
        there = [t for t in delta if t is not None]
        size += sum(t.numel() * t.element_size() for t in there)
        if not there or size >= _GROUP_BYTES.get(there[0].device.type, 0):
            yield group
            group, size = [], 0
    if group:
        yield group
