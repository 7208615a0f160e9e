"""Heads: which one a model uses, for how long, and what is counted with each."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sketchogd.lab.runs.evaluate import Heads, count_right, shares


class TwoHeads(nn.Module):
    """Head h says class h, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = -1
        self.scale = nn.Parameter(torch.ones(()))
        self.modes: list[bool] = []

    def use_head(self, head: int) -> None:
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.modes.append(self.training)
        return self.scale * torch.eye(2)[self.head].expand(len(x), 2)


def test_another_head_is_used_for_a_block_only():
    model = TwoHeads()
    heads = Heads(model, 0)
    assert model.head == -1, "nothing is selected before it is needed"
    x, y = torch.zeros(4, 3), torch.tensor([0, 1, 1, 1])
    loss = heads.loss(x, y, 1)
    torch.testing.assert_close(loss, cross_entropy(torch.eye(2)[1].expand(4, 2), y))
    assert loss.requires_grad
    assert model.head == 0
    heads.use(1)
    assert (model.head, heads.current) == (1, 1)

    def failing():
        with heads.using(0):
            assert model.head == 0
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert model.head == 1


def test_examples_are_counted_with_their_own_head_in_evaluation_mode():
    model = TwoHeads().train()
    heads = Heads(model, 1)
    tests = [(torch.zeros(4, 3), torch.tensor([0, 1, 1, 1])), (torch.zeros(2, 3), torch.tensor([0, 1]))]
    right = count_right(heads, tests, [1, 0])
    assert right.tolist() == [3, 1]
    assert shares(right, tests).tolist() == [3 / 4, 1 / 2]
    assert shares(torch.stack([right, right]), tests).shape == (2, 2)
    assert model.modes == [False, False]
    assert model.training
    assert model.head == 1


def test_a_model_with_one_head_needs_no_selection():
    heads = Heads(nn.Linear(3, 2), 0)
    heads.use(5)
    assert heads.loss(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), 7).shape == ()
