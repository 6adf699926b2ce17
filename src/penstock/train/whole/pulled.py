"""Gradients of a level's rows that are never all there: those of some rows are pulled together when they are asked for.

A layer that aggregates linearly gives gradients of its aggregates and of its own rows, as many rows as it computes,
which are far fewer than those it read. The gradient of a row that it read is a sum over the rows that read it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.nn.first_rows import AggregatedRows
from penstock.nn.list_sums import sum_lists
from penstock.sampling.block import Block
from penstock.train.whole.levels import LevelGradients


class Factors(NamedTuple):
    """Of an aggregate: write[i] * sum over the list of i of read[j] * x[j], by places; None stands for ones.

    Where there is `read`, a row reads itself as well, as GCN's do.
    """

    read: Tensor | None = None
    write: Tensor | None = None


class NoGradients(LevelGradients):
    """Of inputs that nobody learns."""

    def __init__(self) -> None:
        super().__init__({}, torch.device("cpu"))

    def take(self, work: Any, x: Mapping[str, Any]) -> None:
        """Nothing is left in them."""


class PulledGradients(LevelGradients):
    """Gradients of the rows of one level, of which one layer's bins leave those of what they aggregated."""

    def __init__(self, readers: Mapping[int, Block], rows: int, factors: Factors, kept: torch.dtype) -> None:
        """`readers`, by the first row of each bin of the level, list the rows of the layer above that read its rows,
        of which there are `rows`. Gradients wait in the type `kept`."""
        self._readers, self._rows, self._factors, self._kept = readers, rows, factors, kept
        self._neighbours: Tensor | None = None
        self._own: Tensor | None = None
        self._computed = torch.float32

    def take(self, work: Any, x: Mapping[str, Any]) -> None:
        """Keep gradients of what a bin aggregated, and of its own rows, until they are pulled."""
        ((name, given),) = x.items()
        assert isinstance(given, AggregatedRows) and given.neighbours.grad is not None
        rows, gradients = work.rows[name], given.neighbours.grad
        if self._factors.write is not None:
            gradients = gradients * self._factors.write[rows, None]
        self._computed = gradients.dtype
        self._neighbours = self._put(self._neighbours, rows, gradients)
        if given.own is not None:
            assert given.own.grad is not None
            self._own = self._put(self._own, rows, given.own.grad)

    def of(self, node_type: str, rows: Any) -> Tensor | None:
        """The gradients of one bin's rows, in the type that they were computed in."""
        given, block, read = self._neighbours, self._readers[rows.start], self._factors.read
        if given is None:
            return None
        itself, last = self._own if read is None else given, min(rows.stop, self._rows)
        own = None if itself is None or last <= rows.start else itself[rows.start : last]
        found = sum_lists(block, given, self._computed, own=own)
        return found if read is None else found.mul_(read[rows, None])

    def clear(self) -> None:
        """Drop all gradients."""
        self._neighbours = self._own = None

    def _put(self, room: Tensor | None, rows: slice, gradients: Tensor) -> Tensor:
        if room is None:
            room = torch.empty(self._rows, gradients.shape[1], dtype=self._kept, device=gradients.device)
        room[rows] = gradients.to(self._kept)
        return room
