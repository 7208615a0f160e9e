"""Language models of transformers: what is remembered of them is what their own loss looks at."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import sketchogd as so
from sketchogd.memory.others import CALLS
from sketchogd.model.calls import Call
from sketchogd.model.gradients import GradientSignals
from sketchogd.model.layers import find_layers
from sketchogd.model.sensitivities import Reading
from sketchogd.model.signs import position_signs
from sketchogd.seeds import derive_seed

hf = pytest.importorskip("transformers")

V, T = 30, 8
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def bert(kind, **more):
    return getattr(hf, kind)(
        hf.BertConfig(vocab_size=V, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                      max_position_embeddings=16, **more)
    )  # fmt: skip


def gpt2():
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=V, n_embd=12, n_layer=1, n_head=2, n_positions=16, **SPECIAL))


def llama():
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(vocab_size=V, hidden_size=12, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                       tie_word_embeddings=True, **SPECIAL)
    )  # fmt: skip


def t5():
    return hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=V, d_model=12, d_kv=6, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    )


def bart(kind):
    return getattr(hf, kind)(
        hf.BartConfig(vocab_size=V, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                      decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=16,
                      decoder_start_token_id=2, **SPECIAL)
    )  # fmt: skip


MODELS = {
    "GPT-2": gpt2,
    "Llama": llama,
    "T5": t5,
    "BERT, masked": lambda: bert("BertForMaskedLM"),
    "BERT, tokens": lambda: bert("BertForTokenClassification", num_labels=V),
    "BART": lambda: bart("BartForConditionalGeneration"),
    "BART, decoder": lambda: bart("BartForCausalLM"),  # it compares labels with outputs as they are
}
SHIFTED = {"GPT-2", "Llama"}


def make(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    tokens = torch.randint(3, V, (5, T))
    mask = (torch.arange(T) < torch.tensor([8, 8, 6, 5, 3])[:, None]).long()
    labels = tokens.roll(3, 1) if name not in SHIFTED else tokens.clone()
    labels[mask == 0] = -100
    labels[0, 2] = -100
    inputs = {"input_ids": tokens * mask, "attention_mask": mask}
    return model, inputs, labels[:, :5].contiguous() if name in ("T5", "BART") else labels


@pytest.mark.filterwarnings("ignore:torch.func cannot")
@pytest.mark.parametrize("name", MODELS)
def test_log_likelihood_is_the_loss_of_the_model(name):
    """Σ_e ∇ log-likelihood = −(number of tokens) · ∇ loss, for the labels that collators make."""
    model, inputs, labels = make(name)
    later = name in SHIFTED
    n = int((labels[:, 1:] if later else labels).ge(0).sum())
    loss = model(**inputs, labels=labels).loss
    chosen = so.ProtectedParameters(model)
    expected = -n * chosen.flatten(torch.autograd.grad(loss, chosen.tensors, allow_unused=True))
    found = so.per_example_gradients(model, inputs, labels, output=so.log_likelihood).sum(0)
    assert (found - expected).norm() / expected.norm() < 1e-5
    call = Call.of(model, inputs, labels, so.true_logit)
    assert call.counted.sum() == n
    assert torch.equal(call.counted, call.targets >= 0)
    result = call.run()
    assert "past_key_values" not in result  # by default transformers builds a cache
    logits = result.logits
    own = Call.of(model, inputs, labels, lambda o, t: o.sum())
    assert torch.equal(own.targets, labels)  # an output of one's own gets what it got
    assert so.true_logit(logits[0], call.targets[0]).isclose(
        sum(logits[0, t, labels[0, t + later]] for t in range(labels.shape[1] - later) if labels[0, t + later] >= 0)
    )


@pytest.mark.filterwarnings("ignore:torch.func cannot")
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "T5", "BERT, masked"])
@pytest.mark.parametrize("memory", [so.LayerMemory, so.ProductSketch])
@pytest.mark.parametrize("output", [None, so.every_logit])
def test_batches_of_collators_are_remembered(name, memory, output):
    model, inputs, labels = make(name)
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=memory(6), output=output)
    batch = hf.BatchEncoding({**inputs, "labels": labels, "return_dict": True, "inputs_embeds": None})
    batch["attention_mask"] = batch["attention_mask"].bool()
    protection.remember([batch, batch])
    assert protection.memory.examples == 10
    if memory is so.LayerMemory:
        counted = labels[:, 1:] if name in SHIFTED else labels
        assert protection.memory.logits == round(V * float(counted.ge(0).sum()) / 5)
        assert protection.memory.others.way == CALLS  # one pass for the batch, whatever its mask


@pytest.mark.parametrize("curvature", ["traces", "positions"])
@pytest.mark.parametrize("ignored", [-100, 7])
def test_padding_changes_nothing(curvature, ignored):
    """More padding with other tokens in it, whether its labels are ignored or not: the same memory."""
    model, inputs, labels = make("GPT-2")
    more = {key: nn.functional.pad(t, (0, 4), value=7 if key == "input_ids" else 0) for key, t in inputs.items()}
    found = []
    for x, y in ((inputs, labels), (more, nn.functional.pad(labels, (0, 4), value=ignored))):
        memory = so.LayerMemory(40, curvature=curvature)
        memory.bind(so.ProtectedParameters(model, "*.mlp.*"), so.true_logit)
        memory.observe(x, y.masked_fill(x["attention_mask"] == 0, ignored))
        found.append([sketch.summand().clone() for _, sketch in memory.sketches()])
    assert [float(t.norm()) > 0 for t in found[0]] == [True] * 4
    assert all(torch.allclose(a, b, atol=1e-6, rtol=1e-4) for a, b in zip(*found, strict=True))


def test_every_logit_of_what_counts_and_of_nothing_else():
    """At the output layer δ is the combination's sign: zero at padding and where there is no label."""
    model, inputs, labels = make("Llama")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    layers = [layer for layer in find_layers(so.ProtectedParameters(model)) if layer.name == "lm_head"]
    for targets, shifted in ((labels, labels[:, 1:] >= 0), (None, None)):
        reading = Reading(model, layers, inputs, targets, so.every_logit, 0)
        deltas = list(reading.deltas())
        assert len(deltas) == 8
        counted = inputs["attention_mask"] > 0
        if shifted is not None:
            counted = torch.cat([shifted, torch.zeros(5, 1, dtype=torch.bool)], 1)
        for (delta,) in deltas:
            assert torch.equal(delta.abs() > 0, counted[..., None].expand_as(delta))
        assert reading.count == round(V * float(counted.sum()) / 5)


