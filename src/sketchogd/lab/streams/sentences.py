"""Streams of sentences as numbers of tokens: the ten domains of CLINC150, fifteen intents each."""

import torch

from sketchogd.lab.data.texts import LabelledTokens
from sketchogd.lab.streams.encodings import Tokens
from sketchogd.lab.streams.tasks import Pair, Recipe, Stream
from sketchogd.lab.streams.transforms import first_of_each


def domains(
    sentences: LabelledTokens,
    *,
    seed: int,
    tasks: int | None,
    n_train: int | None,
    n_test: int | None,
    single_head: bool = False,
) -> Stream:
    """A task for each domain with a head of its own, or with one head for all intents; the seed changes nothing.

    Args:
        sentences: labelled by intent, those of a domain in a row.
        seed: not used.
        tasks: how many of the tasks to keep, the first ones; None for all.
        n_train: training examples per task, spread evenly over the intents; None for all.
        n_test: test examples per task, likewise.
        single_head: class-incremental: one head for all intents of all domains.
    """
    c = sentences.per_domain
    most = sentences.classes // c

    def half(x: torch.Tensor, y: torch.Tensor, n: int | None, first: int) -> Pair:
        members = ((y >= first) & (y < first + c)).nonzero().flatten()
        kept = members[first_of_each(y[members], n)]
        return x[kept], y[kept] if single_head else y[kept] - first

    recipes = [
        Recipe(
            f"domain {t}",
            sentences.classes if single_head else c,
            0 if single_head else t,
            lambda t=t: half(sentences.x_train, sentences.y_train, n_train, t * c),  # type: ignore[misc]
            lambda t=t: half(sentences.x_test, sentences.y_test, n_test, t * c),  # type: ignore[misc]
        )
        for t in range(min(most, tasks or most))
    ]
    return Stream(sentences.name, recipes, Tokens())
