"""A small LightningModule and its Trainer, for the tests and for the processes that they start."""

import logging
import sys

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sketchogd as so
from sketchogd.integrations.lightning import ForgettingCallback

from .tasks import fingerprint

WIDTH = 16
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, i):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, i):
        pass

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Two(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[i].parameters(), lr=0.1) for i in (0, 2)], []


class Protecting(Net):
    """Protects its optimizer by itself, and attaches those of later fits."""

    protection = None

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        if self.protection is None:
            self.protection = so.protect(self, optimizer, budget="100KB")
        else:
            self.protection.attach(optimizer)
        return optimizer


class Sharded(Net):
    """FSDP2, as Lightning's ModelParallelStrategy asks for it."""

    def configure_model(self):
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if not isinstance(self.net, FSDPModule):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def sharded():
    return Sharded()


def protecting():
    return Protecting()


def module():
    return Net()


def two_optimizers():
    return Two()


def data(task, n=128, seed=0):
    """Points about four centres; those of the second task are moved some way, and have other labels."""
    g = torch.Generator().manual_seed(50)
    centres, moves = 1.5 * torch.randn(2, 4, WIDTH, generator=g)
    centres = centres + task * moves
    g.manual_seed(10 * task + seed)
    y = torch.randint(0, 4, (n,), generator=g)
    return TensorDataset(centres[y] + 0.5 * torch.randn(n, WIDTH, generator=g), (y + task) % 4)


def loader(task):
    return DataLoader(data(task), 16)


@torch.no_grad()
def accuracy(model, task):
    x, y = data(task, 512, seed=5).tensors
    return float((model.eval()(x).argmax(1) == y).float().mean())


def callback(**options):
    return ForgettingCallback(budget="100KB", **options)


def checkpoints(folder, steps):
    return ModelCheckpoint(folder, "{step}", every_n_train_steps=steps, save_top_k=-1)


def trainer(folder, callbacks=(), **options):
    usual = {"max_steps": 100, "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    usual |= {"enable_model_summary": False, "num_sanity_val_steps": 0, "default_root_dir": str(folder)}
    if not any(isinstance(each, ModelCheckpoint) for each in callbacks):
        usual["enable_checkpointing"] = False
    return Trainer(callbacks=list(callbacks), **{**usual, **options})


def fit(model, task, folder, callbacks=(), checkpoint=None, **options):
    model.train()
    trainer(folder, callbacks, **options).fit(model, loader(task), ckpt_path=checkpoint)


class Watch(Callback):
    """How many steps wait while the model is validated, and its weights after three steps."""

    def __init__(self, callback):
        self.callback, self.validated, self.at_three = callback, [], None

    def on_validation_batch_start(self, *_):
        self.validated.append(self.callback.protection.pending)

    def on_train_batch_start(self, trainer, pl_module, *_):
        if trainer.global_step == 3:
            self.at_three = {name: t.clone() for name, t in pl_module.state_dict().items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    again, kept = module(), callback()
    fit(again, 1, ".", [kept], checkpoint=sys.argv[1], max_steps=16)
    print("numbers", *fingerprint(again, kept.protection))
