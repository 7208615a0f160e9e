"""Language models that people have, through the real Trainer: GPT-2's Conv1D, a tied Llama with its cache, T5."""

import pytest
import torch

import sketchogd as so

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'sketchogd[transformers]'")
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'sketchogd[transformers]'")

import transformers as hf
from torch.utils.data import Dataset

from sketchogd.integrations.transformers import ForgettingCallback

from .bert import trainer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
TOKENS, LENGTH = 96, 8
DECODER = {"vocab_size": TOKENS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
OFF = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS = {
    "GPT-2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=TOKENS, n_embd=16, n_layer=1, n_head=2, n_positions=LENGTH, **OFF)
    ),
    "Llama, tied": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**DECODER, num_attention_heads=2, tie_word_embeddings=True)
    ),
    "T5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=TOKENS, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0,
            dropout_rate=0.0,
        )
    ),
}  # fmt: skip


class Sentences(Dataset):
    """Random tokens with some padding, to be predicted from themselves."""

    def __init__(self, task, n=24):
        self.tokens = torch.randint(3, TOKENS, (n, LENGTH), generator=torch.Generator().manual_seed(task))
        self.mask = torch.ones(n, LENGTH, dtype=torch.long)
        self.mask[::3, -2:] = 0

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        labels = self.tokens[i].masked_fill(self.mask[i] == 0, -100)
        return {"input_ids": self.tokens[i], "attention_mask": self.mask[i], "labels": labels}


@torch.no_grad()
def outputs(model):
    data = Sentences(0)
    more = {"labels": data.tokens} if model.config.is_encoder_decoder else {}
    return model.eval()(input_ids=data.tokens, attention_mask=data.mask, **more).logits[data.mask == 1]


@pytest.mark.parametrize("name", MODELS)
def test_a_budget_of_the_models_size_protects_it_by_layers(name, tmp_path):
    moved = {}
    for strength in (1e6, None):
        torch.manual_seed(0)
        model = MODELS[name]()
        callback = ForgettingCallback("100%", strength=strength)
        trainer(model, 0, tmp_path, [callback], data=Sentences(0), max_steps=6).train()
        before, protection = outputs(model), callback.protection
        assert isinstance(protection.memory, so.LayerMemory)
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        assert protection.ledger().nbytes <= weights
        assert protection.memory.examples == 24
        assert [row for row in protection.coverage() if "not protected" in row.how] == []
        if strength is None:
            protection.detach()
        trainer(model, 0, tmp_path, [callback] if strength else [], data=Sentences(1), max_steps=8).train()
        moved[strength] = float((outputs(model) - before).norm())
    assert moved[1e6] < 0.35 * moved[None], moved


def test_a_tied_head_costs_no_more_than_one_of_its_own():
    """One weight is two layers, an embedding and the head; its gradients are not sketched."""
    costs = {}
    for tied in (True, False):
        config = hf.LlamaConfig(**DECODER, num_attention_heads=2, tie_word_embeddings=tied)
        costs[tied] = so.LayerMemory(8).cost(so.ProtectedParameters(hf.LlamaForCausalLM(config)))
    assert costs[True] <= costs[False]
