"""What a negative policy is given and gives."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.sampling.links.known import End, KnownEdges

Corrupt = Literal["destination", "source", "both"]


@dataclass(frozen=True, eq=False)
class Positives:
    """The true edges of a batch. `copy` numbers parallel edges among themselves, from 0: with it an edge has a name
    that does not depend on where it stands in the batch. `time`, where edges have times: one for each."""

    source: Array
    destination: Array
    copy: Array
    time: Array = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.source)

    def at(self, end: End) -> Array:
        """The vertices at one end."""
        return self.destination if end == "destination" else self.source


@dataclass(frozen=True, eq=False)
class DrawnNegatives:
    """Vertices to put in the place of one end of the positives.

    Row g of `vertices` [groups, k] stands against positives [g * group, (g + 1) * group). Where `mask` [positives, k]
    is False the vertex must not count against that positive: it is its own end, or makes a true edge. None: all
    count. `clashes` is how many are masked because they are true edges.
    """

    vertices: Array
    group: int
    mask: Array | None = None
    clashes: int = 0


class NegativePolicy(Protocol):
    """How negatives are chosen. `corrupt` says which ends are replaced: `both` gives each end its own."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    shared: ClassVar[bool]
    """Whether several positives have the same negatives."""

    @property
    def corrupt(self) -> Corrupt:
        """The ends that are replaced."""
        ...

    def per_positive(self, positives: int) -> int:
        """How many stand at one end against each positive of a batch of so many."""
        ...

    def draw(self, positives: Positives, end: End, known: KnownEdges, key: np.uint64) -> DrawnNegatives:
        """Vertices to stand at `end`; a pure function of its arguments."""
        ...


def check_policy(k: int, corrupt: str) -> None:
    """Check the options that all kinds of negatives share."""
    if k < 1:
        raise PenstockError(
            f"The number of negatives for each positive is {k}: give 1 or more.", code="value-out-of-range"
        )
    check_corrupt(corrupt)


def check_corrupt(corrupt: str) -> None:
    """The ends that can be replaced."""
    if corrupt not in ("destination", "source", "both"):
        raise PenstockError(
            f"Negatives cannot replace {corrupt!r}: choose destination, source or both.", code="unknown-name"
        )
