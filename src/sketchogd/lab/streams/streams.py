"""Streams of tasks: rotated, permuted, split, or a user's own; and a stream without boundaries.

Each function takes labelled images and returns a `Stream`, whose tasks are built when asked for, so ten rotated copies
of a data set are never in memory at once. The named benchmarks are in `benchmarks`. `T` tasks.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import torch

from sketchogd.lab.data.datasets import LabelledImages
from sketchogd.lab.streams.tasks import Pair, Recipe, Stream, Task
from sketchogd.lab.streams.transforms import Inputs, first_of_each, inputs_for, permute_pixels, rotate

__all__ = [
    "Stream",
    "Task",
    "drifting",
    "from_datasets",
    "held_out",
    "permuted",
    "rotated",
    "split",
    "validation",
]


def rotated(
    images: LabelledImages,
    tasks: int = 10,
    degrees: float = 5.0,
    *,
    n_train: int | None = None,
    n_test: int | None = None,
    inputs: Inputs | None = None,
) -> Stream:
    """Task t shows the images rotated counter-clockwise by t · degrees, t = 0 … tasks − 1; one head, same labels.

    Images are padded, rotated by nearest neighbour with zeros outside, then normalised.

    Args:
        images: the labelled images that all tasks share.
        tasks: T.
        degrees: angle between two consecutive tasks.
        n_train: training examples per task, spread evenly over the classes; None for all.
        n_test: test examples per task, likewise.
        inputs: padding and normalisation, by default `inputs_for(images)`.
    """
    return _transformed(
        f"rotated-{images.name}",
        images,
        [(f"rotated {t * degrees:g}°", _rotation(t * degrees)) for t in range(_positive("tasks", tasks))],
        inputs or inputs_for(images),
        n_train,
        n_test,
    )


def permuted(
    images: LabelledImages,
    tasks: int = 10,
    seed: int = 0,
    *,
    n_train: int | None = None,
    n_test: int | None = None,
    inputs: Inputs | None = None,
    released: bool = False,
) -> Stream:
    """Task 0 shows the images as they are, task t > 0 with their pixels in the t-th permutation; one head, same labels.

    Images are padded first, so that the padding is permuted as well.

    Args:
        images: the labelled images that all tasks share.
        tasks: T. The permutations of the first tasks do not depend on it.
        seed: what the permutations are drawn from.
        n_train: training examples per task, spread evenly over the classes; None for all.
        n_test: test examples per task, likewise.
        inputs: padding and normalisation, by default `inputs_for(images)`.
        released: use the permutations that the paper's released code draws for its seed `seed` + 1 (it counts from 1).
    """
    chosen = inputs or inputs_for(images)
    pixels = chosen.padded(images.x_train[:1])[0, 0].numel()
    if released:
        orders = _released_orders(pixels, _positive("tasks", tasks) - 1, seed + 1)
    else:
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(pixels, generator=generator) for _ in range(_positive("tasks", tasks) - 1)]
    changes = [("unpermuted", _rotation(0.0))]
    changes += [(f"permutation {t}", _permutation(order)) for t, order in enumerate(orders, start=1)]
    return _transformed(f"permuted-{images.name}", images, changes, chosen, n_train, n_test)


def split(
    images: LabelledImages,
    classes_per_task: int,
    relabel: bool = True,
    *,
    own_heads: bool = False,
    tasks: int | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
    inputs: Inputs | None = None,
) -> Stream:
    """Task t has the classes t·c … t·c + c − 1, c = classes_per_task, in label order.

    Args:
        images: the labelled images to split.
        classes_per_task: c.
        relabel: rename the classes of each task to 0 … c − 1; otherwise labels stay and every task has all classes.
        own_heads: task t has head t; otherwise all tasks share head 0.
        tasks: how many of the tasks to keep, the first ones; None for all.
        n_train: training examples per task, spread evenly over the classes; None for all.
        n_test: test examples per task, likewise.
        inputs: padding and normalisation, by default `inputs_for(images)`.

    Raises:
        ValueError: c does not divide the number of classes, or there are not so many tasks.
    """
    c = _positive("classes_per_task", classes_per_task)
    most = images.classes // c
    if images.classes % c or not 1 <= (most if tasks is None else tasks) <= most:
        raise ValueError(f"{images.classes} classes give at most {most} tasks of {c}, and {c} must divide them")
    chosen = inputs or inputs_for(images)

    def half(x: torch.Tensor, y: torch.Tensor, n: int | None, first: int) -> Callable[[], Pair]:
        members = ((y >= first) & (y < first + c)).nonzero().flatten()
        kept = members[first_of_each(y[members], n)]
        return lambda: (chosen.normalised(chosen.padded(x[kept])), y[kept] - first if relabel else y[kept])

    recipes = [
        Recipe(
            name=f"classes {t * c}–{t * c + c - 1}",
            classes=c if relabel else images.classes,
            head=t if own_heads else 0,
            train=half(images.x_train, images.y_train, n_train, t * c),
            test=half(images.x_test, images.y_test, n_test, t * c),
        )
        for t in range(most if tasks is None else tasks)
    ]
    return Stream(f"split-{images.name}", recipes, chosen.encoding)


def from_datasets(items: Sequence[Task | LabelledImages], *, own_heads: bool = False, name: str = "own") -> Stream:
    """A stream from a list of your own: tasks as they are, image sets normalised with their own constants.

    With `own_heads`, item t has head t; otherwise tasks keep their heads and image sets get head 0.
    """

    def recipe(t: int, item: Task | LabelledImages) -> Recipe:
        head = t if own_heads else item.head if isinstance(item, Task) else 0
        if isinstance(item, Task):
            return Recipe(
                item.name, item.classes, head, lambda: (item.x_train, item.y_train), lambda: (item.x_test, item.y_test)
            )
        whole = _transformed(item.name, item, [(item.name, _rotation(0.0))], inputs_for(item), None, None).recipes[0]
        return Recipe(item.name, item.classes, head, whole.train, whole.test)

    return Stream(name, [recipe(t, item) for t, item in enumerate(items)])


def validation(stream: Stream, share: float) -> Stream:
    """The stream for tuning: the last `share` of each class of each task's training data replaces its test data.

    The test data is never seen. At least one example per class is held out, and at least one is trained on.

    Raises:
        ValueError: the share is not between 0 and 1, or a class of a task has a single example.
    """
    if not 0 < share < 1:
        raise ValueError(f"validation is the share of the training data that is held out, in (0, 1); got {share}")

    def part(recipe: Recipe, held: bool) -> Callable[[], Pair]:
        def make() -> Pair:
            x, y = recipe.train()
            kept = held_out(y, share)
            return (x[kept], y[kept]) if held else (x[~kept], y[~kept])

        return make

    recipes = [Recipe(r.name, r.classes, r.head, part(r, held=False), part(r, held=True)) for r in stream.recipes]
    return Stream(stream.name, recipes, stream.encoding)


def held_out(labels: torch.Tensor, share: float) -> torch.Tensor:
    """Mask (n,) of the examples to hold out: the last round(share · n_c), at least one, of each class c.

    >>> held_out(torch.tensor([0, 1, 0, 1, 0, 0]), 0.25).tolist()
    [False, False, False, True, False, True]
    """
    kept = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        if len(members) < 2:
            raise ValueError(f"class {int(label)} has one example, which cannot be both trained on and held out")
        count = min(max(1, round(share * len(members))), len(members) - 1)
        kept[members[-count:]] = True
    return kept


def drifting(stream: Stream, steps: int, batch: int = 10, seed: int = 0) -> Iterator[Pair]:
    """Batches whose distribution drifts from the first task of `stream` to its last, without task boundaries.

    At step s the position is u = (T − 1) s / (steps − 1); each example comes from task ⌊u⌋ + 1 with probability u − ⌊u⌋
    and otherwise from task ⌊u⌋, drawn with replacement. Two tasks are in memory at a time. Yields (inputs, labels).

    Raises:
        ValueError: no steps, an empty stream or batch, or tasks with different heads, which a drift cannot mix.
    """
    if min(steps, batch, len(stream)) < 1 or len({recipe.head for recipe in stream.recipes}) > 1:
        raise ValueError(
            "a drift needs at least one step, one example per batch, one task, and tasks that share one head"
        )
    return _drift(stream, steps, batch, torch.Generator().manual_seed(seed))


def _drift(stream: Stream, steps: int, batch: int, generator: torch.Generator) -> Iterator[Pair]:
    held: dict[int, Pair] = {}
    for step in range(steps):
        position = (len(stream) - 1) * step / max(steps - 1, 1)
        low = int(position)
        near = (low, min(low + 1, len(stream) - 1))
        held = {t: held[t] if t in held else stream.train(t) for t in near}
        late = torch.rand(batch, generator=generator) < position - low
        picks = torch.rand(batch, generator=generator, dtype=torch.float64)
        chosen = [held[near[int(is_late)]] for is_late in late]
        rows = [int(pick * len(y)) for pick, (_, y) in zip(picks.tolist(), chosen, strict=True)]
        yield (
            torch.stack([x[row] for row, (x, _) in zip(rows, chosen, strict=True)]),
            torch.stack([y[row] for row, (_, y) in zip(rows, chosen, strict=True)]),
        )


def _released_orders(pixels: int, count: int, seed: int) -> list[torch.Tensor]:
    """One shuffle per task by Python's generator; the first task's is drawn too, though nothing uses it."""
    shuffles = random.Random(seed)
    drawn = []
    for _ in range(count + 1):
        order = list(range(pixels))
        shuffles.shuffle(order)
        drawn.append(torch.tensor(order))
    return drawn[1:]


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, is {value}")
    return value


def _rotation(degrees: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return (lambda x: rotate(x, degrees)) if degrees % 360.0 else (lambda x: x)


def _permutation(order: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: permute_pixels(x, order)


def _transformed(
    name: str,
    images: LabelledImages,
    changes: Sequence[tuple[str, Callable[[torch.Tensor], torch.Tensor]]],
    inputs: Inputs,
    n_train: int | None,
    n_test: int | None,
) -> Stream:
    """One task per named change of the padded bytes, all with the same examples and labels."""

    def half(x: torch.Tensor, y: torch.Tensor, n: int | None, change: Callable) -> Callable[[], Pair]:
        if n is not None:
            kept = first_of_each(y, n)
            x, y = x[kept], y[kept]
        return lambda: (inputs.normalised(change(inputs.padded(x))), y.clone())

    recipes = [
        Recipe(
            name=title,
            classes=images.classes,
            head=0,
            train=half(images.x_train, images.y_train, n_train, change),
            test=half(images.x_test, images.y_test, n_test, change),
        )
        for title, change in changes
    ]
    return Stream(name, recipes, inputs.encoding)
