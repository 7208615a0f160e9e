"""What a method of the lab is: its settings as a frozen dataclass, and the registry of all methods.

`method("sketchogd", budget=2_000_000)` gives the settings, complete and plain enough to be written as JSON.
`build(method, setup)` gives a `Learner`, the object whose hooks the training loop calls. `register` adds a method of
your own. Letters: p protected parameters, T tasks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

import sketchogd as so
from sketchogd.lab.methods.learner import Learner, Logits, Loss
from sketchogd.lab.names import unknown
from sketchogd.lab.streams.encodings import AS_GIVEN, Encoding
from sketchogd.model.batches import logits_of
from sketchogd.model.parameters import Selection
from sketchogd.seeds import derive_seed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Method:
    """The settings of a method; made by `method`, which checks them and fills in the defaults.

    Args:
        name: a key of `KINDS`.
        every: optimizer steps between two projections.
        examples: how many examples of each task are remembered; None for all.
        budget: bytes that determine the method's size; None where the options determine it.
        options: the other settings, by name.
    """

    name: str
    every: int = 1
    examples: int | None = None
    budget: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name and the settings that differ from the defaults: "layer-sketch,budget=2000000"; a folder name."""
        usual = method(self.name, budget=self.budget)
        changed = {
            key: getattr(self, key) for key in ("every", "examples") if getattr(self, key) != getattr(usual, key)
        }
        changed |= {key: value for key, value in self.options.items() if usual.options.get(key) != value}
        if self.budget is not None:
            changed["budget"] = self.budget
        return ",".join([self.name, *(f"{key}={value}" for key, value in changed.items())])


@dataclass(frozen=True)
class Setup:
    """What a learner is built on: the model, its optimizer, and facts about the stream.

    Args:
        model: the model that is trained.
        optimizer: its optimizer.
        loss: mean loss of a batch of one head.
        tasks: T.
        example_nbytes: bytes to keep one raw example.
        protected: which parameters memories protect.
        seed: every random choice of the learner follows from it.
        group: the processes that work on the run together; None for one.
        own: which examples of a task this process remembers.
        logits: the logits of a batch through a head; by default those of the model, whatever the head.
        encoding: the lossless form in which examples of the stream take fewest bytes.
        encoded_nbytes: bytes to keep one example in that form.
        classes: outputs of a head.
        rows: examples that go through the model at once when a task is remembered; None for the method's own number.
    """

    model: nn.Module
    optimizer: Optimizer
    loss: Loss
    tasks: int
    example_nbytes: int
    protected: Selection = None
    seed: int = 0
    group: "ProcessGroup | None" = None
    own: slice = field(default_factory=lambda: slice(None))
    logits: Logits | None = None
    encoding: Encoding = AS_GIVEN
    encoded_nbytes: int = 0
    classes: int = 0
    rows: int | None = None

    @property
    def answers(self) -> Logits:
        """`logits`, or for a model with one head its own."""
        if self.logits is not None:
            return self.logits
        return lambda x, head, answer: logits_of((answer or self.model)(x))

    @property
    def parameters(self) -> so.ProtectedParameters:
        """The parameters that memories protect."""
        return so.ProtectedParameters(self.model, self.protected)

    def seed_of(self, name: str) -> int:
        """The seed of the method of this name."""
        return derive_seed(self.seed, "method", name)


Builder = Callable[[Method, Setup], Learner]


@dataclass(frozen=True)
class Kind:
    """A method's entry in the registry; see `register` for the fields."""

    summary: str
    build: Builder
    title: str
    style: int | None
    keeps_examples: bool
    alone: bool
    every: int
    examples: int | None
    options: Mapping[str, Any]
    sizes: tuple[str, ...]
    later: Mapping[str, Any]


KINDS: dict[str, Kind] = {}
"""Every method by its name, in the order of registration."""

FIRST = (
    *("sgd", "ogd", "random-ogd", "pca-ogd", "sketchogd-1", "sketchogd-2", "sketchogd-3", "sketchogd"),
    *("sketchogd-blocks", "sketchogd-pull", "protect", "gradient-ogd", "layer-memory", "layer-sketch", "gpm"),
    *("fd-ogd", "ipca-ogd", "gpm-published", "sgp", "owm", "orfit", "ewc", "si", "laplace", "l2", "averaging", "lwf"),
    *("a-gem", "replay", "der"),
)
"""The methods that tables list first, in their order there. The order of `KINDS` is that of runs, and differs."""


