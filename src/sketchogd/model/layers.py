"""The layers of a model, and how a forward pass uses their weights.

A layer is a weight matrix W (fan-out, fan-in), with its bias, that multiplies input rows a: Linear, Conv1d and Conv2d
(rows are patches), Embedding (rows are one-hot tokens), the projections inside MultiheadAttention. `record` intercepts
the functions that layers call (linear, conv, embedding, matmul), not the modules, so that every use of a weight is
seen, also repeated ones, functional calls, and an embedding as output layer.
"""

import types
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from .gathered import Gathered
from .parameters import ProtectedParameters

TRANSPOSED = ("embedding", "table", "conv1d of transformers")
"""Kinds of layers whose weight is stored as (fan-in, fan-out)."""

FEW = 1024
"""An embedding of at most so many rows is a table: a linear layer on one-hot inputs, with all their products.

Positions come together in every example, so that how they move an output together is most of it; tokens of a large
vocabulary hardly do.
"""


@dataclass(frozen=True, eq=False)
class Layer:
    """A protected weight (fan-out, fan-in) and its bias, if that is protected, as the weight of one more input of 1.

    For an Embedding the fan-in is the number of tokens. The weights of embeddings and of the Conv1D of transformers
    (GPT-2's linear layer) are stored as (fan-in, fan-out). The weight of an embedding that is `tied` may be an output
    layer too, h Wᵀ, whose outputs are tokens.
    """

    name: str
    kind: str
    weight: nn.Parameter
    bias: nn.Parameter | None
    fan_in: int
    fan_out: int
    tied: bool = False

    @property
    def width(self) -> int:
        """Length of an input row: fan-in, plus one for the bias."""
        return self.fan_in + (self.bias is not None)

    @property
    def tokens(self) -> bool:
        """Whether inputs are numbers of rows of the weight."""
        return self.kind in ("embedding", "table")


@dataclass
class Use:
    """One call that used a layer's weight: its input, and the edge of its output in the autograd graph."""

    layer: Layer
    input: Tensor
    edge: GradientEdge
    first: int
    """First row of the weight that was used: cross-attention uses slices of one weight."""
    options: dict[str, Any] = field(default_factory=dict)
    head: bool = False
    """Whether an embedding's weight is used as an output layer: inputs (…, fan-out), outputs (…, tokens)."""


def find_layers(parameters: ProtectedParameters, tied: bool = False) -> list[Layer]:
    """Return the layers of a model whose weights are protected, in module order.

    A weight shared by layers of the same kind is one layer. A weight shared by layers of other kinds is left out, since
    no single layer describes both.

    Args:
        parameters: the protected parameters.
        tied: whether embeddings may be tied to an output layer, and those of few rows are tables; if not, tied ones are
            left out.
    """
    found: dict[int, Layer] = {}
    conflicting: set[int] = set()
    names = {id(t): name for t, name in zip(parameters.tensors, parameters.names, strict=True)}
    for module in parameters.model.modules():
        for kind, weight_name, bias_name in _weights_of(module):
            weight, bias = module._parameters.get(weight_name), module._parameters.get(bias_name)
            if weight is None or id(weight) not in names:
                continue
            fan_out, fan_in = len(weight), weight.shape[1:].numel()
            if kind in TRANSPOSED:
                fan_out, fan_in = fan_in, fan_out
            name = names[id(weight)].removesuffix("weight")
            name = name[:-1] if name else name  # the dot, or the underscore of "in_proj_weight"
            own = bias if id(bias) in names else None
            looked_up = tied and kind == "embedding"
            kind = "table" if looked_up and fan_in <= FEW else kind
            layer = Layer(name, kind, weight, own, fan_in, fan_out, looked_up)
            previous = found.setdefault(id(weight), layer)
            if previous.tied != looked_up and {previous.kind, kind} & {"linear"}:
                found[id(weight)] = previous if previous.tied else layer
            elif previous.kind != kind or previous.bias is not own:
                conflicting.add(id(weight))
    layers = [layer for key, layer in found.items() if key not in conflicting]
    biases = Counter(id(layer.bias) for layer in layers if layer.bias is not None)
    # A bias shared by several weights cannot be a column of one of them.
    return [layer for layer in layers if layer.bias is None or biases[id(layer.bias)] == 1]


def _weights_of(module: nn.Module) -> Iterable[tuple[str, str, str]]:
    if isinstance(module, nn.Linear):
        yield "linear", "weight", "bias"
    elif isinstance(module, (nn.Conv1d, nn.Conv2d)):
        yield "conv", "weight", "bias"
    elif isinstance(module, nn.Embedding):
        yield "embedding", "weight", ""
    elif type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        yield "conv1d of transformers", "weight", "bias"
    elif isinstance(module, nn.MultiheadAttention):
        yield "linear", "in_proj_weight", "in_proj_bias"
        for part in "qkv":
            yield "linear", f"{part}_proj_weight", ""


