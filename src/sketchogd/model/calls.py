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
        tokens: which positions (b, T) of the inputs are not padding; None for all.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    keywords: Mapping[str, Any]
    counted: Tensor | None
    tokens: Tensor | None

    @staticmethod
    def of(model: nn.Module, inputs: Any, targets: Any, output: Output) -> "Call":
        """The call for a batch whose `output` is remembered.

        Raises TypeError for keyword arguments that the model does not take, and ValueError for an encoder-decoder
        without labels or decoder inputs.
        """
        takes = Takes.of(model)
        named = takes.by_name(inputs)
        takes.require_known(model, inputs)
        keywords = {"use_cache": False} if "use_cache" in takes.names and "use_cache" not in named else {}
        more = _decoder_inputs(model, named, targets, "labels" in takes.names)
        if more:
            inputs = {**named, **more}
        decodes = any(name in named for name in DECODER_INPUTS) or _encodes_and_decodes(model)
        tokens = None if decodes else _mask(named, "attention_mask")
        plain = Call(model, inputs, targets, keywords, None, tokens)
        if output is not every_logit and not reads_targets(output):
            return plain
        outputs = _mask(named, "decoder_attention_mask") if decodes else tokens
        labels = _without_padding(_labels(targets), outputs)
        if labels is None:
            return replace(plain, counted=outputs)
        if labels.ndim == 2 and "labels" in takes.names and not decodes and plain.shifts_labels():
            shifted = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], 1)
            labels = _without_padding(shifted, outputs)
            assert labels is not None
        return replace(plain, targets=labels, counted=labels >= 0)

    def run(self) -> Any:
        """What the model returns."""
        try:
            return call(self.model, self.inputs, **self.keywords)
        except ValueError as error:
            named = Takes.of(self.model).by_name(self.inputs)
            if not _encodes_and_decodes(self.model) or any(name in named for name in ("labels", *DECODER_INPUTS)):
                raise
            raise ValueError(
                f"{type(self.model).__name__} is an encoder-decoder, and the batch has neither labels nor "
                'decoder_input_ids: pass a mapping with "labels" (as DataCollatorForSeq2Seq makes), which its decoder '
                "reads in training"
            ) from error

    def part(self, place: slice) -> "Call":
        """The same call with some of the examples."""
        parts = {key: getattr(self, key) for key in ("inputs", "targets", "counted", "tokens")}
        return replace(self, **{key: map_tensors(lambda t: t[place], value) for key, value in parts.items()})

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

    @property
    def most(self) -> int | None:
        """How many positional inputs may come; None for any number."""
        return None if self.many else len(self.positional)

    def require_known(self, model: nn.Module, inputs: Any) -> None:
        """Raise TypeError if a batch has inputs that the model does not take."""
        name, arguments = type(model).__name__, ", ".join(map(repr, self.names)) or "nothing"
        if isinstance(inputs, Mapping):
            unknown = [] if self.any_keyword else [key for key in inputs if key not in self.names]
            if unknown:
                raise TypeError(
                    f"the batch has {', '.join(map(repr, unknown))}, and {name} takes {arguments}. Targets are named "
                    '"labels" in a mapping, or come as (inputs, targets); leave out what the model does not take'
                )
        elif isinstance(inputs, (tuple, list)) and self.most is not None and len(inputs) > self.most:
            raise TypeError(
                f"the inputs are a {type(inputs).__name__} of {len(inputs)}, and {name} takes {arguments}. Inputs and "
                "targets of one batch are observe(inputs, targets), or remember([(inputs, targets)])"
            )


# ---------------------------------------------------------------- language models


def _labels(targets: Any) -> Tensor | None:
    """Targets that are classes of the positions of an example; None for any others."""
    whole = isinstance(targets, Tensor) and not targets.is_floating_point() and targets.dtype != torch.bool
    return targets if whole and targets.ndim > 1 else None


def _mask(named: Mapping[str, Any], name: str) -> Tensor | None:
    """Which positions (b, T) are of tokens, from a mask of that name; None if there is none of that shape."""
    mask = named.get(name)
    return mask != 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _without_padding(labels: Tensor | None, tokens: Tensor | None) -> Tensor | None:
    """Labels that are ignored at padding, where they have its positions."""
    if labels is None or tokens is None or labels.shape != tokens.shape:
        return labels
    return labels.masked_fill(~tokens, IGNORED)


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
            f"the loss of {type(one.model).__name__} does not tell whether it shifts labels by one token; pass an "
            "output= of your own, a function of one example's output and labels, which gets the labels as they are"
        )
    return touched == [T - 2]


def _of_two_tokens(inputs: Any, T: int) -> Any:
    """Inputs of one token, twice: a single token has no next one."""
    return inputs if T > 1 else map_tensors(lambda t: torch.cat([t, t], 1) if t.shape[1:2] == (1,) else t, inputs)
