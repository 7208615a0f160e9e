"""A stream of a user under a name, with its network, so that runs and the command line find it as a benchmark."""

from collections.abc import Callable
from dataclasses import replace

from sketchogd.lab.methods.baselines.examples import bytes_of_example
from sketchogd.lab.models import mlp_for
from sketchogd.lab.streams.benchmark import Benchmark, Network
from sketchogd.lab.streams.benchmarks import BENCHMARKS
from sketchogd.lab.streams.tasks import Pair, Recipe, Stream
from sketchogd.lab.streams.transforms import first_of_each
from sketchogd.model.parameters import ProtectedParameters, Selection

Make = Callable[[int], Stream]
"""make(seed): the stream of a run."""


def register_stream(
    name: str,
    *,
    network: Network = mlp_for,
    title: str | None = None,
    protected: Selection = None,
    seeded: bool = False,
) -> Callable[[Make], Make]:
    """Enter a function that makes a stream under a name; it is called once at once, to count tasks and examples.

    Args:
        name: the name on the command line, in configs and in folders of runs.
        network: network(stream, seed); by default the paper's MLP, with the stream's inputs and outputs.
        title: the name in tables and figures; `name` by default.
        protected: which parameters memories protect, None for all.
        seeded: whether the stream depends on the seed of the run.

    Raises:
        ValueError: the name is taken, or has characters that are no good in the name of a folder.
    """
    if name in BENCHMARKS:
        raise ValueError(f"there is a benchmark {name!r} already; give your stream another name")
    if not name.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"a stream's name is made of letters, digits, - and _; got {name!r}")

    def enter(make: Make) -> Make:
        stream = make(0)
        x, y = stream.train(0)
        BENCHMARKS[name] = Benchmark(
            name=name,
            title=title or name,
            dataset=None,
            stream=lambda *, seed, tasks, n_train, n_test: shortened(make(seed), tasks, n_train, n_test),
            network=network,
            parameters=ProtectedParameters(network(stream, 0), protected).p,
            tasks=len(stream),
            examples=len(y),
            example_nbytes=bytes_of_example(x, y),
            protected=protected,
            seeded=seeded,
        )
        return make

    return enter


def shortened(stream: Stream, tasks: int | None, n_train: int | None, n_test: int | None) -> Stream:
    """The first tasks of a stream, with so many examples each, spread evenly over the classes; None for all.

    Raises:
        ValueError: there are fewer tasks. (A task with fewer examples says so when it is built.)
    """
    if tasks is not None and not 1 <= tasks <= len(stream):
        raise ValueError(f"{stream.name} has {len(stream)} tasks; {tasks} are asked for")

    def part(build: Callable[[], Pair], n: int | None) -> Callable[[], Pair]:
        def built() -> Pair:
            x, y = build()
            kept = first_of_each(y, n)
            return x[kept], y[kept]

        return build if n is None else built

    recipes: list[Recipe] = [
        replace(recipe, train=part(recipe.train, n_train), test=part(recipe.test, n_test)) for recipe in stream.recipes
    ]
    return Stream(stream.name, recipes[:tasks])
