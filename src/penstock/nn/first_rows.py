"""Inputs of a first layer that the host has worked on before: aggregated already, or to be transformed where they are.

A batch's input rows are most of what it moves. Sums and means of them are fewer, and transformed rows may be narrower.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Aggregation = Literal["mean", "sum", "normalised"]
"""What a layer aggregates: the estimated mean or sum of a list, or GCN's sum, which has the vertex itself in it."""
_ROOM = 8
"""Columns behind the two matrices that a device's layer reads side by side: a one for the bias, and zeros."""


@dataclass(eq=False)
class AggregatedRows:
    """What a layer aggregates of its inputs, in place of them: [num_dst, width].

    `own` are the destinations' own rows, where the aggregate does not have them in it.
    """

    what: Aggregation
    neighbours: Tensor
    own: Tensor | None = None

    def beside(self, reduce: str) -> tuple[Tensor, Tensor]:
        """(aggregate, own rows) for a layer that aggregates by `reduce`."""
        assert self.own is not None and reduce == self.what, f"{reduce} was asked for, and {self.what} prepared"
        return self.neighbours, self.own

    def joined(self, reduce: str, dtype: torch.dtype | None) -> Tensor:
        """`beside` as one matrix with a one and zeros behind it, as a device's layer reads them."""
        neighbours, own = self.beside(reduce)
        behind = neighbours.new_zeros(len(neighbours), _ROOM)
        behind[:, 0] = 1
        return torch.cat([neighbours, own, behind], dim=1).to(dtype or neighbours.dtype)

    def normalised(self) -> Tensor:
        """GCN's sum."""
        assert self.what == "normalised", f"GCN's sum was asked for, and {self.what} prepared"
        return self.neighbours


@dataclass(eq=False)
class HostRows:
    """Input rows that stay on the host, [rows, width]: what the layer transforms them to goes to `device`.

    The weights' gradient is computed on the host too, where the rows are.
    """

    rows: Tensor
    device: torch.device

    def transformed(self, weight: Tensor) -> Tensor:
        """The rows times the transposed weight [out, in], on the device."""
        return functional.linear(self.rows, weight.to(self.rows.device)).to(self.device)

    def __getitem__(self, rows: slice) -> "HostRows":
        return HostRows(self.rows[rows], self.device)
