"""DER++ (Buzzega, Boschini, Porrello, Abati, Calderara 2020, "Dark Experience for General Continual Learning").

A reservoir holds examples with their labels and the logits that the model had when it saw them. Every step is on

    loss(batch) + α ‖z(x′) − z′‖² + β loss(x″, y″),

with two independent draws (x′, z′) and (x″, y″) from the reservoir and the mean over all logits of a draw. Then the
batch is offered to the reservoir, whose n-th example (from 0) overwrites place ⌊u (n + 1)⌋ if there is one.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sketchogd.lab.methods.baselines.examples import ExampleStore
from sketchogd.lab.methods.learner import Learner, Logits, Loss
from sketchogd.lab.streams.encodings import AS_GIVEN, Encoding
from sketchogd.model.batches import evaluating


class DER(Learner):
    """Keeps `capacity` examples in all, as bytes where the stream has them, with C logits each.

    Bytes: capacity · (bytes of an example + 4 C). The logits are taken in evaluation mode, of examples that are not
    augmented; the authors take those of the training step, with dropout. Only those that enter are computed.

    Args:
        model: the model that is trained.
        loss: mean loss of a batch of one head.
        logits: of a batch through a head.
        capacity: examples kept in all.
        batch: examples of each of the two draws.
        alpha: α.
        beta: β; 0 gives DER.
        encoding: how inputs are kept.
        seed: every random choice follows from it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        logits: Logits,
        capacity: int,
        batch: int,
        *,
        alpha: float = 0.1,
        beta: float = 0.5,
        encoding: Encoding = AS_GIVEN,
        seed: int = 0,
    ) -> None:
        if capacity < 1 or batch < 1 or alpha < 0 or beta < 0:
            raise ValueError(
                f"DER++ needs a budget with room for at least one example, and weights >= 0; got {capacity}, {batch}"
            )
        self.model, self.loss, self.logits = model, loss, logits
        self.capacity, self.batch, self.alpha, self.beta = capacity, batch, alpha, beta
        self.store = ExampleStore(seed, encoding)
        self.answers: Tensor | None = None
        self.seen = 0

    def before_step(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Add the gradient of both terms to `.grad`, and offer the batch to the reservoir."""
        if len(self.store):
            trained = [t for t in self.model.parameters() if t.requires_grad]
            with torch.enable_grad():
                total = self.alpha * self._distance() + self.beta * self._loss()
            for t, g in zip(trained, torch.autograd.grad(total, trained, allow_unused=True), strict=True):
                if g is not None:
                    t.grad = g if t.grad is None else t.grad.add_(g)
        self._offer(inputs, targets, head)

    def end_task(self, inputs: Tensor, targets: Tensor, head: int = 0) -> None:
        """Everything was offered when it was seen."""

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return self.store.tensors() | ({} if self.answers is None else {"logits": self.answers})

    def state_dict(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"seen": self.seen, "store": self.store.state_dict(), "logits": self.answers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Learner`."""
        device = next(self.model.parameters()).device
        self.seen = int(state["seen"])
        self.store.load_state_dict(state["store"], lambda t: t.to(device))
        self.answers = None if state["logits"] is None else state["logits"].to(device).clone()

    def _distance(self) -> Tensor:
        """Mean squared distance of the logits of a draw from those that are kept."""
        assert self.answers is not None
        rows = self.store.rows(self.batch)
        parts = []
        for x, _, head, members in self.store.of_rows(rows):
            parts.append((self.logits(x, head, None) - self.answers[members]).square().sum())
        return torch.stack(parts).sum() / (len(rows) * self.answers.shape[1])

    def _loss(self) -> Tensor:
        """Mean loss of a draw."""
        rows = self.store.rows(self.batch)
        parts = [self.loss(x, y, head) * (len(y) / len(rows)) for x, y, head, _ in self.store.of_rows(rows)]
        return torch.stack(parts).sum()

    @torch.no_grad()
    def _offer(self, inputs: Tensor, targets: Tensor, head: int) -> None:
        """Offer a batch to the reservoir; the last of those that fall on one place stays there."""
        n = len(targets)
        uniform = torch.rand(n, generator=self.store.generator("reservoir", self.seen), dtype=torch.float64)
        numbers = self.seen + torch.arange(n)
        places = torch.where(numbers < self.capacity, numbers, (uniform * (numbers + 1)).long())
        self.seen += n
        accepted = (places < self.capacity).nonzero().flatten()
        if not len(accepted):
            return
        with evaluating(self.model):
            answers = self.logits(inputs[accepted.to(inputs.device)], head, None)
        if self.answers is None:
            self.answers = answers.new_zeros(0, answers.shape[1])
        for i, z in zip(accepted.tolist(), answers, strict=True):
            if (place := int(places[i])) >= len(self.store):
                self.store.append(inputs[i : i + 1], targets[i : i + 1], head)
                self.answers = torch.cat([self.answers, z[None]])
            else:
                self.store.replace(place, inputs[i], targets[i], head)
                self.answers[place] = z
