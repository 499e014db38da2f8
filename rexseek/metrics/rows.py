"""What the metrics read of a row, and say about one that cannot be scored."""

from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]


class RowError(ValueError):
    """A row that cannot be scored.

    Attributes:
        kind: "annotation" or "prediction".
        index: the row's position in its sequence, from 0.
        reason: the row's id, what was got and what was expected.
    """

    def __init__(self, kind: str, index: int, row: Row, reason: str, key: str = "id") -> None:
        super().__init__(f"{kind} {index + 1} ({key} {row.get(key)!r}): {reason}")
        self.kind, self.index, self.reason = kind, index, f"{key} {row.get(key)!r}: {reason}"


def require(kind: str, index: int, row: Row, keys: Iterable[str]) -> None:
    """Refuse a row that lacks one of the keys.

    Raises:
        RowError: naming the row and the key.
    """
    for key in keys:
        if key not in row:
            raise RowError(kind, index, row, f"has no {key!r}")


def predicted_regions(row: Row) -> Any:
    """The boxes or points of a prediction; none if it says so by `[[]]` or is marked malformed."""
    value = row["extracted_predictions"]
    return [] if value == [[]] or row.get("status") == "malformed" else value
