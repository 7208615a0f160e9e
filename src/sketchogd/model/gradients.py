"""Per-example gradients of a model's outputs, as rows (b, p).

Letters: b examples, p protected parameters. The model is evaluated in eval mode, whatever mode it is in; every module's
own flag is restored afterwards.

There are three equivalent paths. *fast*: one ordinary forward and backward pass, then one product per layer (Linear,
Conv). *vmap*: torch.func, for any module that it supports. *loop*: one example at a time, for all others. The first
batch decides; the fast path is chosen only if it agrees with one of the others on two examples. For sharded parameters
there is a fourth path, *shards*: one example at a time, in all processes together.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..errors import NonFiniteError, ProtectionWarning
from .batches import (
    Output,
    batch_size,
    evaluating,
    logits_of,
    map_tensors,
    map_tensors_of_output,
    per_example,
    places_of_examples,
    reads_targets,
    require_checked,
    true_logit,
)
from .calls import Call
from .gathered import Gathered
from .layers import TRANSPOSED, find_layers, hidden_from_gradients, patches, record
from .parameters import ProtectedParameters, Selection

WORTHWHILE_CHUNK = 64
"""Number of gradients of a large model that are computed at once, where memory allows."""


class GradientSignals:
    """Per-example gradients of batches, in chunks of limited size.

    After the first batch, `path` is the way gradients are computed: "fast", "vmap", "loop" or "shards".

    Args:
        parameters: The protected parameters of the model.
        output: The scalar of an example.
        chunk_bytes: Bytes per chunk of gradients; by default some dozens of gradients, depending on the device.
        power: Exponent q; a gradient g is returned as g ‖g‖^q.
    """

    def __init__(
        self, parameters: ProtectedParameters, output: Output, chunk_bytes: int | None = None, power: float = 0.0
    ) -> None:
        self.parameters = parameters
        self.output = output
        self.power = power
        self.path: str | None = None
        self._logits: torch.Size | None = None
        self.layers = [] if parameters.split else find_layers(parameters)
        width = parameters.columns.widest if parameters.split else parameters.p  # all processes need equal chunks
        row_bytes = width * parameters.dtype.itemsize
        if chunk_bytes is None:
            # A sketch reads and writes all its rows once per chunk, so that larger chunks are worth their memory.
            least, most = 48 << 20, 256 << 20
            if parameters.device.type == "cuda":
                least, most = 1 << 30, torch.cuda.get_device_properties(parameters.device).total_memory // 8
            chunk_bytes = max(least, min(most, WORTHWHILE_CHUNK * row_bytes))
        self.chunk = max(1, chunk_bytes // row_bytes)

    def chunks(self, inputs: Any, targets: Any) -> Iterator[Tensor]:
        """Yield the gradients of a batch as tensors (<= chunk, p) of about equal size, in the order of the examples."""
        b = batch_size(inputs)
        if b == 0:
            return
        size = -(-b // max(1, -(-b // self.chunk)))
        call = self._call(inputs, targets)
        for start in range(0, b, size):
            with evaluating(self.parameters.model):
                yield self._scaled_(self._gradients(call.part(slice(start, start + size))))

    def _call(self, inputs: Any, targets: Any) -> Call:
        """How the model is called with a batch, whose targets are checked against the outputs of one example."""
        with evaluating(self.parameters.model):
            call = Call.of(self.parameters.model, inputs, targets, self.output)
            if self.parameters.split:
                self.parameters.require_unchanged()  # a forward pass alone leaves gathered parameters in the model
            elif call.targets is not None and reads_targets(self.output):
                if self._logits is None or len(self._logits) > 1:  # of sequences the next batch has other lengths
                    with torch.no_grad():
                        self._logits = logits_of(call.part(slice(0, 2)).run()).shape[1:]
                require_checked(self.output, self._logits, call.targets)
        return call

    def total(self, inputs: Any, targets: Any) -> list[Tensor | None]:
        """Return the gradients of the sum of all outputs, one tensor per parameter, by one ordinary backward pass."""
        call = self._call(inputs, targets)
        with evaluating(self.parameters.model), torch.enable_grad():
            gathered = Gathered(self.parameters.model, self.parameters.tensors)
            scalars = per_example(self.output, gathered.watch(call.run), call.targets)
            tensors = list(map(gathered.tensor, self.parameters.tensors))
            return list(torch.autograd.grad(scalars.sum(), tensors, allow_unused=True))

    def require_finite(self, inputs: Any, targets: Any) -> None:
        """Raise NonFiniteError, naming the examples, if a gradient of a batch of several chunks is not finite.

        A batch of one chunk is checked by the sketch that observes it. For several, the gradient of the sum is not
        finite if one of its terms is not; that costs one ordinary backward pass, and nothing has been observed yet.
        """
        if batch_size(inputs) <= self.chunk:
            return
        total = self.total(inputs, targets)
        if all(t is None or bool(t.to_dense().isfinite().all()) for t in total):
            return
        start, bad = 0, []
        for rows in self.chunks(inputs, targets):
            bad += [start + int(i) for i in (~rows.isfinite().all(1)).nonzero().flatten()]
            start += len(rows)
        if bad:
            raise NonFiniteError(
                f"the gradients of examples {bad[:8]} of {start} contain NaN or infinity; nothing was observed. "
                "Leave these examples out, or look for a division by zero in the model",
                bad,
            )

    def _gradients(self, call: Call) -> Tensor:
        if self.path is None:
            self.path = self._choose(call)
        return _PATHS[self.path](self, call)

    def _scaled_(self, rows: Tensor) -> Tensor:
        if self.power == 0:
            return rows
        norms = torch.linalg.vector_norm(rows, dim=1)
        if self.parameters.split:  # each process has some columns of the same rows
            norms = self.parameters.columns.total(norms.square()).sqrt()
        return rows.mul_(torch.where(norms > 0, norms**self.power, 0.0).unsqueeze(1))

    def _choose(self, call: Call) -> str:
        if self.parameters.split:
            return "shards"
        ends = call.part(slice(None, None, max(1, batch_size(call.inputs) - 1)))
        _warn_of_hidden(record(self.layers, ends.run)[2])
        slow, expected = "vmap", None
        try:
            expected = _by_vmap(self, ends)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as error:
            slow, expected = "loop", _by_loop(self, ends)
            reason = str(error).splitlines()[0][:160]
        covered = sum(
            layer.weight.numel() + (layer.bias.numel() if layer.bias is not None else 0) for layer in self.layers
        )
        if covered == self.parameters.p and all(layer.kind not in TRANSPOSED for layer in self.layers):
            found = _fast(self, ends)
            if found is not None and _agree(found, expected, self.parameters):
                return "fast"
        if slow == "loop":
            warnings.warn(
                f"torch.func cannot vectorise this model ({reason}); its per-example gradients are taken one example "
                "at a time, which is slower",
                ProtectionWarning,
                stacklevel=2,
            )
        return slow


def _warn_of_hidden(names: set[str]) -> None:
    if names:
        warnings.warn(hidden_from_gradients(names), ProtectionWarning, stacklevel=2)


def _agree(found: Tensor, expected: Tensor, parameters: ProtectedParameters) -> bool:
    coarse = any(t.dtype.itemsize < 4 for t in parameters.tensors)
    error = (found - expected).norm() / expected.norm().clamp_min(torch.finfo(expected.dtype).tiny)
    return bool(error < (5e-2 if coarse else 1e-3))


def _by_vmap(signals: GradientSignals, call: Call) -> Tensor:
    parameters, output = signals.parameters, signals.output
    state = {name: t.detach() for name, t in parameters.model.named_parameters()}
    buffers = dict(parameters.model.named_buffers())
    chosen = {name: state.pop(name) for name in parameters.names}

    def scalar(values: dict[str, Tensor], x: Any, y: Any) -> Tensor:
        batch = map_tensors(lambda t: t.unsqueeze(0), x)
        positional, keyword = ((), batch) if isinstance(batch, dict) else (batch, {})
        everything = {**state, **buffers, **values}
        result = functional_call(parameters.model, everything, positional, {**keyword, **call.keywords})
        return output(map_tensors_of_output(lambda t: t.squeeze(0), result), y)

    inputs, targets = (map_tensors(lambda t: t, value) for value in (call.inputs, call.targets))
    places = (None, places_of_examples(inputs), places_of_examples(targets))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # correct all the same
        gradients = vmap(grad(scalar), places, randomness="error")(chosen, inputs, targets)
    out = torch.empty(batch_size(inputs), parameters.p, dtype=parameters.dtype, device=parameters.device)
    for name, (_, place) in zip(parameters.names, parameters.slices(), strict=True):
        out[:, place] = gradients[name].reshape(len(out), -1)
    return out


def _by_loop(signals: GradientSignals, call: Call) -> Tensor:
    parameters, b = signals.parameters, batch_size(call.inputs)
    out = torch.empty(b, parameters.p, dtype=parameters.dtype, device=parameters.device)
    for i in range(b):
        one = call.part(slice(i, i + 1))
        with torch.enable_grad():
            scalar = per_example(signals.output, one.run(), one.targets).sum()
            gradients = torch.autograd.grad(scalar, parameters.tensors, allow_unused=True)
        parameters.flatten(gradients, out=out[i])
    return out


def _by_shards(signals: GradientSignals, call: Call) -> Tensor:
    """Return this process's columns (b, width) of the gradients of a model with sharded parameters (FSDP2).

    Every process must pass the same examples: FSDP2 averages gradients over processes while it scatters them, which
    leaves equal ones unchanged and would mix different ones. FSDP2 writes gradients to `.grad` only, hence `backward`;
    previous values of `.grad` are restored.
    """
    parameters, b = signals.parameters, batch_size(call.inputs)
    everything = list(parameters.model.parameters())
    before = [t.grad for t in everything]
    out = torch.zeros(b, parameters.width, dtype=parameters.dtype, device=parameters.device)
    try:
        for i in range(b):
            for t in everything:
                t.grad = None
            one = call.part(slice(i, i + 1))
            with torch.enable_grad():
                per_example(signals.output, one.run(), one.targets).sum().backward()
            parameters.flatten([t.grad for t in parameters.tensors], out=out[i])
    finally:
        for t, gradient in zip(everything, before, strict=True):
            t.grad = gradient
    return out


def _by_layers(signals: GradientSignals, call: Call) -> Tensor:
    found = _fast(signals, call)
    if found is None:
        signals.path = "vmap"
        return _by_vmap(signals, call)
    return found


def _fast(signals: GradientSignals, call: Call) -> Tensor | None:
    """Return gradients (b, p) from the inputs a and sensitivities δ of each layer: δ aᵀ summed over positions.

    None if a use does not have the batch as its first dimension, or uses a slice of a weight.
    """
    parameters, b = signals.parameters, batch_size(call.inputs)
    output, uses, _ = record(signals.layers, call.run)
    with torch.enable_grad():
        total = per_example(signals.output, output, call.targets).sum()
    if not uses or any(len(use.input) != b or use.first for use in uses):
        return None
    deltas = torch.autograd.grad(total, [use.edge for use in uses], allow_unused=True)
    out = torch.zeros(b, parameters.p, dtype=parameters.dtype, device=parameters.device)
    places = {id(t): (place, t.shape) for t, place in parameters.slices()}
    for use, delta in zip(uses, deltas, strict=True):
        if delta is None:
            continue
        layer = use.layer
        a, d, groups = use.input, delta, 1
        if layer.kind == "conv":
            groups = use.options["groups"]
            a = patches(use.input, **use.options)
            d = delta.flatten(2).transpose(1, 2).reshape(b, a.shape[1], groups, -1)
        # (b, groups, positions, fan), for the sum of outer products over positions per example and group of channels
        a = a.to(out.dtype).reshape(b, -1, groups, layer.fan_in).transpose(1, 2)
        d = d.to(out.dtype).reshape(b, -1, groups, layer.fan_out // groups).transpose(1, 2)
        place, _ = places[id(layer.weight)]
        target = out[:, place].view(b, groups, layer.fan_out // groups, layer.fan_in)
        if a.shape[2] == 1:
            target.addcmul_(d.transpose(2, 3), a)
        else:
            target += d.transpose(2, 3) @ a
        if layer.bias is not None:
            out[:, places[id(layer.bias)][0]] += d.sum(2).reshape(b, -1)
    return out


_PATHS: dict[str, Callable[[GradientSignals, Call], Tensor]] = {
    "fast": _by_layers,
    "vmap": _by_vmap,
    "loop": _by_loop,
    "shards": _by_shards,
}


def per_example_gradients(
    model: nn.Module, inputs: Any, targets: Any, *, parameters: Selection = None, output: Output = true_logit
) -> Tensor:
    """Return the gradient of each example's scalar output with respect to the selected parameters, as rows (b, p).

    Args:
        model: Any module; it is evaluated in eval mode.
        inputs: A batch of inputs: a tensor, positional arguments (tuple or list), or keyword arguments (mapping).
        targets: Targets of the batch, or None if `output` needs none.
        parameters: Selection of parameters; by default all that require gradients.
        output: The scalar of an example, a function of its output and target; by default the true logit.

    >>> model = nn.Linear(2, 3, bias=False)
    >>> per_example_gradients(model, torch.tensor([[1.0, 2.0]]), torch.tensor([1]))
    tensor([[0., 0., 1., 2., 0., 0.]])
    """
    signals = GradientSignals(ProtectedParameters(model, parameters), output)
    return torch.cat(list(signals.chunks(inputs, targets)))
