"""A call of a model with a batch: what it is called with, its targets in line with its outputs, which outputs count.

Most models are called with their inputs and that is all. A language model of transformers is called without a cache; an
encoder-decoder gets the inputs of its decoder from the labels, as in training; labels that the model itself shifts by
one token before it compares them with its outputs are shifted here too.

Letters: b examples, T positions of a sequence, V tokens.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .batches import (
    Output,
    call,
    evaluating,
    every_logit,
    logits_of,
    map_tensors,
    reads_targets,
)

IGNORED = -100
"""The label of a position that does not count, in torch and in transformers; every label below 0 means it here."""

DECODER_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds")


@dataclass(frozen=True)
class Call:
    """One call of a model with a batch.

    Args:
        model: any module.
        inputs: a tensor, positional arguments, or keyword arguments.
        targets: for outputs of this library in line with the model's outputs; for others as they came.
        keywords: more keyword arguments.
        counted: which positions (b, T) of outputs (b, T, V) count, or (b, H, W) of (b, C, H, W); None for all.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    keywords: Mapping[str, Any]
    counted: Tensor | None

    @staticmethod
    def of(model: nn.Module, inputs: Any, targets: Any, output: Output) -> "Call":
        """The call for a batch whose `output` is remembered.

        Raises TypeError for keyword arguments that the model does not take, and ValueError for an encoder-decoder
        without labels or decoder inputs.
        """
        takes = Takes.of(model)
        named = takes.by_name(inputs)
        takes.require_known(model, named)
        keywords = {"use_cache": False} if "use_cache" in takes.names and "use_cache" not in named else {}
        more = _decoder_inputs(model, named, targets, "labels" in takes.names)
        if more:
            inputs = {**named, **more}
        plain = Call(model, inputs, targets, keywords, None)
        if output is not every_logit and not reads_targets(output):
            return plain
        labels, padding = _labels(targets), _not_padding(model, named)
        if labels is not None:
            if padding is not None and padding.shape == labels.shape:
                labels = labels.masked_fill(~padding, IGNORED)
            if labels.ndim == 2 and "labels" in takes.names and not more and plain.shifts_labels():
                labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], 1)
            if padding is not None and padding.shape == labels.shape:
                labels = labels.masked_fill(~padding, IGNORED)
        counted = padding if labels is None else labels >= 0
        return replace(plain, targets=targets if labels is None else labels, counted=counted)

    def run(self) -> Any:
        """What the model returns."""
        try:
            return call(self.model, self.inputs, **self.keywords)
        except ValueError as error:
            if any(name in str(error) for name in DECODER_INPUTS):
                raise ValueError(
                    f"{type(self.model).__name__} is an encoder-decoder, and the batch has neither labels nor "
                    'decoder_input_ids: pass a mapping with "labels" (as DataCollatorForSeq2Seq makes), which its '
                    "decoder reads in training"
                ) from error
            raise

    def part(self, place: slice) -> "Call":
        """The same call with some of the examples."""
        inputs, targets, counted = (
            map_tensors(lambda t: t[place], value) for value in (self.inputs, self.targets, self.counted)
        )
        return replace(self, inputs=inputs, targets=targets, counted=counted)

    def shifts_labels(self) -> bool:
        """Whether the model compares labels (b, T) with the outputs of the position before, as causal language models.

        It is asked once: with a label at the last position alone, the loss that the model computes depends on the
        outputs there or on those before. False for a model whose outputs have no position for each label, or that
        computes no loss. Raises ValueError where the loss does not tell.
        """
        if self.model not in _SHIFTS:
            _SHIFTS[self.model] = _loss_depends_on_position_before(self.part(slice(0, 1)))
        return _SHIFTS[self.model]


