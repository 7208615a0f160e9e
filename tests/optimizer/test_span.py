"""An anchor by its coordinates: the same pull as with all weights, within the directions that were remembered."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import sketchogd as so
from sketchogd.optimizer.reference import ROUNDED, Copy, copies_nbytes
from sketchogd.projector import rules
from sketchogd.projector.base import Anchor
from sketchogd.projector.span import Span

SPAN = Anchor("span")


class Words(nn.Module):
    """Tokens, a layer with a bias, one without, a norm; the Conv1D of transformers stands on its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up = nn.Embedding(20, 12), nn.Linear(12, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(torch.tanh(self.up(self.embed(x)))).mean(1))


def batch(seed: int, b: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 20, (b, 5), generator=generator)
    return x, (x.sum(1) + seed) % 3


def trained(memory: so.LayerMemory, optimizer: str, every: int, steps: int = 40) -> tuple[so.Protection, nn.Module]:
    torch.manual_seed(0)
    model = Words()
    kinds = {"adam": lambda p: torch.optim.Adam(p, 1e-2), "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)}
    opt = kinds[optimizer](model.parameters())
    protection = so.protect(model, opt, memory=memory, every=every)
    for task in range(2):
        x, y = batch(task)
        for _ in range(steps):
            opt.zero_grad()
            cross_entropy(model(x), y).backward()
            opt.step()
        protection.settle()
        if task == 0:
            protection.remember([(x, y)])
    return protection, model


def distance(a: nn.Module, b: nn.Module) -> float:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return float(sum((x - y).detach().square().sum() for x, y in pairs)) ** 0.5


@pytest.mark.parametrize("bias", [None, 0.0, 0.6, 1.0])
@pytest.mark.parametrize("transposed", [False, True])
def test_within_is_the_orthogonal_projection_on_the_directions(bias: float | None, transposed: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    B = torch.linalg.qr(torch.randn(8, 3, generator=generator))[0].T
    b = None
    if bias is not None:
        axis = torch.tensor([0.6, 0.0, 0.8])
        V = B + ((1 - bias**2) ** 0.5 - 1) * torch.outer(axis, axis @ B)  # so that the rows [V b] are orthonormal
        B, b = V, bias * axis
        assert torch.allclose(B @ B.T + torch.outer(b, b), torch.eye(3), atol=1e-6)
    span, t = Span(B, b, transposed), torch.randn(8, 5) if transposed else torch.randn(5, 8)
    found = span.within(span.coordinates(t), t.shape)
    basis = torch.linalg.svd(B.double(), full_matrices=False)
    rows = basis.Vh[basis.S > 1e-5]
    expected = (rows.T @ (rows @ t.double())) if transposed else (t.double() @ rows.T) @ rows
    assert torch.allclose(found.double(), expected, atol=1e-5)


@pytest.mark.parametrize(("optimizer", "every"), [("sgd", 1), ("sgd", 5), ("adam", 1), ("adam", 5)])
@pytest.mark.parametrize("few", [0, 1024])
def test_the_pull_is_that_of_a_whole_anchor_within_the_directions(
    optimizer: str, every: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole anchor, with nothing pulled outside of the directions, leads to the same weights up to rounding."""
    monkeypatch.setattr("sketchogd.model.layers.FEW", few)
    rank = 6
    _, found = trained(so.LayerMemory(rank, strength=50.0, anchor_dtype="span", rest=64), optimizer, every)
    honest = rules.Pull.on_layer

    def inside(rule: rules.Pull, spectra: object, weight: float) -> object:
        return honest(rules.replace(rule, anchor_dtype="span"), spectra, weight)

    monkeypatch.setattr(rules.Pull, "on_layer", inside)
    _, expected = trained(so.LayerMemory(rank, strength=50.0, rest=64), optimizer, every)
    monkeypatch.undo()
    _, free = trained(so.LayerMemory(rank, strength=1e-9, rest=64), optimizer, every)
    assert distance(found, expected) < 0.05 * distance(free, expected)


def copies_of(protection: so.Protection) -> int:
    return sum(entry.nbytes for entry in protection.ledger() if entry.name.startswith(("reference", "corr", "mean")))


@pytest.mark.parametrize("few", [0, 1024])
def test_only_coordinates_are_kept_and_the_ledger_says_so(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sketchogd.model.layers.FEW", few)
    torch.manual_seed(0)
    model = Words()
    opt = torch.optim.Adam(model.parameters(), 1e-2)
    protection = so.protect(model, opt, memory=so.LayerMemory(4, anchor_dtype="span"), every=5)
    planned = copies_of(protection)
    x, y = batch(0)
    protection.remember([(x, y)])
    for _ in range(10):
        opt.zero_grad()
        cross_entropy(model(x), y).backward()
        opt.step()
    kept = {entry.name: entry for entry in protection.ledger()}
    assert copies_of(protection) == planned
    assert kept["reference.up.weight"].shape == (16, 4)
    assert kept["reference.up.weight"].dtype == "float16"
    assert kept["reference.embed.weight"].shape == (20, 4)
    assert kept["reference.norm.weight"].shape == (16,)
    assert kept["correction.up.weight"].dtype == "int8"


def test_old_outputs_stay_as_with_a_whole_anchor() -> None:
    changes = {}
    for anchor in ("span", None):
        protection, _ = trained(so.LayerMemory(16, strength=100.0, anchor_dtype=anchor, rest=64), "adam", 5)
        changes[anchor] = protection.forgetting()
    assert changes["span"] is not None
    assert changes["span"] == pytest.approx(changes[None], rel=0.3)


def test_observing_refreshing_saving_and_loading_keep_the_anchor(tmp_path: object) -> None:
    memory = so.LayerMemory(8, strength=100.0, anchor_dtype="span", rest=64)
    protection, model = trained(memory, "adam", 5)
    before = protection.forgetting()
    assert before is not None
    assert before > 0
    protection.refresh()
    assert protection.forgetting() == pytest.approx(before, rel=1e-2)
    path = f"{tmp_path}/memory.safetensors"
    protection.save(path)
    torch.manual_seed(0)
    copy = Words()
    copy.load_state_dict(model.state_dict())
    other = so.protect(
        copy,
        torch.optim.Adam(copy.parameters(), 1e-2),
        memory=so.LayerMemory(8, strength=100.0, anchor_dtype="span", rest=64),
        every=5,
    )
    other.load(path)
    assert other.forgetting() == pytest.approx(protection.forgetting(), rel=1e-6)


@pytest.mark.parametrize(("optimizer", "rank"), [("adam", 12), ("sgd", 17)])
@pytest.mark.parametrize("refused", [False, True])
def test_what_is_observed_later_keeps_the_old_pull(refused: bool, optimizer: str, rank: int) -> None:
    """Old directions are overwritten by new ones; the pull to the old anchor goes on as with a whole anchor.

    With SGD, whose steps are larger, at a rank that has all directions: outside of them nothing is pulled.
    """
    changes = {}
    for anchor in ("span", None):
        protection, model = trained(so.LayerMemory(rank, strength=300.0, anchor_dtype=anchor, rest=64), optimizer, 5)
        (old, _), (x, y), steps = batch(0), batch(1), protection._projection.optimizer
        assert steps is not None
        with torch.no_grad():
            start = model(old)
        if refused:
            with pytest.raises(ValueError, match="targets"):
                protection.observe(x, y[:-1])
        else:
            protection.observe(x, y)
        for _ in range(30):
            steps.zero_grad()
            cross_entropy(model(x), y).backward()
            steps.step()
        with torch.no_grad():
            changes[anchor] = float((model(old) - start).norm() / start.norm())
    assert changes["span"] < 1.25 * changes[None] + 0.02


def test_a_model_that_grows_keeps_its_anchor() -> None:
    protection, model = trained(so.LayerMemory(8, strength=100.0, anchor_dtype="span", rest=64), "adam", 5)
    before = protection.forgetting()
    head = nn.Linear(16, 5, bias=False)
    with torch.no_grad():
        head.weight[:3] = model.head.weight
    model.head = head
    protection.adopt(model, torch.optim.Adam(model.parameters(), 1e-2))
    assert protection.forgetting() == pytest.approx(before, rel=0.05)


def test_bytes_of_copies() -> None:
    t = torch.randn(6, 10)
    span = Span(torch.eye(10)[:3])
    for form, each in ((SPAN, span), (ROUNDED, span), (ROUNDED, None), (Anchor(), None)):
        parts = [part for _, part in Copy.of(t, form, each).parts()]
        assert copies_nbytes([t], form, [each]) == sum(part.numel() * part.element_size() for part in parts)


def test_gradient_memories_refuse_it() -> None:
    with pytest.raises(ValueError, match="span"):
        so.GradientMemory(so.ProductSketch(4), rule=so.Pull(2.0, anchor_dtype="span"))


def test_directions_that_were_overwritten_and_come_back_leave_the_anchor_where_it_was() -> None:
    """As after a batch whose commit broke off: the projector is outdated, and computed anew for the same examples."""
    protection, _ = trained(so.LayerMemory(8, strength=20.0, anchor_dtype="span", rest=64), "adam", 5)
    before, shapes, far = protection.forgetting(), shapes_of(protection), protection._projection.displacement
    protection._outdate()
    for _, sketch in protection.memory.sketches():
        sketch.summand()  # the sums stand where the directions were
    assert protection._projection.displacement == pytest.approx(far, rel=1e-2)
    assert protection.forgetting() == pytest.approx(before, rel=1e-2)
    assert shapes_of(protection) == shapes


def shapes_of(protection: so.Protection) -> dict[str, tuple[int, ...]]:
    return {entry.name: entry.shape for entry in protection.ledger() if entry.name.startswith("reference")}


@pytest.mark.parametrize("anchor", ["span", "int8", None])
def test_a_file_that_is_saved_after_an_observe_has_the_old_pull(anchor: str | None, tmp_path: object) -> None:
    def memory() -> so.LayerMemory:
        return so.LayerMemory(16, strength=20.0, anchor_dtype=anchor, rest=64)

    protection, model = trained(memory(), "adam", 5)
    protection.observe(*batch(1))
    protection.save(f"{tmp_path}/memory.safetensors")
    before = protection.forgetting()
    assert before is not None
    assert before > 0.01
    copy = Words()
    copy.load_state_dict(model.state_dict())
    other = so.protect(copy, torch.optim.Adam(copy.parameters(), 1e-2), memory=memory(), every=5)
    other.load(f"{tmp_path}/memory.safetensors")
    assert other.forgetting() == pytest.approx(before, rel=1e-3)
