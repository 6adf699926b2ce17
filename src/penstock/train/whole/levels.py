"""The rows between two layers, kept from the forward to the backward pass; and the gradients of these rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array, passing_rows
from penstock.nn.aggregation import (
    AggregatedRows,
    Aggregation,
    add_to_rows,
    gather_rows,
    known_totals,
    mean_scale,
    sum_scale,
)
from penstock.nn.layer_table import LAYERS
from penstock.nn.operator_costs import LayerSizes, shipped_order_costs
from penstock.sampling.block import Block
from penstock.train.session import Session

Where = Literal["device", "host", "disk"]


class KeptLevel:
    """One level's rows by node type: on the device that computes, in host memory, or in a file."""

    def __init__(
        self,
        counts: Mapping[str, int],
        where: Where,
        dtype: torch.dtype,
        device: torch.device,
        folder: Path,
        computed: torch.dtype,
    ) -> None:
        """`dtype` is the type that rows are stored in, `computed` the one that they are read in."""
        self._counts, self._where, self._dtype, self._device, self._folder = counts, where, dtype, device, folder
        self._computed = computed
        self._values: dict[str, Tensor] = {}

    @property
    def types(self) -> list[str]:
        """The node types that have rows."""
        return list(self._values)

    def write(self, node_type: str, rows: slice, out: Tensor) -> None:
        """Store some rows. All rows at once are kept without a copy if their device and type are right."""
        out = out.detach()
        count = self._counts[node_type]
        as_is = out.dtype == self._dtype and (self._where == "device" or (self._where == "host" and not out.is_cuda))
        if as_is and rows.stop - rows.start == count:
            self._values[node_type] = out
            return
        if node_type not in self._values:
            self._values[node_type] = self._room((count, out.shape[1]))
        self._values[node_type][rows] = out.to(self._dtype)

    def read(self, node_type: str, rows: Tensor | None) -> Tensor:
        """Some rows (None: all), on the device and in the type of the computation."""
        values = self._values[node_type]
        found = values if rows is None else values.index_select(0, rows.to(values.device))
        return found.to(self._device, self._computed)

    def kept(self, node_type: str) -> Tensor:
        """All rows, on the device and in the type in which they are stored."""
        return self._values[node_type]

    def _room(self, shape: tuple[int, int]) -> Tensor:
        if self._where == "device":
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        if self._where == "host":
            return torch.empty(shape, dtype=self._dtype)
        if self._dtype == torch.bfloat16:
            halves = passing_rows(shape, 0, self._folder, np.dtype(np.int16), _WHO, _MEND)
            return torch.from_numpy(halves).view(torch.bfloat16)
        kind = np.dtype(np.float64 if self._dtype == torch.float64 else np.float32)
        return torch.from_numpy(passing_rows(shape, 0, self._folder, kind, _WHO, _MEND))


class UncountedLevel(KeptLevel):
    """Rows of a traced step that are outside the memory that is traced: in a file, or in a GPU's host."""

    def write(self, node_type: str, rows: slice, out: Tensor) -> None:
        """Keep the width of the rows and no values."""
        self._values[node_type] = torch.empty(0, out.shape[1], device=self._device)

    def read(self, node_type: str, rows: Tensor | None) -> Tensor:
        """New rows of that width."""
        count = self._counts[node_type] if rows is None else len(rows)
        return torch.empty(count, self._values[node_type].shape[1], dtype=self._computed, device=self._device)