_SHIFTS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""What models were found to do with labels."""


# ---------------------------------------------------------------- what a model takes


@dataclass(frozen=True)
class Takes:
    """The arguments of a model's forward: their names, which may be positional, and whether any keyword may come."""

    names: tuple[str, ...]
    positional: tuple[str, ...]
    many: bool
    any_keyword: bool

    @staticmethod
    def of(model: nn.Module) -> "Takes":
        """Read them off the signature; of a model of peft also those of the model inside."""
        try:
            found = inspect.signature(model.forward).parameters.values()
        except (TypeError, ValueError):  # a compiled function
            return Takes((), (), True, True)
        P = inspect.Parameter
        any_keyword, many = (any(p.kind is kind for p in found) for kind in (P.VAR_KEYWORD, P.VAR_POSITIONAL))
        positional = tuple(p.name for p in found if p.kind in (P.POSITIONAL_ONLY, P.POSITIONAL_OR_KEYWORD))
        names = (*positional, *(p.name for p in found if p.kind is P.KEYWORD_ONLY))
        inner = getattr(model, "get_base_model", None) if any_keyword else None
        if inner is not None and inner() is not model:
            names += Takes.of(inner()).names
        return Takes(names, positional, many, any_keyword)

    def by_name(self, inputs: Any) -> dict[str, Any]:
        """Inputs by the names of the arguments; those beyond the names are left out."""
        if isinstance(inputs, Mapping):
            return dict(inputs)
        return dict(zip(self.positional, inputs if isinstance(inputs, (tuple, list)) else [inputs], strict=False))

    def require_known(self, model: nn.Module, named: Mapping[str, Any]) -> None:
        """Raise TypeError if a batch has keyword arguments that the model does not take."""
        unknown = [] if self.any_keyword else [name for name in named if name not in self.names]
        if unknown:
            raise TypeError(
                f"the batch has {', '.join(map(repr, unknown))}, and {type(model).__name__} takes "
                f"{', '.join(map(repr, self.names)) or 'nothing'}. Targets are named \"labels\" in a mapping, or come as "
                "(inputs, targets); leave out what the model does not take"
            )


# ---------------------------------------------------------------- language models


def _labels(targets: Any) -> Tensor | None:
    """Targets that are classes of the positions of an example; None for any others."""
    whole = isinstance(targets, Tensor) and not targets.is_floating_point() and targets.dtype != torch.bool
    return targets if whole and targets.ndim > 1 else None


def _not_padding(model: nn.Module, named: Mapping[str, Any]) -> Tensor | None:
    """Which positions (b, T) of the outputs are of tokens, from the attention mask; None if there is none."""
    decodes = any(name in named for name in DECODER_INPUTS) or _encodes_and_decodes(model)
    mask = named.get("decoder_attention_mask" if decodes else "attention_mask")
    return mask != 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _encodes_and_decodes(model: nn.Module) -> bool:
    return getattr(getattr(model, "config", None), "is_encoder_decoder", False) is True


def _decoder_inputs(model: nn.Module, named: Mapping[str, Any], targets: Any, takes_labels: bool) -> dict[str, Any]:
    """What an encoder-decoder needs for its decoder, from labels (b, T), unless the batch has it."""
    labels = _labels(targets)
    if labels is None or not _encodes_and_decodes(model) or any(named.get(name) is not None for name in DECODER_INPUTS):
        return {}
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        return {DECODER_INPUTS[0]: prepare(labels=labels)}
    return {"labels": labels} if takes_labels else {}


def _loss_depends_on_position_before(one: Call) -> bool:
    """See `Call.shifts_labels`."""
    if _encodes_and_decodes(one.model):
        return False  # the decoder's inputs are shifted, its labels are not
    inputs = _of_two_tokens(one.inputs, one.targets.shape[1])
    T = max(2, one.targets.shape[1])
    named = Takes.of(one.model).by_name(inputs)
    with evaluating(one.model), torch.enable_grad():
        logits = logits_of(call(one.model, inputs, **one.keywords))
        if logits.ndim != 3 or logits.shape[1] != T:
            return False
        labels = torch.full((1, T), IGNORED, device=logits.device)
        labels[0, -1] = logits[0, -1].argmin()
        result = call(one.model, {**named, "labels": labels}, **one.keywords)
        loss = result.get("loss") if isinstance(result, Mapping) else None
        if not isinstance(loss, Tensor):
            return False
        (gradient,) = torch.autograd.grad(loss, [logits_of(result)], allow_unused=True)
    touched = [] if gradient is None else gradient[0].abs().amax(-1).nonzero().flatten().tolist()
    if touched not in ([T - 1], [T - 2]):
        raise ValueError(
            f"the loss of {type(one.model).__name__} does not tell whether it shifts labels by one token; pass output=, "
            "a function of one example's output and labels that gives a scalar, such as so.every_logit"
        )
    return touched == [T - 2]


def _of_two_tokens(inputs: Any, T: int) -> Any:
    """Inputs of one token, twice: a single token has no next one."""
    return inputs if T > 1 else map_tensors(lambda t: torch.cat([t, t], 1) if t.shape[1:2] == (1,) else t, inputs)