def register(
    name: str,
    summary: str,
    *,
    title: str | None = None,
    style: int | None = None,
    keeps_examples: bool = False,
    alone: bool = False,
    every: int = 50,
    examples: int | None = None,
    sizes: Iterable[str] = (),
    later: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Builder], Builder]:
    """Enter a builder in the registry under a name.

    Args:
        name: the name that `method` knows it by.
        summary: one line about the method.
        title: the name in tables and figures; `name` by default.
        style: the number of its colour, dash and marker in figures; None where it takes a free one.
        keeps_examples: whether it keeps raw training examples of old tasks.
        alone: whether its steps depend on the host, so that no runs are trained side by side with it.
        every: default of `Method.every`; 1 for methods that do not project displacements.
        examples: default of `Method.examples`.
        sizes: the options that a budget determines instead.
        later: options added after results were recorded; omitted from the config when at their default, so that
            digests stay valid.
        options: the other options and their defaults.
    """

    def enter(builder: Builder) -> Builder:
        shown = (title or name, style, keeps_examples, alone)
        KINDS[name] = Kind(summary, builder, *shown, every, examples, options, tuple(sizes), later or {})
        return builder

    return enter


def title(name: str) -> str:
    """The name of a method in tables and figures; an unknown method's own name."""
    return KINDS[name].title if name in KINDS else name


def style(name: str) -> int | None:
    """The number of a method's style in figures; None for a method without one of its own."""
    return KINDS[name].style if name in KINDS else None


def keeps_examples(name: str) -> bool:
    """Whether a method is known to keep raw training examples of old tasks."""
    return name in KINDS and KINDS[name].keeps_examples


def listed() -> list[str]:
    """The names of all methods in the order in which tables list them: `FIRST`, then the others by name."""
    return [*(name for name in FIRST if name in KINDS), *sorted(KINDS.keys() - set(FIRST))]


def method(
    name: str, *, every: int | None = None, examples: int | None = None, budget: int | None = None, **options: Any
) -> Method:
    """The settings of a method: its defaults, with the given ones in their place.

    Args:
        name: a key of `KINDS`.
        every: optimizer steps between two projections.
        examples: how many examples of each task are remembered.
        budget: bytes that determine the method's size.
        options: the method's own options.

    Raises:
        ValueError: an unknown name or option (the message names the closest known ones), or both a budget and a size.

    >>> from sketchogd.lab import methods  # fills the registry
    >>> methods.method("sketchogd-1", budget=2_000_000)
    Method(name='sketchogd-1', every=50, examples=None, budget=2000000, options={})
    """
    kind = KINDS.get(name)
    if kind is None:
        raise ValueError(unknown("method", name, KINDS))
    for key in options:
        if key not in kind.options and key not in kind.later:
            raise ValueError(unknown(f"option of {name}", key, [*kind.options, *kind.later]))
    doubled = [key for key in kind.sizes if key in options]
    if budget is not None and doubled:
        raise ValueError(f"{name}: a budget determines {doubled[0]}; give one of the two")
    unusual = {key: value for key, value in options.items() if key not in kind.later or value != kind.later[key]}
    chosen = {**kind.options, **unusual}
    if budget is not None:
        chosen = {key: value for key, value in chosen.items() if key not in kind.sizes}
    return Method(
        name,
        kind.every if every is None else every,
        kind.examples if examples is None else examples,
        budget,
        chosen,
    )


def build(settings: Method, setup: Setup) -> Learner:
    """The learner of a method: the object whose hooks the training loop calls.

    Raises ValueError where it keeps more than the method's budget from the start.
    """
    learner = KINDS[settings.name].build(settings, setup)
    require_within_budget(settings, learner)
    return learner


def require_within_budget(settings: Method, learner: Learner) -> None:
    """Raise ValueError if a learner keeps more bytes than the method's budget, sketches offloaded to the host aside."""
    if settings.budget is None:
        return
    offloaded = "sketch." if settings.options.get("offload") else None
    kept = sum(t.nbytes for name, t in learner.tensors().items() if offloaded is None or not name.startswith(offloaded))
    if kept > settings.budget:
        raise ValueError(
            f"{settings.name} keeps {kept:,} bytes, more than its budget of {settings.budget:,}. Its builder must "
            "choose its size from settings.budget, or refuse one with a ValueError; or run it without a budget"
        )
