"""The groups of rows that workers send each other: what belongs to one message."""

from typing import NamedTuple

from penstock.train.whole.shared.interfaces import Rows
from penstock.train.whole.shared.sent_sums import SentSums


class HaloGroup(NamedTuple):
    """Rows that another worker sends together."""

    rank: int
    number: int
    rows: dict[str, slice]
    """Where they stand in the level, by node type."""


class SentGroup(NamedTuple):
    """Rows, and sums of rows, that another worker reads and is sent together."""

    rank: int
    number: int
    rows: Rows
    """Rows of the level, ascending, by node type."""
    bins: dict[int, dict[str, slice]]
    """The bins that compute them, and which of `rows` are a bin's."""
    sums: dict[str, SentSums]
    """Behind the rows of a type, for the types that have any."""

    @property
    def computed_by(self) -> set[int]:
        """The bins that compute what is sent."""
        return {*self.bins, *(place for sums in self.sums.values() for place in sums.returned)}

    def count(self, kind: str) -> int:
        """How many rows and sums of a node type are sent."""
        return len(self.rows[kind]) + (len(self.sums[kind].numbers) if kind in self.sums else 0)
