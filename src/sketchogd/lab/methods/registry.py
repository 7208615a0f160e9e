"""What a method of the lab is: its settings as a frozen dataclass, and the registry of builders.

`method("sketchogd", budget=2_000_000)` gives the settings, complete and plain enough to be written as JSON.
`build(method, setup)` gives a `Baseline`, the object whose hooks the training loop calls. `register` adds a method of
one's own. The methods themselves are in `methods`. Letters: p protected parameters, T tasks.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

import sketchogd as so
from sketchogd.lab.methods.learner import Baseline, Loss
from sketchogd.model.parameters import Selection

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Method:
    """The settings of a method; made by `method`, which checks them and fills in the defaults.

    every: optimizer steps between two projections. examples: how many of a task are remembered, None for all.
    budget: bytes from which the method's size follows, None where the options give it. options: the rest, by name.
    """

    name: str
    every: int = 1
    examples: int | None = None
    budget: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name and whatever is not as usual: "layer-sketch,budget=2000000". Fit to be a folder's name."""
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
    """What a method is built on: the model and its optimizer, what it may use of them, and the stream's size.

    protected: which parameters memories protect. loss: mean loss of a batch of one head. tasks: T.
    example_nbytes: what one raw example costs to keep. group, own: with several processes, who they are, and which of
    the examples of a task this one remembers.
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

    def count(self) -> int:
        """p."""
        return so.ProtectedParameters(self.model, self.protected).p


Builder = Callable[[Method, Setup], Baseline]


@dataclass(frozen=True)
class Kind:
    """A method's entry in the registry: one line about it, its usual settings, and how it is built."""

    summary: str
    build: Builder
    every: int
    examples: int | None
    options: Mapping[str, Any]
    sizes: tuple[str, ...]
    later: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    style: int | None = None
    keeps_examples: bool = False


KINDS: dict[str, Kind] = {}
"""Every method by its name."""


def register(
    name: str,
    summary: str,
    *,
    every: int = 50,
    examples: int | None = None,
    sizes: Iterable[str] = (),
    later: Mapping[str, Any] | None = None,
    title: str = "",
    style: int | None = None,
    keeps_examples: bool = False,
    **options: Any,
) -> Callable[[Builder], Builder]:
    """Enter a builder under a name. `sizes` are the options that a budget determines instead.

    `later`: options that came after runs were stored. Settings have them only where they are not as usual, so that
    configs and digests of the stored runs stay what they are.
    """

    def enter(builder: Builder) -> Builder:
        chosen = (every, examples, options, tuple(sizes), later or {})
        KINDS[name] = Kind(summary, builder, *chosen, title, style, keeps_examples)
        return builder

    return enter


LISTED = (
    *("sgd", "ogd", "random-ogd", "pca-ogd", "sketchogd-1", "sketchogd-2", "sketchogd-3", "sketchogd"),
    *("sketchogd-blocks", "sketchogd-pull", "gradient-ogd", "layer-sketch", "gpm", "fd-ogd", "ipca-ogd"),
    *("ewc", "si", "a-gem", "replay"),
)


def title(name: str) -> str:
    """The title of a method in tables and figures; the name itself for an unknown method."""
    return (KINDS[name].title if name in KINDS else "") or name


def style(name: str) -> int | None:
    """The number of the method's colour, dash and marker in figures; None where it has none of its own."""
    return KINDS[name].style if name in KINDS else None


def keeps_examples(name: str) -> bool:
    """Whether a method keeps training examples of earlier tasks."""
    return name in KINDS and KINDS[name].keeps_examples


def listed() -> list[str]:
    """The names of all methods in the order in which tables list them; those without a place come last, by name."""
    return [*(name for name in LISTED if name in KINDS), *sorted(KINDS.keys() - set(LISTED))]


def method(
    name: str, *, every: int | None = None, examples: int | None = None, budget: int | None = None, **options: Any
) -> Method:
    """The settings of a method, the usual ones where nothing is said.

    Raises:
        ValueError: unknown name or option (the nearest right ones are named), or a budget beside a size.

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


def build(settings: Method, setup: Setup) -> Baseline:
    """The object that training works with."""
    return KINDS[settings.name].build(settings, setup)


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """The text of an error about a name: the nearest right ones, and all of them.

    >>> unknown("method", "sketchodg", ["sgd", "sketchogd"])
    "unknown method 'sketchodg'; did you mean sketchogd? There are: sgd, sketchogd"
    """
    names = list(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"unknown {what} {word!r}; {hint}There are: {', '.join(names) or 'none'}"
