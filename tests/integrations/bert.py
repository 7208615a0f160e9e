"""A tiny BERT of random weights and a Trainer for it, for the tests and for the processes that they start."""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from .tasks import CLASSES, LENGTH, TOKENS, Markers, fingerprint

USUAL = {
    "max_steps": 120,
    "per_device_train_batch_size": 16,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "constant",
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}


def bert(seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=TOKENS, num_labels=CLASSES, max_position_embeddings=LENGTH, **sizes, **off)
    return BertForSequenceClassification(config)


def trainer(model, task, folder, callbacks=(), n=128, data=None, eval_data=None, **options):
    arguments = TrainingArguments(str(folder), **{**USUAL, **options})
    data = data or Markers(task, n)
    return Trainer(model, arguments, train_dataset=data, eval_dataset=eval_data, callbacks=list(callbacks))


@torch.no_grad()
def accuracy(model, task):
    model.eval()
    data = Markers(task, 256, seed=7)
    return float((model(input_ids=data.tokens).logits.argmax(-1) == data.labels).float().mean())


@torch.no_grad()
def outputs(model, task=0):
    model.eval()
    return model(input_ids=Markers(task).tokens).logits.clone()


def resume(folder):
    """Go on from a checkpoint in this process, which knows nothing else, and print a checksum of every number."""
    from sketchogd.integrations.transformers import ForgettingCallback

    torch.set_num_threads(1)
    callback, model = ForgettingCallback("1MB"), bert()
    options = {"max_steps": 12, "save_strategy": "steps", "save_steps": 6}
    trainer(model, 1, folder, [callback], **options).train(resume_from_checkpoint=f"{folder}/checkpoint-6")
    print("numbers", *fingerprint(model, callback.protection))


if __name__ == "__main__":
    resume(sys.argv[1])
