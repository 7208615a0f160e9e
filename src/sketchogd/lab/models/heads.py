"""A body with one linear head per task, or one for all of them."""

from typing import Any

from torch import Tensor, nn


class MultiHead(nn.Module):
    """A network for a stream: body (b, …) → (b, width), and heads width → classes, of which one is in use.

    `PROTECTED` selects what all tasks share: a head of its own forgets nothing. A single head is shared too.

    Args:
        body: any module.
        width: its outputs.
        classes: outputs of a head.
        heads: how many.
        bias: whether heads have biases.
    """

    PROTECTED = ("!heads.*",)
    """All but the heads."""

    def __init__(self, body: nn.Module, width: int, classes: int, heads: int = 1, *, bias: bool = True) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleList(nn.Linear(width, classes, bias=bias) for _ in range(heads))
        self.head = 0

    def use_head(self, head: int) -> None:
        """Make `head` the one whose logits `forward` returns. Raises IndexError if there is no such head."""
        if not 0 <= head < len(self.heads):
            raise IndexError(f"this network has heads 0 to {len(self.heads) - 1}, not {head}")
        self.head = head

    def load_pretrained(self, weights: Any) -> None:
        """Load the weights of a pretrained body; see `Benchmark.weights`."""
        self.body.load_pretrained(weights)  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, classes) of the head in use."""
        logits: Tensor = self.heads[self.head](self.body(x))
        return logits
