"""Sources of rows of one table by number: an array, a graph's own fields, or several sources at once."""

import difflib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.graph.schema import edge_key
from penstock.store.rows import Columns, Span, gather_rows, place_rows, span_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Destination = Array | Tensor | torch.device | None


# Rows of one table by number, wherever they lie: the interface of every source of rows. A source has `shape` and
# `dtype` and answers `read(ids, to, columns, dtype)`. To add a kind of source, derive from `RowSource` and write
# `fill`; docs/extending.md shows how. Sources compose: below are a cache over another source, replicas, and any other
# way to split ids among several.


class RowSource(ABC):
    """The rows of one table by number, from 0; a row may be read any number of times."""

    shape: tuple[int, ...]
    """The table's number of rows, then the shape of one row."""
    dtype: Any
    """As stored: NumPy's dtype for rows that the host reads, torch's for rows that a device reads."""
    on_device = False
    """Whether a device reads some of the rows by itself: they are then best read where they are used."""

    @abstractmethod
    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        """Write row `ids[i]` to `out[places[i]]`, or to `out[i]` without places.

        `out` has the source's dtype, contiguous rows, and the shape of its rows, or of the columns [first, last) in
        `span`. Places are not checked; ids outside the table are an error. May be called from several threads at once.
        """

    def read(self, ids: Any, to: "Destination" = None, columns: Columns = None, dtype: Any = None) -> Any:
        """The rows `ids`, in that order.

        `to`: an array or a tensor to fill, which is returned, or a device on which a tensor is made; None: a new array.
        `columns`: a slice or numbers of columns; None: all. `dtype`: the type of rows that are made; as stored by
        default. Rows are converted to the type of an array or tensor that is given. Columns that are not contiguous are
        picked from the columns around them.
        """
        span, picked = span_of(columns, self.shape[1:])
        if to is not None and not isinstance(to, np.ndarray):
            return self._to_device(host_ids(ids), to, span, picked, dtype)
        if picked is None and isinstance(to, np.ndarray) and to.dtype == self.dtype:
            # The fast path of training: one gather, into reused memory.
            check_room(to, len(ids), self.dtype, self.row_shape(span))
            self.fill(host_ids(ids), to, None, span)
            return to
        rows = self._made(host_ids(ids), span, picked)
        if to is None:
            return rows if dtype is None else rows.astype(dtype, copy=False)
        check_room(to, len(rows), to.dtype, rows.shape[1:])
        to[...] = rows
        return to

    def put(self, ids: Array, out: Any, places: Array | None = None, span: Span | None = None) -> None:
        """`fill` for any `out`: also a tensor on a device, or of another dtype than the source's."""
        if isinstance(out, np.ndarray) and out.dtype == self.dtype:
            self.fill(ids, out, places, span)
            return
        rows: Any = self._made(ids, span, None)
        where: Any = slice(None) if places is None else places
        if not isinstance(out, np.ndarray):
            rows = _on_device(rows, out.device, out.dtype)
            where = where if places is None else _on_device(places, out.device, None)
        out[where] = rows

    def row_shape(self, span: Span | None = None) -> tuple[int, ...]:
        """The shape of one row, or of some columns of it."""
        return self.shape[1:] if span is None else (span[1] - span[0],)

    def _made(self, ids: Array, span: Span | None, picked: Array | None) -> Array:
        rows = np.empty((len(ids), *self.row_shape(span)), self.dtype)
        self.fill(ids, rows, None, span)
        return rows if picked is None else rows[:, picked]

    def _to_device(self, ids: Array, to: Any, span: Span | None, picked: Array | None, dtype: Any) -> "Tensor":
        import torch

        rows = self._made(ids, span, picked)
        if isinstance(to, torch.device):
            return _on_device(rows, to, dtype)
        check_room(to, len(rows), to.dtype, rows.shape[1:])
        return cast(torch.Tensor, to.copy_(_on_device(rows, to.device, None)))


class ArraySource(RowSource):
    """Rows of an array in memory, or mapped from a file: only the rows that are read are loaded."""

    def __init__(self, table: Array) -> None:
        self.table = table
        self.shape, self.dtype = table.shape, table.dtype

    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        if places is None:
            gather_rows(self.table, ids, out, span)
        else:
            place_rows(self.table, ids, places, out, span)


def host_ids(ids: Any) -> Array:
    """Row numbers on the host, wherever they were drawn."""
    return ids if isinstance(ids, np.ndarray) else ids.cpu().numpy()


