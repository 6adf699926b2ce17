"""Forms of a first layer's inputs: aggregated on the host, kept on the host, or constant, so that aggregates are
cached.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

# Inputs of a first layer that the host has prepared: aggregated already, or to be transformed on the host. A batch's
# input rows are most of what it moves. Their sums and means are fewer, and transformed rows may be narrower.

Aggregation = Literal["mean", "sum", "normalised"]
"""What a layer aggregates: the estimated mean or sum of a list, or GCN's sum, which includes the vertex itself."""
_ROOM = 8
"""Columns after the two matrices that a device's layer reads side by side: a one for the bias, and zeros."""


@dataclass(eq=False)
class AggregatedRows:
    """What a layer aggregates of its inputs, instead of the inputs: [num_dst, width].

    `own` are the destinations' own rows, where the aggregate does not include them.
    """

    what: Aggregation
    neighbours: Tensor
    own: Tensor | None = None

    def beside(self, reduce: str) -> tuple[Tensor, Tensor]:
        """(aggregate, own rows) for a layer that aggregates by `reduce`."""
        assert self.own is not None and reduce == self.what, f"{reduce} was asked for, and {self.what} prepared"
        return self.neighbours, self.own

    def joined(self, reduce: str, dtype: torch.dtype | None) -> Tensor:
        """`beside` as one matrix followed by a one and zeros, as a device's layer reads it."""
        neighbours, own = self.beside(reduce)
        behind = neighbours.new_zeros(len(neighbours), _ROOM)
        behind[:, 0] = 1
        return torch.cat([neighbours, own, behind], dim=1).to(dtype or neighbours.dtype)

    def normalised(self) -> Tensor:
        """The aggregate, which must be GCN's sum."""
        assert self.what == "normalised", f"GCN's sum was asked for, and {self.what} prepared"
        return self.neighbours


@dataclass(eq=False)
class HostRows:
    """Input rows that stay on the host, [rows, width]; the transformed rows go to `device`.

    The weights' gradient is computed on the host too, where the rows are.
    """

    rows: Tensor
    device: torch.device

    def transformed(self, weight: Tensor) -> Tensor:
        """The rows times the transposed weight [out, in], on the device."""
        return functional.linear(self.rows, weight.to(self.rows.device)).to(self.device)

    def __getitem__(self, rows: slice) -> "HostRows":
        return HostRows(self.rows[rows], self.device)


# Aggregates of constant inputs: computed once for a block, and reused in every later step. In training on the whole
# graph the first layer reads the same rows in every step. Their aggregates are the same each time, unless rows are
# dropped, transformed or learned.

Made = TypeVar("Made")


class _Constant(NamedTuple):
    kept: dict[Any, Any]
    rows: list[Any]


@contextmanager
def constant_input(kept: dict[Any, Any], rows: Iterable[Any]) -> Iterator[None]:
    """Within the context, `rows` are constant for each block that reads them; `kept` caches what was made of them."""
    token = _constant.set(_Constant(kept, list(rows)))
    try:
        yield
    finally:
        _constant.reset(token)


def is_constant(x: Any) -> bool:
    """Whether aggregates of x are cached."""
    constant = _constant.get()
    return constant is not None and any(x is rows for rows in constant.rows)


def kept_aggregate(block: Any, what: str, x: Any, make: Callable[[], Made]) -> Made:
    """The result of `make` for a block and constant rows, computed once; for other rows, computed each time."""
    constant = _constant.get()
    if constant is None or not is_constant(x):
        return make()
    # The entry refers to the block, so that no other one can get its identity.
    found = constant.kept.get((id(block), what))
    if found is None:
        found = constant.kept[id(block), what] = block, make()
    made: Made = found[1]
    return made


def kept_of_rows(x: Any, what: str, make: Callable[[], Made]) -> Made | None:
    """The result of `make` for constant rows, computed once; None for other rows."""
    constant = _constant.get()
    if constant is None or not is_constant(x):
        return None
    found = constant.kept.get((id(x), what))
    if found is None:
        found = constant.kept[id(x), what] = x, make()
    made: Made = found[1]
    return made


_constant: ContextVar[_Constant | None] = ContextVar("_constant", default=None)