attention = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda *_: False},
    "attention",
    F.multi_head_attention_forward.__defaults__,
)
"""`F.multi_head_attention_forward` as it runs under a function mode, so that the mode sees the calls inside.

A mode is disabled inside its own handler. Re-enabling it for attention would recurse forever, because the function
dispatches to active modes. In this copy of it that check is replaced by "no mode is active".
"""


class _Recorder(TorchFunctionMode):
    def __init__(self, layers: Iterable[Layer], gathered: Gathered) -> None:
        super().__init__()
        self.layers = {id(layer.weight): layer for layer in layers}
        self.gathered = gathered
        self.uses: list[Use] = []
        self.hidden: list[str] = []

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            with self:
                return attention(*args, **kwargs)
        result = func(*args, **kwargs)
        read = _READERS.get(func)
        if read is None:
            return result
        input, weight, transposed, options = read(*args, **kwargs)
        layer, first, stored_transposed = self._layer(weight)
        if layer is None:
            return result
        if not result.requires_grad:
            self.hidden.append(layer.name)
        elif _fits(layer, func, transposed != stored_transposed):
            head = layer.tied and func is not F.embedding
            self.uses.append(Use(layer, input.detach(), get_gradient_edge(result), first, options, head))
        return result

    def _layer(self, weight: Tensor) -> tuple[Layer | None, int, bool]:
        """The layer whose weight this is, or a view of: some of its rows, as they are or transposed."""
        layer = self._of(weight)
        if layer is not None:
            return layer, 0, False
        base = weight._base if isinstance(weight, Tensor) else None
        layer = None if base is None else self._of(base)
        if layer is None or base is None or weight.ndim != 2:
            return None, 0, False
        for transposed, rows in ((False, weight), (True, weight.T)):
            if rows.shape[1] == base[0].numel() and rows.is_contiguous() and base.is_contiguous():
                return layer, rows.storage_offset() // rows.shape[1], transposed
        return None, 0, False

    def _of(self, weight: Tensor) -> Layer | None:
        return self.layers.get(id(self.gathered.parameter(weight)))


def _fits(layer: Layer, func: Any, transposed: bool) -> bool:
    """Whether a call uses a weight as its kind of layer does; transposed: a product with it and not with Wᵀ."""
    if func in (F.conv1d, F.conv2d):
        return layer.kind == "conv"
    if func is F.embedding:
        return layer.tokens
    if layer.kind == "conv1d of transformers":
        return transposed
    return not transposed and (layer.kind == "linear" or layer.tied)


_Read = tuple[Tensor, Tensor, bool, dict[str, Any]]
"""Input, weight, whether the call multiplies by the weight and not by its transpose, and options."""


def _read_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Read:
    return input, weight, False, {}


def _read_conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Read:
    options = {"kernel": weight.shape[2:], "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return input, weight, False, options


def _read_embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> _Read:
    padding = None if padding_idx is None else padding_idx % len(weight)
    return input, weight, False, {"padding": padding, "scaled": scale_grad_by_freq}


def _read_addmm(input: Tensor, mat1: Tensor, mat2: Tensor, **_: Any) -> _Read:
    return mat1, mat2, True, {}


def _read_matmul(input: Any, other: Any, **_: Any) -> _Read:
    return input, other, True, {}


_READERS: dict[Any, Callable[..., _Read]] = {
    F.linear: _read_linear,
    F.conv1d: _read_conv,
    F.conv2d: _read_conv,
    F.embedding: _read_embedding,
    torch.addmm: _read_addmm,
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__), _read_matmul),
}


def record(
    layers: Iterable[Layer], forward: Callable[[], Any], gathered: Gathered | None = None
) -> tuple[Any, list[Use], set[str]]:
    """Run `forward` with gradients enabled.

    Args:
        layers: the layers whose uses are recorded.
        forward: runs the model.
        gathered: knows their weights where those are split; None for whole ones.

    Returns:
        Its result; every use of the layers' weights, in order; and the names of layers that are used only where
        gradients are disabled, such as in a reentrant checkpoint, so that no gradient shows what depends on them.
    """
    found = list(layers)
    recorder = _Recorder(found, gathered or Gathered.of_whole([layer.weight for layer in found]))
    with torch.enable_grad(), recorder:
        result = forward()
    return result, recorder.uses, set(recorder.hidden) - {use.layer.name for use in recorder.uses}


def hidden_from_gradients(names: Iterable[str]) -> str:
    """The warning of layers that a model uses only where gradients are disabled."""
    return (
        f"the model uses the parameters of {', '.join(map(repr, sorted(names)))} where gradients are disabled, such as "
        "in torch.no_grad() or in a reentrant checkpoint. No gradient shows which outputs depend on them, and they are "
        "NOT PROTECTED. Checkpoint with torch.utils.checkpoint.checkpoint(…, use_reentrant=False), or not in eval mode"
    )


# ---------------------------------------------------------------- positions by example

EXAMPLES_FIRST, EXAMPLES_LAST, MIXED = "examples first", "examples last", "mixed"
"""The order of the positions of a use, flattened: (b, T), (T, b), or neither."""


