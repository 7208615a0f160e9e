"""Labelled sentences as numbers of tokens: CLINC150 (Larson et al. 2019), 150 intents in ten domains of fifteen.

The sentences are CC BY 3.0; the tokens are those of MiniLM-L6, whose tokenizer.json is read with its weights. `n`
sentences, `L` tokens at most.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sketchogd.lab.data import sources, weights
from sketchogd.lab.data.fileformats import DataError

LENGTH = 32
"""Longer sentences are cut; the longest of CLINC150 has 31 tokens with the first and the last."""


@dataclass(frozen=True)
class LabelledTokens:
    """A training and a test set: x int64 (n, L), filled up with 0, and y int64 (n,) in 0 … classes − 1.

    The intents of a domain follow one another, `per_domain` of them.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    name: str
    classes: int
    per_domain: int


def load_clinc150(folder: Path, root: Path) -> LabelledTokens:
    """The files in `folder`, their sentences tokenized with what is in `root`/minilm.

    Raises:
        DataError: a file is missing or has another checksum than the published one.
        ImportError: tokenizers, which comes with transformers, is not installed.
    """
    found = {}
    for published in sources.PUBLISHED["clinc150"]:
        path = folder / published.name
        if path.stat().st_size > published.limit or not published.admits(data := path.read_bytes()):
            raise DataError(f"{path}: the checksum is not the published one. {sources.instructions('clinc150', root)}")
        found[published.name] = json.loads(data)
    intents = [intent for domain in found["domains.json"].values() for intent in domain]
    tokenizer = weights.file("minilm", "tokenizer.json", root)

    def half(split: str) -> tuple[Tensor, Tensor]:
        rows = [(text, intents.index(intent)) for text, intent in found["data_full.json"][split]]
        return tokens([text for text, _ in rows], tokenizer), torch.tensor([y for _, y in rows])

    return LabelledTokens(*half("train"), *half("test"), "clinc150", len(intents), len(intents) // 10)


def tokens(sentences: list[str], tokenizer: Path) -> Tensor:
    """The numbers of the tokens of sentences (n, L), filled up with 0."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(tokenizer))
    made.enable_truncation(LENGTH)
    made.enable_padding(pad_id=0, pad_token="[PAD]", length=LENGTH)
    return torch.tensor([each.ids for each in made.encode_batch(sentences)])
