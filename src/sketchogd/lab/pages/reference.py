"""Published accuracies that a report shows beside those of the runs: the interface, and the reference that has none."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sketchogd.lab.records.metrics import Spread


@dataclass(frozen=True)
class Comparison:
    """What a reference says about the mean accuracy of some runs; the last columns of a row of the report's table.

    Args:
        published: the published mean accuracy, None if there is none.
        published_std: its standard deviation over seeds.
        published_table: the name of the table that has it, a key of `Reference.tables`.
        shortened: how the runs depart from the published protocol, in words; empty if they follow it.
        difference: ours minus published; None without a published value, or if the runs depart from the protocol.
        outside: whether the difference is larger than the deviations explain; None where `difference` is.
    """

    published: float | None = None
    published_std: float | None = None
    published_table: str | None = None
    shortened: str | None = None
    difference: float | None = None
    outside: bool | None = None


class Reference(ABC):
    """Published results to compare runs with.

    Attributes:
        source: what runs are shown beside, in words: "the values published in …"; empty for nothing.
        tables: the titles of its tables by name, the usual one first.
    """

    source: ClassVar[str]
    tables: ClassVar[Mapping[str, str]]

    @abstractmethod
    def compare(
        self, benchmark: str, method: str, config: Mapping[str, Any], tasks: int, accuracy: Spread
    ) -> Comparison:
        """Compare the runs of one config on one benchmark.

        Args:
            benchmark: the benchmark's name.
            method: the method's name.
            config: the config of the runs, as run.json has it.
            tasks: number of tasks of the runs.
            accuracy: their average accuracy, over seeds.
        """


class NoReference(Reference):
    """Nothing is published: every value of a comparison is None."""

    source = ""
    tables: ClassVar[Mapping[str, str]] = {}

    def compare(
        self, benchmark: str, method: str, config: Mapping[str, Any], tasks: int, accuracy: Spread
    ) -> Comparison:
        """A comparison without values."""
        return Comparison()


NO_REFERENCE = NoReference()