def check_room(out: Any, count: int, dtype: Any, row_shape: tuple[int, ...]) -> None:
    """Refuse a buffer that so many rows do not fit."""
    if tuple(out.shape) != (count, *row_shape) or out.dtype != dtype:
        raise PenstockError(
            f"Rows of {dtype} {tuple(row_shape)} do not fit a buffer of {out.dtype} {tuple(out.shape)}.",
            code="shape-mismatch",
        )


def _on_device(array: Array, device: "torch.device", dtype: Any) -> "Tensor":
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(device)
    return tensor if dtype is None else tensor.to(dtype)


# The store of a graph's own fields, which are mapped.


class LocalStore:
    """Fields, named `type/field` for node types and `source__relation__destination/field` for relations.

    Only the rows that are read are loaded. Rows of a relation's fields are numbered as its edges are: `block.edges` has
    those of a batch.
    """

    def __init__(self, fields: dict[str, Array]) -> None:
        self.fields = fields

    @classmethod
    def of_graph(cls, graph: Graph) -> "LocalStore":
        """Every field of every node type and relation."""
        return cls(graph_fields(graph))

    def source(self, field: str) -> ArraySource:
        """The rows of a field."""
        return ArraySource(self.table(field))

    def push(self, field: str, ids: Array, values: Array) -> None:
        """Replace rows. Fields of a graph folder are mapped read-only, so this is an error for them."""
        self.writable(field)[ids] = values

    def table(self, field: str) -> Array:
        """The whole field, memory-mapped; an unknown name is refused with the nearest one."""
        if field not in self.fields:
            near = difflib.get_close_matches(field, self.fields, 1)
            hint = f": did you mean {near[0]!r}?" if near else f" (there are: {', '.join(self.fields) or 'none'})."
            raise PenstockError(f"There is no field {field!r}{hint}", code="field-missing")
        return self.fields[field]

    def writable(self, field: str) -> Array:
        """The whole field, if it may be written to."""
        table = self.table(field)
        if not table.flags.writeable:
            raise PenstockError(
                f"Field {field!r} is mapped read-only from its graph folder and cannot be pushed to.",
                code="not-permitted",
            )
        return table


def graph_fields(graph: Graph) -> dict[str, Array]:
    """Every field of every node type and relation, by its name in stores."""
    owners = field_owners(graph).items()
    return {f"{name}/{key}": values for name, owner in owners for key, values in owner.fields.items()}


def field_owners(graph: Graph) -> dict[str, NodeSet | EdgeSet]:
    """The owners of fields by their names in stores: vertices by type, edges by relation key."""
    return {**graph.nodes, **{edge_key(kind): edges for kind, edges in graph.edges.items()}}


# Rows from several sources at once: each id is read from one of them, all into one destination.

Route = Callable[[Array], tuple[Array, Array]]
"""For some ids, the number of the source that has each, and the row's number there."""


class SplitSource(RowSource):
    """A table whose rows are divided among several sources; `rows` is their total."""

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
        self.put(ids, out, places, span)

    def put(self, ids: Array, out: object, places: Array | None = None, span: Span | None = None) -> None:
        check_ids(ids, self.shape[0])
        which, numbers = self._route(ids)
        for number, source in enumerate(self._sources):
            chosen = np.flatnonzero(which == number)
            if len(chosen):
                source.put(numbers[chosen], out, chosen if places is None else places[chosen], span)

    def _to_device(self, ids: Array, to: Any, span: Span | None, picked: Array | None, dtype: Any) -> "Tensor":
        """Read directly into the tensor, so that rows on a device are not copied to the host and back."""
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
    """A source, and a nearer one that has its rows `ids`, all different, in that order."""

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
    """A source with the rows `ids`, all different, cached in `near`; if that is None, in the host's memory."""
    return CachedSource(below, ids, ArraySource(below.read(ids)) if near is None else near)


def replicated_source(replicas: Sequence[RowSource]) -> SplitSource:
    """Sources that all have all rows: reads are spread over them by row number, so that each row is cached in one."""

    def route(asked: Array) -> tuple[Array, Array]:
        return asked % len(replicas), asked

    return SplitSource(replicas[0].shape[0], replicas, route)


def _host_type(sources: Sequence[RowSource]) -> np.dtype[Any]:
    """The dtype of rows on the host: bfloat16, which NumPy lacks, becomes float32."""
    name = str(sources[0].dtype).removeprefix("torch.")
    own = next((source.dtype for source in sources if isinstance(source.dtype, np.dtype)), None)
    return own if own is not None else np.dtype("float32" if name == "bfloat16" else name)


def check_ids(ids: Array, rows: int) -> None:
    """Refuse ids outside a table of so many rows."""
    if len(ids) and (ids.min() < 0 or ids.max() >= rows):
        raise PenstockError(f"A requested row is outside 0..{rows - 1}.", code="id-out-of-range")
