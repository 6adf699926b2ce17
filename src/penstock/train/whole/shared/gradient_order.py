"""Gradients added in a fixed order, whenever they become known: sums then have the same bits in every run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from penstock.nn.first_rows import AggregatedRows
from penstock.train.whole.levels import LevelGradients
from penstock.train.whole.rows_in_place import RowsInPlace


class Contribution(LevelGradients):
    """What one bin adds to the gradients of the level below and to those of the parameters."""

    def __init__(self) -> None:
        self._added: list[tuple[str, Tensor | None, Tensor]] = []
        self._in_place: list[tuple[str, RowsInPlace, AggregatedRows]] = []
        self._parameters: list[tuple[Parameter, Tensor]] = []

    def add(self, node_type: str, rows: Tensor | None, gradients: Tensor) -> None:
        """Keep gradients of some rows."""
        self._added.append((node_type, rows, gradients))

    def take(self, work: Any, x: Mapping[str, Any]) -> None:
        """Keep what the backward pass of a bin (`BinTask`) left in what it read."""
        if work.in_place is None:
            super().take(work, x)
        else:
            self._in_place += [(name, work.in_place, read) for name, read in x.items()]

    def take_from(self, parameters: Iterable[Parameter]) -> None:
        """Take the gradients that parameters have, which have none afterwards."""
        for parameter in parameters:
            if parameter.grad is not None:
                self._parameters.append((parameter, parameter.grad))
                parameter.grad = None

    def apply(self, below: LevelGradients, sums: dict[Parameter, Tensor]) -> None:
        """Add all that was kept."""
        for node_type, rows, gradients in self._added:
            below.add(node_type, rows, gradients)
        for node_type, lists, read in self._in_place:
            lists.add_gradients(node_type, read, below)
        for parameter, gradient in self._parameters:
            known = sums.get(parameter)
            sums[parameter] = gradient if known is None else known.add_(gradient)


class OrderedLayer:
    """The contributions of one layer's bins, applied in the order in which the plan has them backward."""

    def __init__(self, order: Sequence[int], below: LevelGradients, sums: dict[Parameter, Tensor]) -> None:
        self._left, self._below, self._sums = list(reversed(order)), below, sums
        self._added: set[int] = set()
        self._waiting: dict[int, Contribution] = {}

    def give(self, place: int, contribution: Contribution) -> None:
        """A bin's contribution, added as soon as those of all bins before it are."""
        self._waiting[place] = contribution
        while self._left and self._left[-1] in self._waiting:
            added = self._left.pop()
            self._waiting.pop(added).apply(self._below, self._sums)
            self._added.add(added)

    def has(self, place: int) -> bool:
        """Whether a bin's contribution is added."""
        return place in self._added