def orders_of_positions(uses: Sequence[Use], outputs: Tensor) -> list[str]:
    """For each use how its positions belong to examples, found by a backward pass from the first example's outputs.

    Shapes alone do not tell: attention may put positions first, and layers may see all positions of a batch as one
    dimension. Where positions belong to several examples (an embedding of positions), or to examples in no such order,
    the order is MIXED.

    Args:
        uses: the uses of the layers in a forward pass.
        outputs: outputs (b, …) of the batch, in the autograd graph.
    """
    b = len(outputs)
    if b == 1 or not uses:
        return [EXAMPLES_FIRST] * len(uses)
    first = torch.zeros_like(outputs)
    generator = torch.Generator().manual_seed(b)
    first[0] = torch.randn(outputs[0].shape, generator=generator).to(first)
    deltas = torch.autograd.grad(outputs, [use.edge for use in uses], first, retain_graph=True, allow_unused=True)
    return [MIXED if delta is None else _order(use, delta, b) for use, delta in zip(uses, deltas, strict=True)]


def _order(use: Use, delta: Tensor, b: int) -> str:
    touched = sensitivity_rows(use, delta, delta.dtype).abs().amax(1) > 0
    n = len(touched)
    if not bool(touched.any()) or n % b:
        return MIXED
    if not bool(touched[n // b :].any()):
        return EXAMPLES_FIRST
    # A folded batch of a convolution has whole images of one example after the other, never between each other.
    if use.layer.kind != "conv" and not bool(touched.view(-1, b)[:, 1:].any()):
        return EXAMPLES_LAST
    return MIXED


def grouped(rows: Tensor, order: str, examples: int) -> Tensor:
    """Rows (examples · T, d) of all positions as (examples, T, d)."""
    if order == EXAMPLES_LAST and examples > 1:
        return rows.view(-1, examples, rows.shape[1]).transpose(0, 1)
    return rows.reshape(examples, -1, rows.shape[1])


# ---------------------------------------------------------------- a use as rows


def input_rows(use: Use, dtype: torch.dtype) -> Tensor:
    """Return the input of a use as rows (positions, width), with a column of ones for the bias.

    For a table the rows are one-hot, for an embedding token counts (examples, tokens), for either as an output layer
    (positions, fan-out).
    """
    layer = use.layer
    if use.head:
        return use.input.reshape(-1, layer.fan_out).to(dtype)
    if layer.kind == "table":
        rows = F.one_hot(use.input.flatten(), layer.fan_in).to(dtype)
        if use.options["padding"] is not None:  # the row of this token gets no gradient
            rows[:, use.options["padding"]] = 0
        return rows
    if layer.kind == "embedding":
        tokens = use.input.reshape(len(use.input), -1)
        counts = torch.zeros(len(tokens), layer.fan_in, dtype=dtype, device=tokens.device)
        return counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=dtype))
    rows = (patches(use.input, **use.options) if layer.kind == "conv" else use.input).reshape(-1, layer.fan_in)
    if layer.bias is None:
        return rows.to(dtype)
    out = torch.ones(len(rows), layer.width, dtype=dtype, device=rows.device)
    out[:, :-1] = rows
    return out


def sensitivity_rows(use: Use, delta: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient with respect to the output of a use as rows (positions, fan-out), of a head (…, tokens)."""
    if use.layer.kind == "conv":
        delta = delta.movedim(1 if delta.ndim > len(use.options["kernel"]) + 1 else 0, -1)
    rows = delta.reshape(-1, delta.shape[-1]).to(dtype)
    missing = (use.layer.fan_in if use.head else use.layer.fan_out) - rows.shape[1]
    return F.pad(rows, (use.first, missing - use.first)) if missing else rows


def patches(input: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    """Return the patches that a convolution multiplies by its weight, (b, positions, groups, fan-in).

    Positions are in row-major order. A 1-d convolution is treated as a 2-d one of height 1.

    Args:
        input: Input (b, channels, …), or that of one example without b.
        kernel: Size of the kernel, per dimension.
        stride: As for `torch.nn.functional.conv2d`.
        padding: The same; may be "same" or "valid".
        dilation: The same.
        groups: The same; the number of groups of channels.
    """
    n = len(kernel)
    if input.ndim == n + 1:
        input = input.unsqueeze(0)
    kernel, stride, dilation = (_tuple(value, n) for value in (tuple(kernel), stride, dilation))
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        input = F.pad(input, [side for t in reversed(total) for side in (t // 2, t - t // 2)])
    pad = _tuple(0 if isinstance(padding, str) else padding, n)
    if n == 1:
        input, kernel, stride, dilation, pad = input.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation), (0, *pad)
    columns = F.unfold(input, kernel, dilation=dilation, padding=pad, stride=stride)
    b, width, positions = columns.shape
    return columns.view(b, groups, width // groups, positions).permute(0, 3, 1, 2)


def _tuple(value: Any, n: int) -> tuple[int, ...]:
    return tuple(value) * (n if len(tuple(value)) == 1 else 1) if isinstance(value, (tuple, list)) else (value,) * n
