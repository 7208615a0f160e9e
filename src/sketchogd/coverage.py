"""Coverage: how each parameter of a model is protected, and whether anything was remembered of it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Covered:
    """A parameter, by what it is protected, and whether the examples observed depend on it."""

    tensor: Tensor
    how: str
    seen: bool


@dataclass(frozen=True)
class Row:
    """One parameter or buffer of the model."""

    name: str
    shape: tuple[int, ...]
    how: str


@dataclass(frozen=True)
class Coverage:
    """Every parameter and buffer of a model with how it is protected. Prints as a table."""

    rows: tuple[Row, ...]

    @staticmethod
    def of(model: nn.Module, protected: Iterable[Tensor], covered: Iterable[Covered], examples: int) -> "Coverage":
        """The coverage of a model.

        Args:
            model: the model.
            protected: the parameters that were chosen.
            covered: what the memory says of them.
            examples: how many examples were observed.
        """
        chosen = {id(t) for t in protected}
        found: dict[int, list[Covered]] = {}
        for each in covered:
            found.setdefault(id(each.tensor), []).append(each)
        rows = []
        for name, parameter in model.named_parameters():
            entries = found.get(id(parameter), [])
            if id(parameter) not in chosen:
                how = "not protected: " + ("not chosen" if parameter.requires_grad else "requires no gradient")
            elif not entries:
                how = "not protected: no memory has a place for it"
            else:
                how = "; ".join(dict.fromkeys(each.how for each in entries))
                if examples and not any(each.seen for each in entries):
                    how = f"free so far: nothing observed depends on it ({how})"
            rows.append(Row(name, tuple(parameter.shape), how))
        return Coverage(tuple(rows))

    def with_buffers(self, buffers: Iterable[tuple[str, tuple[int, ...], str]]) -> "Coverage":
        """The same with buffers, (name, shape, how each is protected), after the parameters."""
        return Coverage((*self.rows, *(Row(*buffer) for buffer in buffers)))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [("parameter or buffer", "shape", "how it is protected")]
        cells += [(row.name, " × ".join(map(str, row.shape)), row.how) for row in self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(lines)
