"""The benchmarks, one file each, collected by name: adding one is a file here and an entry in `BENCHMARKS`.

* `rotated_mnist`: the same images, turned further in each task
* `permuted_mnist`: the same images, with the pixels in another order in each task
* `split_mnist`: two digits per task
* `split_cifar100`: five classes per task, with a head per task
* `gpm_permuted_mnist`, `gpm_cifar100`, `gpm_superclasses`: as GPM's authors have them
* `resnet_cifar100`, `vit_cifar100`, `efficientnet_cifar100`: ten classes per task, with networks people use
* `minilm_clinc150`, `minilm_lora_clinc150`: a language model on the domains of CLINC150, whole and with LoRA
"""

from pathlib import Path
from typing import Any

from sketchogd.lab.data import datasets
from sketchogd.lab.names import unknown
from sketchogd.lab.streams.benchmark import Benchmark
from sketchogd.lab.streams.benchmarks.efficientnet_cifar100 import EFFICIENTNET_CIFAR100
from sketchogd.lab.streams.benchmarks.gpm_cifar100 import GPM_CIFAR100
from sketchogd.lab.streams.benchmarks.gpm_permuted_mnist import GPM_PERMUTED_MNIST
from sketchogd.lab.streams.benchmarks.gpm_superclasses import GPM_SUPERCLASSES
from sketchogd.lab.streams.benchmarks.minilm_clinc150 import MINILM_CLINC150
from sketchogd.lab.streams.benchmarks.minilm_lora_clinc150 import MINILM_LORA_CLINC150
from sketchogd.lab.streams.benchmarks.permuted_mnist import PERMUTED_MNIST
from sketchogd.lab.streams.benchmarks.resnet_cifar100 import RESNET_CIFAR100
from sketchogd.lab.streams.benchmarks.rotated_mnist import ROTATED_MNIST
from sketchogd.lab.streams.benchmarks.split_cifar100 import SPLIT_CIFAR100
from sketchogd.lab.streams.benchmarks.split_mnist import SPLIT_MNIST
from sketchogd.lab.streams.benchmarks.vit_cifar100 import VIT_CIFAR100
from sketchogd.lab.streams.tasks import Stream

BENCHMARKS: dict[str, Benchmark] = {
    each.name: each
    for each in (
        ROTATED_MNIST,
        PERMUTED_MNIST,
        SPLIT_MNIST,
        SPLIT_CIFAR100,
        GPM_PERMUTED_MNIST,
        GPM_CIFAR100,
        GPM_SUPERCLASSES,
        RESNET_CIFAR100,
        VIT_CIFAR100,
        EFFICIENTNET_CIFAR100,
        MINILM_CLINC150,
        MINILM_LORA_CLINC150,
    )
}
"""Every benchmark by its name, in the order of tables: those of the paper first, in its order."""


def record(name: str) -> Benchmark:
    """The record of the benchmark `name`.

    Raises:
        ValueError: there is no such benchmark; the message names the nearest ones.
    """
    if name not in BENCHMARKS:
        raise ValueError(unknown("benchmark", name, BENCHMARKS))
    return BENCHMARKS[name]


def benchmark(
    name: str,
    data_folder: str | Path | None = None,
    seed: int = 0,
    *,
    tasks: int | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
    **options: Any,
) -> Stream:
    """The stream of the benchmark `name`, one of `BENCHMARKS`; those of MNIST need no files.

    Args:
        name: the benchmark.
        data_folder: where its data set is, see `datasets.load`.
        seed: what a seeded stream is drawn from, such as the permutations of Permuted MNIST; others do not use it.
        tasks: number of tasks, by default the benchmark's own.
        n_train: training examples per task, by default all.
        n_test: test examples per task, by default all.
        options: options of this benchmark: `degrees` between two tasks of Rotated MNIST; `released` for the
            permutations of Permuted MNIST that the paper's released code draws; `per_task`, classes, and `single_head`
            of the networks. None and False count as not given.

    Raises:
        ValueError: unknown name, an option that the benchmark does not take, or sizes that its data cannot give.
        DataError: the data set is missing or damaged.
    """
    chosen = record(name)
    given = {key: value for key, value in options.items() if value is not None and value is not False}
    for key in given:
        if key not in chosen.options:
            taking = [other.name for other in BENCHMARKS.values() if key in other.options]
            raise ValueError(f"{key} is an option of {', '.join(taking) or 'no benchmark'}; {name} has none")
    images = [] if chosen.dataset is None else [datasets.load(chosen.dataset, data_folder)]
    stream = chosen.stream(*images, seed=seed, tasks=tasks, n_train=n_train, n_test=n_test, **given)
    return Stream(name, stream.recipes, stream.encoding)
