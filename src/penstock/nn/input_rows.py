"""Inputs of a first layer: aggregated or kept by the host before, or constant, so that aggregates are kept."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

# Inputs of a first layer that the host has worked on before: aggregated already, or to be transformed where they are.
#
# A batch's input rows are most of what it moves. Sums and means of them are fewer, and transformed rows may be
# narrower.

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


# Aggregates of inputs that never change: computed once for a block, and read again in every later step.
#
# In training on the whole graph the first layer reads the same rows in every step. What it aggregates of them is the
# same each time, unless they are dropped, transformed or learned.

Made = TypeVar("Made")


class _Constant(NamedTuple):
    kept: dict[Any, Any]
    rows: list[Any]


@contextmanager
def constant_input(kept: dict[Any, Any], rows: Iterable[Any]) -> Iterator[None]:
    """Within it, a block that reads one of `rows` has read the same before; `kept` holds what was made of them."""
    token = _constant.set(_Constant(kept, list(rows)))
    try:
        yield
    finally:
        _constant.reset(token)


def is_constant(x: Any) -> bool:
    """Whether aggregates of x are kept."""
    constant = _constant.get()
    return constant is not None and any(x is rows for rows in constant.rows)


def kept_aggregate(block: Any, what: str, x: Any, make: Callable[[], Made]) -> Made:
    """What `make` gives for a block and rows that never change, made once; made each time for other rows."""
    constant = _constant.get()
    if constant is None or not is_constant(x):
        return make()
    # The block is part of the entry, so that no other one can have its identity.
    found = constant.kept.get((id(block), what))
    if found is None:
        found = constant.kept[id(block), what] = block, make()
    made: Made = found[1]
    return made


def kept_of_rows(x: Any, what: str, make: Callable[[], Made]) -> Made | None:
    """What `make` gives for rows that never change, made once; None for other rows."""
    constant = _constant.get()
    if constant is None or not is_constant(x):
        return None
    found = constant.kept.get((id(x), what))
    if found is None:
        found = constant.kept[id(x), what] = x, make()
    made: Made = found[1]
    return made


_constant: ContextVar[_Constant | None] = ContextVar("_constant", default=None)