def backward_from(tensors: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Compute gradients from those of some tensors, as `torch.autograd.backward` does, which would import a solver of
    equations to compare shapes: that takes a second.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward(
        tuple(tensors), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


class LevelGradients:
    """The gradients of one level's rows, summed over bins."""

    def __init__(self, counts: Mapping[str, int], device: torch.device) -> None:
        self._counts, self._device = counts, device
        self._values: dict[str, Tensor] = {}

    def add(self, node_type: str, rows: Tensor | None, gradients: Tensor) -> None:
        """Add gradients of some rows, each named once; None: of all rows."""
        if rows is None and node_type not in self._values:
            self._values[node_type] = gradients
            return
        known = self.all(node_type, gradients)
        if rows is None:
            known += gradients
        else:
            known.index_add_(0, rows, gradients)

    def all(self, node_type: str, like: Tensor) -> Tensor:
        """The gradients of all rows, to be added to; zeros of the level's width where there are none yet."""
        if node_type not in self._values:
            shape = self._counts[node_type], like.shape[1]
            self._values[node_type] = torch.zeros(shape, dtype=like.dtype, device=self._device)
        return self._values[node_type]

    def take(self, work: Any, x: Mapping[str, Any]) -> None:
        """Add the gradients that the backward pass of a bin (`PreparedBin`) has computed for the rows that it read."""
        for name, rows in x.items():
            if work.in_place is not None:
                work.in_place.add_gradients(name, rows, self)
            elif rows.grad is not None:
                self.add(name, work.places[name], rows.grad)

    def clear(self) -> None:
        """Drop all gradients, to free their memory."""
        self._values.clear()

    def of(self, node_type: str, rows: slice | Tensor) -> Tensor | None:
        """The gradients of some rows; None: no loss depends on this type's."""
        found = self._values.get(node_type)
        return None if found is None else found[rows]


_WHO, _MEND = "Training on the whole graph", ", or set keep to host or recompute"


# Bins of layers after the first that read the level below in place: a row that several of them read is not copied and
# transformed, nor its gradient copied, for each of them. A bin aggregates rows of the whole level, and its layer is
# given aggregates instead of rows. The gradients of the aggregates are added to the level's rows along the transposed
# lists. This is for layers that aggregate linearly, on the host.


class _Lists(NamedTuple):
    """Some rows, and for each of them a list of other rows with weights."""

    rows: Array
    indptr: Array
    indices: Array
    weights: Array


class RowsInPlace:
    """The aggregates of a level that one bin reads, and the rows of the level that their gradients are added to."""

    def __init__(self, what: Aggregation, block: Block, places: Array, dtype: torch.dtype) -> None:
        """`places` maps the block's source rows to rows of the level, the bin's own first."""
        self._what, own = what, places[: block.num_dst]
        targets, sources, weights = _weighted(what, block)
        rows, at = np.unique(places[sources], return_inverse=True)
        number = np.float64 if dtype == torch.float64 else np.float32
        self._read = _lists(np.arange(block.num_dst), targets, places[sources], weights.astype(number))
        self._returned = _lists(rows, at, targets, weights.astype(number))
        self._own = None if what == "normalised" else torch.from_numpy(own)

    def aggregated(self, level: Tensor) -> AggregatedRows:
        """The aggregates, as leaf tensors of autograd."""
        lists = self._read
        sums = gather_rows(lists.indptr, lists.indices, lists.weights, None, None, None, None, level)
        own = None if self._own is None else level.index_select(0, self._own).requires_grad_()
        return AggregatedRows(self._what, sums.requires_grad_(), own)

    def add_gradients(self, kind: str, x: AggregatedRows, gradients: LevelGradients) -> None:
        """Add the gradients of a bin's leaf tensors to those of the level's rows."""
        given = x.neighbours.grad
        if given is not None:
            add_to_rows(*self._returned, given, gradients.all(kind, given))
        if x.own is not None and x.own.grad is not None:
            gradients.add(kind, self._own, x.own.grad)


def read_in_place(session: Session, bins: Sequence[Any], out: int) -> None:
    """Have the bins (`PreparedBin`) of a layer after the first, of width `out`, read rows in place, if that is
    predicted to be cheaper.
    """
    if not session.inputs.on_host or not bins:
        return
    what, width = aggregated_in_place(session), session.job.hidden
    if what is None or not is_cheaper_in_place(session, [each.block for each in bins], width, out):
        return
    dtype = next(session.learned.parameters()).dtype
    for work in bins:
        (places,) = work.inputs.values()
        rows = np.arange(work.block.num_src) if places is None else places
        work.in_place = RowsInPlace(what, work.block, rows, dtype)


def aggregated_in_place(session: Session) -> Aggregation | None:
    """What layers after the first aggregate of rows in place; None: bins need copies of rows."""
    job, model = session.job, session.model
    plain = session.graph.is_homogeneous and getattr(model, "layerwise", False)
    carried = session.list_weight is not None or bool(session.inputs.edges)
    # Kernels of the host read rows only in the type that they compute with.
    rounded = session.inputs.on_host and job.keep_type != "float32"
    orders = job.order if isinstance(job.order, list) else [job.order]
    if not plain or carried or rounded or job.residual or "transform" in orders:
        return None
    what: Aggregation | None = LAYERS[job.model].aggregates(job)
    return what


def is_cheaper_in_place(session: Session, blocks: Sequence[Block], width_in: int, width_out: int) -> bool:
    """Whether bins of a layer are faster in place than with copies, by the operator costs in the job.

    Copying a row that is read, and its gradient, costs as much as aggregating a list of one entry.
    """
    costs = (session.job.order_costs or {}).get("cpu") or shipped_order_costs()["cpu"]
    here = there = 0.0
    for block in blocks:
        sizes = LayerSizes(block.num_src, block.num_dst, block.num_edges, width_in, width_out, True)
        here += costs.aggregate_seconds(sizes)
        there += min(costs.aggregate_seconds(sizes), costs.transform_seconds(sizes))
        there += 2 * costs.gather_seconds(block.num_src, block.num_src, block.num_src, width_in)
    return here < there


def _weighted(what: Aggregation, block: Block) -> tuple[Array, Array, Array]:
    """Edges as (destination, source row, factor of the source's row in the destination's aggregate)."""
    targets, sources = block.destinations(), block.indices.astype(np.int64)
    weights = np.ones(len(sources)) if block.weights is None else block.weights.astype(np.float64)
    if what == "mean":
        return targets, sources, weights * mean_scale(block)[targets]
    scale = sum_scale(block)
    weights = weights if scale is None else weights * scale[targets]
    if what == "sum":
        return targets, sources, weights
    # In GCN's sum a vertex also reads itself.
    roots, own = 1 / np.sqrt(known_totals(block, block.num_src) + 1), np.arange(block.num_dst)
    weights = np.append(weights * roots[sources] * roots[targets], roots[own] ** 2)
    return np.append(targets, own), np.append(sources, own), weights


def _lists(rows: Array, targets: Array, sources: Array, weights: Array) -> _Lists:
    order = np.argsort(targets, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=len(rows)))]).astype(np.int64)
    return _Lists(rows, indptr, sources[order].astype(np.int32), weights[order])
