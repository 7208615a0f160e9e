"""FSDP2 through transformers' Trainer on CPU processes, for the test that starts them.

accelerate shards on GPUs and other accelerators only: on CPUs it takes DDP, whatever the arguments say. `Sharding` lets
it believe that the processes have a GPU each; what shards the model is then accelerate's own code.
"""

import os
import warnings

import torch
from accelerate.state import DistributedType, PartialState
from transformers import Trainer, TrainingArguments

import sketchogd as so
from sketchogd.integrations.transformers import ForgettingCallback

from .bert import USUAL, bert
from .tasks import Markers


class Sharding(TrainingArguments):
    @property
    def device(self):
        found = super().device
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        return found


def trainer(model, task, folder, callbacks, **options):
    # With a policy, accelerate does not find the layers of a model that another Trainer sharded before.
    sharded = {"fsdp": True, "fsdp_config": {"version": 2, "auto_wrap_policy": "NO_WRAP"}}
    arguments = Sharding(folder, **{**USUAL, **sharded, "max_steps": 8, "per_device_train_batch_size": 8, **options})
    return Trainer(model, arguments, train_dataset=Markers(task, 50), callbacks=callbacks)


def surroundings(rank, size):
    warnings.resetwarnings()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", ACCELERATE_USE_CPU="true", HF_HUB_OFFLINE="1")


def weights(model):
    return torch.cat([p.detach().full_tensor().flatten() for p in model.parameters()])


@torch.no_grad()
def true_logits(model):
    data = Markers(0, 32)
    found = model(input_ids=data.tokens).logits.gather(1, data.labels[:, None])
    model.reshard()  # a forward pass leaves the outermost weights whole, and the next Trainer would train these
    return found


def change(folder, protect):
    """By how much what is remembered changes while the second task is learned, and the protection."""
    model, callback = bert(), ForgettingCallback(memory=so.ProductSketch(40), remember=Markers(0, 32))
    trainer(model, 0, folder, [callback], max_steps=40).train()
    before = true_logits(model)
    if not protect:
        callback.protection.detach()
    trainer(model, 1, folder, [callback] if protect else [], learning_rate=2e-4).train()
    return float((true_logits(model) - before).norm()), callback.protection


def protected(rank, size, folder):
    surroundings(rank, size)
    free, _ = change(folder, False)
    kept, protection = change(folder, True)
    kinds = {type(p).__name__ for p in protection.parameters.tensors}
    return free, kept, kinds == {"DTensor"}, protection.metrics()


def resumed(rank, size, folder):
    """Weights after a task, without a break and from a checkpoint on, and what a budget picks."""
    surroundings(rank, size)
    model, callback = bert(), ForgettingCallback("1MB")
    trainer(model, 0, f"{folder}/0", [callback]).train()
    saving = {"save_strategy": "steps", "save_steps": 4}
    trainer(model, 1, f"{folder}/1", [callback], **saving).train()
    again, other = bert(), ForgettingCallback("1MB")
    trainer(again, 1, f"{folder}/1", [other], **saving).train(resume_from_checkpoint=f"{folder}/1/checkpoint-4")
    return weights(model), weights(again), repr(other.protection.memory), other.protection.memory.examples


def pulled(rank, size, folder):
    """By how much remembered logits change with a layer memory, which a budget with a strength picks, and without."""
    surroundings(rank, size)
    found = []
    for options in ({"budget": "1MB", "strength": 100.0}, None):
        model = bert()
        callback = ForgettingCallback(remember=Markers(0, 32), **(options or {"budget": "1MB"}))
        trainer(model, 0, folder, [callback], max_steps=40).train()
        before = true_logits(model)
        if options is None:
            callback.protection.detach()
        trainer(model, 1, folder, [callback] if options else [], learning_rate=2e-4).train()
        found.append(float((true_logits(model) - before).norm()))
    return (*found, callback.protection.memory.name, callback.protection.ledger().nbytes)
