"""A measurement of speed: the ratio of two things measured in the same process, beside its target."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """What was measured, its value, and the target that it must reach (`at_least`) or stay below, if it has one.

    >>> Ratio("remembering", 0.9, 0.8, unit_note="of the GEMM rate").met
    True
    >>> Ratio("basis", 1.2, 1.0, at_least=False, unit_note="x the time of torch.linalg.qr").met
    False
    >>> Ratio("basis", 1.2, None).met is None
    True
    """

    name: str
    value: float
    target: float | None
    at_least: bool = True
    unit_note: str = ""

    @staticmethod
    def failed(name: str, error: Exception) -> "Ratio":
        """A measurement that raised an error.

        >>> Ratio.failed("basis", ValueError("too long")).unit_note
        'failed: ValueError: too long'
        """
        reason = str(error).splitlines()[0][:200] if str(error) else ""
        return Ratio(name, float("nan"), float("nan"), unit_note=f"failed: {type(error).__name__}: {reason}")

    @property
    def met(self) -> bool | None:
        """Whether the value is on the right side of the target; NaN, a measurement that failed, is not.

        None where there is no target.
        """
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    @property
    def wanted(self) -> str:
        """The target as text; a dash where there is none.

        >>> Ratio("basis", 1.2, 1.0, at_least=False).wanted, Ratio("basis", 1.2, None).wanted
        ('≤ 1', '–')
        """
        return "–" if self.target is None else f"{'≥' if self.at_least else '≤'} {self.target:g}"

    def as_dict(self) -> dict[str, Any]:
        """The fields and `met`, for JSON, which has no NaN."""
        fields = {name: None if value != value else value for name, value in asdict(self).items()}
        return {**fields, "met": self.met}
