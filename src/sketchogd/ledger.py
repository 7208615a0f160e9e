"""The ledger: every tensor that a protection keeps between steps, with its size in bytes and its purpose."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Held:
    """A tensor that a protection keeps, with a name and its purpose."""

    name: str
    purpose: str
    tensor: Tensor

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return self.tensor.numel() * self.tensor.element_size()


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: the description of a tensor, without the tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int
    purpose: str


@dataclass(frozen=True)
class Ledger:
    """Descriptions of all tensors that a protection keeps between steps; `str` formats them as a table."""

    entries: tuple[Entry, ...]

    @staticmethod
    def of(held: Iterator[Held]) -> "Ledger":
        """Build the ledger of these tensors."""
        return Ledger(
            tuple(
                Entry(
                    item.name,
                    tuple(item.tensor.shape),
                    str(item.tensor.dtype).removeprefix("torch."),
                    str(item.tensor.device),
                    item.nbytes,
                    item.purpose,
                )
                for item in held
            )
        )

    @property
    def nbytes(self) -> int:
        """Total size in bytes."""
        return sum(entry.nbytes for entry in self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        rows = [("bytes", "dtype", "device", "shape", "tensor", "purpose")]
        rows += [
            (f"{e.nbytes:,}", e.dtype, e.device, " × ".join(map(str, e.shape)), e.name, e.purpose) for e in self.entries
        ]
        rows.append((f"{self.nbytes:,}", "", "", "", "total", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = []
        for row in rows:
            cells = [
                row[0].rjust(widths[0]),
                *(cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            lines.append("  ".join(cells).rstrip())
        lines.insert(1, "  ".join("-" * width for width in widths))
        lines.insert(-1, lines[1])
        return "\n".join(lines)
