"""MiniLM-L6 (Wang et al. 2020; the sentence model of Reimers & Gurevych 2019): numbers of tokens → a mean over tokens.

transformers has the network and peft its LoRA adapters (Hu et al. 2022); both are imported when they are needed.
"""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.paper import seeded
from sketchogd.seeds import derive_seed

if TYPE_CHECKING:
    from sketchogd.lab.streams.tasks import Stream

WIDTH = 384
PADDING = 0
"""The number of the token that fills up sentences."""


class Sentences(nn.Module):
    """Numbers of tokens (b, L) int64, filled up with `PADDING` → the mean (b, width) of the tokens' vectors.

    Args:
        lora: the rank of LoRA adapters on queries and values, the network itself being frozen; 0 trains all of it.
        sizes: of the BERT, by default MiniLM-L6's.

    Raises:
        ImportError: transformers, or for LoRA peft, is not installed.
    """

    def __init__(self, lora: int = 0, **sizes: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        usual = {"hidden_size": WIDTH, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        self.bert: Any = BertModel(BertConfig(**{**usual, **sizes}), add_pooling_layer=False)
        self.lora = lora
        if lora:
            from peft import LoraConfig, get_peft_model

            chosen = LoraConfig(r=lora, lora_alpha=2 * lora, target_modules=["query", "value"], lora_dropout=0.0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers for what has a new name
                self.bert = get_peft_model(self.bert, chosen)

    def load_pretrained(self, weights: Mapping[str, Tensor]) -> None:
        """Load published weights, which may have a pooler too. Raises ValueError if any is missing."""
        base = self.bert.get_base_model() if self.lora else self.bert
        places = {name.replace(".base_layer", ""): name for name in base.state_dict() if "lora_" not in name}
        missing = places.keys() - weights.keys()
        if missing:
            raise ValueError(f"the weights lack {', '.join(sorted(missing)[:3])} …: they are of another network")
        base.load_state_dict({place: weights[name].float() for name, place in places.items()}, strict=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean over tokens that are no padding; columns that are padding in all rows are left out."""
        mask = tokens != PADDING
        longest = max(1, int(mask.sum(1).max()))
        tokens, mask = tokens[:, :longest], mask[:, :longest]
        vectors: Tensor = self.bert(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
        weights = mask[..., None].to(vectors.dtype)
        return (vectors * weights).sum(1) / weights.sum(1).clamp_min(1.0)


def minilm_for(stream: "Stream", seed: int) -> MultiHead:
    """MiniLM-L6 for a stream, all 22.6 million weights trained; the heads' are drawn from the seed."""
    return _sentences(stream, seed, 0)


def minilm_lora_for(stream: "Stream", seed: int) -> MultiHead:
    """MiniLM-L6 with LoRA adapters of rank 8, the only weights that are trained beside the heads."""
    return _sentences(stream, seed, 8)


def _sentences(stream: "Stream", seed: int, lora: int) -> MultiHead:
    with seeded(derive_seed(seed, "model")), torch.no_grad():
        return MultiHead(Sentences(lora), WIDTH, stream.classes, stream.heads)