@pytest.mark.filterwarnings("ignore:torch.func cannot")
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "T5", "BERT, masked"])
def test_every_logit_in_a_gradient_memory_is_that_of_autograd(name):
    """Rows are ∇ Σ ± logit over the positions whose next (or own) token is a label."""
    model, inputs, labels = make(name)
    chosen = so.ProtectedParameters(model)
    memory = so.GradientMemory(so.ProductSketch(4))
    memory.bind(chosen, so.every_logit)
    rows = torch.cat(list(memory.signals.chunks(*memory.prepared(inputs, labels))))
    logits = model(**inputs, labels=labels).logits
    counted = labels >= 0
    if name in SHIFTED:
        counted = torch.cat([counted[:, 1:], torch.zeros(5, 1, dtype=torch.bool)], 1)
    signs = position_signs(torch.arange(5), logits[0], derive_seed("signs")).view(logits.shape)
    scalars = (logits * signs * counted[..., None]).sum((1, 2))
    expected = torch.stack(
        [chosen.flatten(torch.autograd.grad(s, chosen.tensors, retain_graph=True, allow_unused=True)) for s in scalars]
    )
    assert (rows - expected).norm() / expected.norm() < 1e-5


def test_backward_passes_do_not_grow_with_the_vocabulary(monkeypatch):
    passes = []
    for tokens in (V, 4000):
        torch.manual_seed(0)
        config = hf.GPT2Config(vocab_size=tokens, n_embd=12, n_layer=1, n_head=2, n_positions=16, **SPECIAL)
        model = hf.GPT2LMHeadModel(config).eval()
        real, calls = torch.autograd.grad, []
        monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(0) or real(*a, **k))  # noqa: B023
        memory = so.LayerMemory(4)
        memory.bind(so.ProtectedParameters(model, "*.mlp.*"), None)
        memory.observe(make("GPT-2")[1], None)
        monkeypatch.undo()
        passes.append(len(calls))
    assert passes == [10, 10]  # eight, one for the order of positions, one that looks for uses not seen


