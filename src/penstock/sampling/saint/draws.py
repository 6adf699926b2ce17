"""What a kind of GraphSAINT answers: where its draws went, and how likely one draw visits a vertex or a pair."""

from typing import Protocol

from penstock.graph.arrays import Array
from penstock.sampling.homogeneous import Reader
from penstock.sampling.induced import Induced
from penstock.sampling.key import BatchKey


class Draws(Protocol):
    """Independent draws that each visit some vertices."""

    mass: Array
    """The chance (float64) that one draw visits a vertex."""

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """The vertices visited by `amount` draws, in order, with repeats."""
        ...

    def joint(self, inside: Induced) -> Array:
        """The chance (float64) that one draw visits both ends, of every edge of a subgraph; loops do not matter."""
        ...
