"""Small models of every kind that the library claims to work on, each with inputs of the right form."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(x + self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x))))))


class TransformerEncoder(nn.Module):
    def __init__(self, tokens=20, width=16, classes=4):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(0.1 * torch.randn(6, width))
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x) + self.position).mean(1))


class GRU(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.gru = nn.GRU(5, 12, batch_first=True)
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


class LoRA(nn.Module):
    """A frozen layer with a trainable low-rank addition, and a trainable head."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(10, 16).requires_grad_(False)
        self.lora_a = nn.Linear(10, 3, bias=False)
        self.lora_b = nn.Linear(3, 16, bias=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.base(x) + self.lora_b(self.lora_a(x))))


def mlp():
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(16, 4))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, groups=2, padding="same"),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 4),
    )


def resnet():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Block(8),
        nn.MaxPool2d(2),
        Block(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def tokens(n, g):
    return torch.randint(0, 20, (n, 6), generator=g)


def images(n, g):
    return torch.randn(n, 3, 8, 8, generator=g)


MODELS = {
    "mlp": (mlp, lambda n, g: torch.randn(n, 10, generator=g)),
    "cnn": (cnn, images),
    "resnet": (resnet, images),
    "transformer": (TransformerEncoder, tokens),
    "lora": (LoRA, lambda n, g: torch.randn(n, 10, generator=g)),
    "gru": (GRU, lambda n, g: torch.randn(n, 7, 5, generator=g)),
}


def make(kind, seed=0, n=24):
    """(model, inputs, targets) of a kind."""
    torch.manual_seed(seed)
    build, draw = MODELS[kind]
    g = torch.Generator().manual_seed(seed)
    return build(), draw(n, g), torch.randint(0, 4, (n,), generator=g)