class Large(TorchDispatchMode):
    """Counts the bytes of living tensors of at least `least` bytes, and the most of them at a time."""

    def __init__(self, least):
        super().__init__()
        self.least, self.living, self.most, self.seen = least, 0, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for t in torch.utils._pytree.tree_leaves(found):
            if isinstance(t, torch.Tensor) and t.untyped_storage().nbytes() >= self.least:
                self._note(t.untyped_storage())
        return found

    def _note(self, storage):
        key, nbytes = storage._cdata, storage.nbytes()
        if key not in self.seen:
            self.seen.add(key)
            self.living += nbytes
            self.most = max(self.most, self.living)
            weakref.finalize(storage, self._forget, key, nbytes)

    def _forget(self, key, nbytes):
        self.seen.discard(key)
        self.living -= nbytes


@pytest.mark.parametrize("vocabulary", [2_000, 8_000])
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "T5"])
def test_memory_for_a_vocabulary_is_a_few_tensors_of_the_logits(name, vocabulary, monkeypatch):
    """Forward and backward pass of the model's own loss hold three (logits, their log-softmax, a gradient).

    Remembering may hold six: the logits, signs of two combinations, their gradients and one that is made.
    """
    monkeypatch.setattr("tests.model.test_language.V", vocabulary)
    model, inputs, labels = make(name)
    logits = 4 * labels.numel() * vocabulary
    monkeypatch.setattr("sketchogd.memory.curvature.kinds.GATHERED_BYTES", logits)  # less than these, as for real ones
    memory = so.LayerMemory(4)
    memory.bind(so.ProtectedParameters(model), None)
    with Large(logits // 2) as large:
        memory.observe(inputs, labels)
    assert memory.examples == 5
    assert logits <= large.most <= 6 * logits


def test_an_encoder_decoder_without_labels_says_what_to_do():
    model, inputs, _ = make("T5")
    protection = so.protect(model, torch.optim.SGD(model.parameters(), 0.1), memory=so.LayerMemory(4))
    with pytest.raises(ValueError, match='pass a mapping with "labels"'):
        protection.remember([inputs])


def test_a_loss_that_does_not_tell_is_an_error():
    model, inputs, labels = make("GPT-2")
    forward = model.forward

    def summed(input_ids, labels=None, **more):
        out = forward(input_ids, **more)
        return {"logits": out.logits} | ({} if labels is None else {"loss": out.logits.sum()})

    model.forward = summed
    with pytest.raises(ValueError, match="does not tell whether it shifts labels"):
        so.per_example_gradients(model, inputs, labels)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing")
def test_adapters_of_peft_are_read_in_one_pass_for_a_batch():
    peft = pytest.importorskip("peft")
    model, inputs, labels = make("Llama")
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    chosen = so.ProtectedParameters(adapted)
    signals = GradientSignals(chosen, so.log_likelihood)
    rows = torch.cat(list(signals.chunks(inputs, labels)))
    assert signals.path == "fast"
    loss = adapted(**inputs, labels=labels).loss
    expected = -int((labels[:, 1:] >= 0).sum()) * chosen.flatten(torch.autograd.grad(loss, chosen.tensors))
    assert (rows.sum(0) - expected).norm() / expected.norm() < 1e-5
