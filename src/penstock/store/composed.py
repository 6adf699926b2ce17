"""Rows from several sources at once: each id is read from one of them, all into one destination."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.store.rows import Span
from penstock.store.source import ArraySource, RowSource, check_room

if TYPE_CHECKING:
    from torch import Tensor

Route = Callable[[Array], tuple[Array, Array]]
"""For some ids, which source has each, by its place among the sources, and the row's number there."""


class SplitSource(RowSource):
    """Rows that several sources have between them; `rows` is how many there are."""

    def __init__(self, rows: int, sources: Sequence[RowSource], route: Route) -> None:
        kinds = {(source.shape[1:], str(source.dtype).removeprefix("torch.")) for source in sources}
        if len(kinds) != 1:
            raise PenstockError(
                f"Sources of one table have rows of different kinds ({', '.join(map(str, sorted(kinds)))}): give them"
                " one shape and type.",
                code="mismatched-inputs",
            )
        self._sources, self._route = list(sources), route
        self.shape, self.dtype = (rows, *sources[0].shape[1:]), _host_type(sources)
        self.on_device = any(source.on_device for source in sources)

    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        """See `RowSource.fill`."""
        self.put(ids, out, places, span)

    def put(self, ids: Array, out: object, places: Array | None = None, span: Span | None = None) -> None:
        """See `RowSource.put`: every source puts its rows where they belong."""
        check_ids(ids, self.shape[0])
        which, numbers = self._route(ids)
        for number, source in enumerate(self._sources):
            chosen = np.flatnonzero(which == number)
            if len(chosen):
                source.put(numbers[chosen], out, chosen if places is None else places[chosen], span)

    def _to_device(self, ids: Array, to: Any, span: Span | None, picked: Array | None, dtype: Any) -> "Tensor":
        """Straight into the tensor, so that rows of a device do not travel to the host and back."""
        import torch

        if picked is not None:
            return super()._to_device(ids, to, span, picked, dtype)
        if isinstance(to, torch.device):
            stored = torch.from_numpy(np.empty(0, self.dtype)).dtype
            to = torch.empty((len(ids), *self.row_shape(span)), dtype=dtype or stored, device=to)
        check_room(to, len(ids), to.dtype, self.row_shape(span))
        self.put(ids, to, None, span)
        return cast(torch.Tensor, to)


class CachedSource(SplitSource):
    """A source, and another one that is nearer and has its rows `ids`, all different, in that order."""

    def __init__(self, below: RowSource, ids: Array, near: RowSource) -> None:
        self._slots = np.full(below.shape[0], -1, np.int64)
        self._slots[ids] = np.arange(len(ids))
        self._hits = self._reads = 0
        self._counting = threading.Lock()
        super().__init__(below.shape[0], [near, below], self._find)

    def hit_rate(self) -> float:
        """The share of rows read that the nearer source had; 0 before the first."""
        return self._hits / self._reads if self._reads else 0.0

    def _find(self, asked: Array) -> tuple[Array, Array]:
        slot = self._slots[asked]
        missing = slot < 0
        with self._counting:
            self._reads += len(asked)
            self._hits += len(asked) - int(np.count_nonzero(missing))
        return missing.astype(np.int8), np.where(missing, asked, slot)


def cached_source(below: RowSource, ids: Array, near: RowSource | None = None) -> CachedSource:
    """A source with the rows `ids`, all different, kept in `near`; in the host's memory if None: they are read here."""
    return CachedSource(below, ids, ArraySource(below.read(ids)) if near is None else near)


def replicated_source(replicas: Sequence[RowSource]) -> SplitSource:
    """Sources that all have all rows: reads are spread over them by row number, so that each row is cached in one."""

    def route(asked: Array) -> tuple[Array, Array]:
        return asked % len(replicas), asked

    return SplitSource(replicas[0].shape[0], replicas, route)


def _host_type(sources: Sequence[RowSource]) -> np.dtype[Any]:
    """The type of a host's rows: bfloat16, which NumPy does not have, is float32 there."""
    name = str(sources[0].dtype).removeprefix("torch.")
    own = next((source.dtype for source in sources if isinstance(source.dtype, np.dtype)), None)
    return own if own is not None else np.dtype("float32" if name == "bfloat16" else name)


def check_ids(ids: Array, rows: int) -> None:
    """Refuse ids outside a table of so many rows."""
    if len(ids) and (ids.min() < 0 or ids.max() >= rows):
        raise PenstockError(f"A requested row is outside 0..{rows - 1}.", code="id-out-of-range")
