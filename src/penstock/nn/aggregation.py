"""Aggregation over a block, forward and backward, without a message per edge."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.nn import masked
from penstock.nn.derived import destination_reads, edge_lists, source_reads
from penstock.nn.device import aggregation as on_device
from penstock.nn.device.drop import Rectified
from penstock.nn.device.gather import Scale, TableRows
from penstock.nn.kernels import add_sums, gather_max, gather_sum, scatter_winners, transpose
from penstock.nn.masked import MaskedBlock
from penstock.nn.threads import column_chunks, row_chunks, run_chunks
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import array_of, is_traced, room

Reduce = Literal["mean", "sum", "max"]

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


# Aggregates of a block: what layers call.


def aggregate(block: Block, x: Tensor, reduce: Reduce = "mean") -> Tensor:
    """[num_dst, width]: the aggregate of each destination's whole list, estimated from the block's edges.

    A row without edges gives zeros. `max` is taken over the drawn edges only: a sampled maximum is at most that of the
    whole list.
    """
    check_rows(block, x)
    if reduce not in ("mean", "sum", "max"):
        raise PenstockError(
            f"Neighbours cannot be aggregated by {reduce!r}: choose mean, sum or max.", code="unknown-name"
        )
    result: Tensor = kept_aggregate(block, reduce, x, lambda: _aggregate(block, x, reduce))
    return result


@singledispatch
def _aggregate(block: Block, x: Tensor, reduce: Reduce) -> Tensor:
    if reduce == "max":
        return _largest(block, x)
    return _gather(block, x, None, mean_scale(block) if reduce == "mean" else sum_scale(block), None)


@singledispatch
def _largest(block: Block, x: Tensor) -> Tensor:
    return differentiable(_Max, x, block)


_aggregate.register(DeviceBlock, on_device.aggregate)
_largest.register(MaskedBlock, masked.gather_max)


def aggregate_beside(block: Block, x: Tensor | AggregatedRows, reduce: Reduce = "mean") -> tuple[Tensor, Tensor]:
    """`aggregate` and the destinations' own rows, whose gradients then reach x in one pass."""
    if isinstance(x, AggregatedRows):
        return x.beside(reduce)
    check_rows(block, x)
    made: tuple[Tensor, Tensor] = kept_aggregate(
        block, f"{reduce} beside", x, lambda: _aggregate_beside(block, x, reduce)
    )
    return made


@singledispatch
def _aggregate_beside(block: Block, x: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    if reduce == "max" or block.mask is not None:
        return aggregate(block, x, reduce), x[: block.num_dst]
    scale = mean_scale(block) if reduce == "mean" else sum_scale(block)
    result: tuple[Tensor, Tensor] = cast(Any, _GatherBeside).apply(x, block, scale)
    return result


_aggregate_beside.register(DeviceBlock, on_device.aggregate_beside)


def aggregate_joined(
    block: Block,
    x: Tensor | TableRows | Rectified | AggregatedRows,
    reduce: Reduce = "mean",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """[num_dst, 2 * width + 8]: `aggregate` (mean or sum), the own rows, a one and zeros, in one pass on a device.

    Rows of a table are read in place; the result has type `dtype`.
    """
    if isinstance(x, AggregatedRows):
        return x.joined(reduce, dtype)
    check_rows(block, x)
    what = f"{reduce} joined {dtype}"
    return kept_aggregate(
        block, what, x, lambda: on_device.aggregate_joined(cast(DeviceBlock, block), x, reduce, dtype)
    )


def normalised_sum(block: Block, x: Tensor | AggregatedRows) -> Tensor:
    """GCN's sum of the list and the vertex itself, each over sqrt((d_u + 1)(d_v + 1)), d being whole lists' totals."""
    if isinstance(x, AggregatedRows):
        return x.normalised()
    check_rows(block, x)
    result: Tensor = kept_aggregate(block, "normalised sum", x, lambda: _normalised_sum(block, x))
    return result


@singledispatch
def _normalised_sum(block: Block, x: Tensor) -> Tensor:
    roots = 1 / np.sqrt(known_totals(block, block.num_src) + 1)
    own = roots[: block.num_dst]
    estimate = sum_scale(block)
    return _gather(block, x, roots, own if estimate is None else own * estimate, own * own)


_normalised_sum.register(DeviceBlock, on_device.normalised_sum)


def normalised_joined(block: Block, x: Tensor | TableRows | Rectified, dtype: torch.dtype | None = None) -> Tensor:
    """[num_dst, width + 8]: `normalised_sum`, a one and zeros, in one pass on a device, as `aggregate_joined`."""
    check_rows(block, x)
    what = f"normalised joined {dtype}"
    return kept_aggregate(block, what, x, lambda: on_device.normalised_joined(cast(DeviceBlock, block), x, dtype))


def gather(block: Block, x: Tensor, read_scale: Any = None, write_scale: Any = None, own_scale: Any = None) -> Tensor:
    """write_scale[i] * sum of w[e] * read_scale[j] * x[j] over the edges e = (j, i), + own_scale[i] * x[i].

    w are the block's weights. A missing scale is one, but a missing `own_scale` is zero. Scales are arrays, for a
    device's block tensors.
    """
    check_rows(block, x)
    return _gather(block, x, read_scale, write_scale, own_scale)


@singledispatch
def _gather(block: Block, x: Tensor, read_scale: Any, write_scale: Any, own_scale: Any) -> Tensor:
    return differentiable(_Gather, x, block, read_scale, write_scale, own_scale)


@_gather.register
def _(block: DeviceBlock, x: Tensor, read_scale: Any, write_scale: Any, own_scale: Any) -> Tensor:
    read, write = (None if scale is None else Scale(scale) for scale in (read_scale, write_scale))
    return on_device.scaled(block, x, read, write, own_scale)


_gather.register(MaskedBlock, masked.gather)


def mean_scale(block: Block) -> Array:
    """The factor that turns each row's sum of weights[e] * x into the estimate of its list's mean."""
    if block.weights is None:
        return _reciprocal(np.diff(block.indptr))
    return _reciprocal(known_totals(block, block.num_dst))


def sum_scale(block: Block) -> Array | None:
    """The factor that turns each row's sum of weights[e] * x into the estimate of its list's sum; None: one."""
    if block.weights is not None or block.totals is None:
        return None
    scale: Array = _reciprocal(np.diff(block.indptr)) * known_totals(block, block.num_dst)
    return scale


def known_totals(block: Block, rows: int) -> Array:
    """The whole lists' totals of the first `rows` rows, as float64."""
    if block.totals is None or len(block.totals) < rows:
        has = "no totals" if block.totals is None else f"totals of {len(block.totals):,} rows"
        raise PenstockError(
            f"A block has {has} where the layer needs {rows:,}: sample with totals for the source rows.",
            code="shape-mismatch",
        )
    return np.asarray(block.totals[:rows], np.float64)


def check_rows(block: Block, x: Tensor | TableRows | Rectified) -> None:
    """Refuse a matrix that a block's kernels cannot read."""
    _check_place(block, x)
    if len(x) < block.num_src:
        raise PenstockError(
            f"The block has {block.num_src:,} source rows, but its input has shape {tuple(x.shape)}.",
            code="shape-mismatch",
        )


@singledispatch
def _check_place(block: Block, x: Any) -> None:
    if isinstance(x, TableRows | Rectified) or x.device.type == "cuda":
        raise PenstockError(
            f"A block on the host was given rows on {x.device}: move the block to the device too.",
            code="mismatched-inputs",
        )
    check_matrix(x)


@_check_place.register
def _(block: DeviceBlock, x: Any) -> None:
    if x.device != block.device:
        raise PenstockError(
            f"A block on {block.device} was given rows on {x.device}: keep both on one device.",
            code="mismatched-inputs",
        )
    if not x.dtype.is_floating_point:
        raise PenstockError(f"There are no kernels for {x.dtype}: convert the features to float32.", code="wrong-type")
    check_shape(x)


def check_matrix(x: Tensor) -> None:
    """Refuse a matrix that no kernel of the host can read."""
    if x.device.type != "cpu" and not is_traced():
        raise PenstockError(
            f"There are no kernels for device {x.device.type!r} yet: keep model and data on the CPU.",
            code="unsupported-combination",
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise PenstockError(f"There are no kernels for {x.dtype}: convert the features to float32.", code="wrong-type")
    check_shape(x)


def check_shape(x: Tensor | TableRows | Rectified) -> None:
    """Refuse anything but a matrix."""
    if x.dim() != 2:
        raise PenstockError(
            f"Layers take one row for each vertex, but the input has shape {tuple(x.shape)}.", code="shape-mismatch"
        )


def differentiable(function: Any, *arguments: Any) -> Tensor:
    """The result of an autograd function; torch's `apply` has no types."""
    result: Tensor = function.apply(*arguments)
    return result


# Gradients are gathered along the transposed lists, which a block keeps.


@dataclass(eq=False)
class Transposed:
    """The transposed lists: source row j is read by `indices[indptr[j]:indptr[j + 1]]`; `edges` are those edges'
    positions in the block.
    """

    indptr: Array
    indices: Array
    edges: Array


def transposed(block: Block, rows: int) -> Transposed:
    """The lists of `rows` source rows, for gathering gradients: a counting sort, two passes over the edges."""
    found = block.derived.get("transposed")
    if found is None or len(found.indptr) != rows + 1:  # the block may have been read with another number of rows
        found = block.derived["transposed"] = _transpose(block, rows)
    return cast(Transposed, found)


def _transpose(block: Block, rows: int) -> Transposed:
    indptr, indices = room(rows + 1, np.int64), room(block.num_edges, block.indices.dtype)
    made = Transposed(indptr, indices, room(block.num_edges, np.int64))
    if not is_traced():
        transpose(block.indptr, block.indices, made.indptr, made.indices, made.edges)
    return made


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, block: Block, read_scale: Array | None, write_scale: Array | None, own_scale: Array | None
    ) -> Tensor:
        ctx.block, ctx.rows, ctx.scales = block, len(x), (read_scale, write_scale, own_scale)
        own = None if own_scale is None else as_rows(x)[: block.num_dst]
        return gather_rows(block.indptr, block.indices, block.weights, read_scale, write_scale, own_scale, own, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        block, (read_scale, write_scale, own_scale) = ctx.block, ctx.scales
        if not ctx.needs_input_grad[0]:
            return (None,) * 5
        own = None if own_scale is None else as_rows(grad)
        return _return_rows(block, ctx.rows, read_scale, write_scale, own_scale, own, grad), None, None, None, None


class _GatherBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block, scale: Array | None) -> tuple[Tensor, Tensor]:
        ctx.block, ctx.rows, ctx.scale = block, len(x), scale
        result = gather_rows(block.indptr, block.indices, block.weights, None, scale, None, None, x)
        return result, x.detach()[: block.num_dst]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, own: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return _return_rows(ctx.block, ctx.rows, None, ctx.scale, None, as_rows(own), grad), None, None


def _return_rows(
    block: Block,
    rows: int,
    read_scale: Array | None,
    write_scale: Array | None,
    own_scale: Array | None,
    own: Array | None,
    grad: Tensor,
) -> Tensor:
    """The gradient of `rows` source rows: a gather along the transposed lists, with the scales swapped."""
    lists = transposed(block, rows)
    weights = None if block.weights is None else block.weights[lists.edges]
    if read_scale is not None and len(read_scale) < rows:
        read_scale = np.pad(read_scale, (0, rows - len(read_scale)))
    return gather_rows(lists.indptr, lists.indices, weights, write_scale, read_scale, own_scale, own, grad)


def gather_rows(
    indptr: Array,
    indices: Array,
    weights: Array | None,
    read_scale: Array | None,
    write_scale: Array | None,
    own_scale: Array | None,
    own: Array | None,
    x: Tensor,
) -> Tensor:
    """`gather` over lists, without gradients."""
    rows = as_rows(x)
    added = np.empty((0, rows.shape[1]), rows.dtype) if own is None else own
    edge, read = _factors(weights, rows.dtype), _factors(read_scale, rows.dtype)
    write, kept = _factors(write_scale, rows.dtype), _factors(own_scale, rows.dtype)
    result = x.new_empty(len(indptr) - 1, rows.shape[1])
    out = array_of(result)

    def work(_: int, first: int, last: int) -> None:
        gather_sum(indptr, indices, edge, read, write, kept, added, rows, out, first, last)

    run_chunks(work, row_chunks(indptr, rows.shape[1]))
    return result


def add_to_rows(rows: Array, indptr: Array, indices: Array, weights: Array, x: Tensor, out: Tensor) -> None:
    """Add to some rows of `out`, each named once, the sums of weights[e] * x[j] over their lists' entries."""
    given, to = as_rows(x), array_of(out)

    def work(_: int, first: int, last: int) -> None:
        add_sums(rows, indptr, indices, weights, given, to, first, last)

    run_chunks(work, row_chunks(indptr, given.shape[1]))


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        rows = as_rows(x)
        result = x.new_empty(block.num_dst, rows.shape[1])
        out, winner = array_of(result), room(result.shape, np.int32)

        def work(_: int, first: int, last: int) -> None:
            gather_max(block.indptr, block.indices, rows, out, winner, first, last)

        run_chunks(work, row_chunks(block.indptr, rows.shape[1]))
        ctx.winner, ctx.rows = winner, len(x)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None
        rows, result = as_rows(grad), grad.new_zeros(ctx.rows, grad.shape[1])
        out = array_of(result)

        def work(_: int, first: int, last: int) -> None:
            scatter_winners(ctx.winner, rows, out, first, last)

        run_chunks(work, column_chunks(grad.shape[1], ctx.rows))
        return result, None


def as_rows(x: Tensor) -> Array:
    """A tensor's memory, copied only where it is not contiguous."""
    return array_of(x.detach().contiguous())


def _factors(values: Array | None, dtype: Any) -> Array:
    return np.empty(0, dtype) if values is None else np.asarray(values, dtype)


def _reciprocal(values: Array) -> Array:
    """1 / values, and 0 for 0."""
    values = np.asarray(values, np.float64)
    result: Array = np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)
    return result


# Rows of edges: read from their ends, and summed at their destinations; each is a differentiable gather over lists.
# Layers whose messages depend on edge features use these. They take one row for each edge, as PyG does, and every row
# is written by one thread in one order.


def of_sources(block: Block, x: Tensor) -> Tensor:
    """[edges, width]: for each edge the row of its source."""
    return gather(source_reads(block), x)


def of_destinations(block: Block, x: Tensor) -> Tensor:
    """[edges, width]: for each edge the row of its destination; x may have further rows."""
    return gather(destination_reads(block), x)


def sum_of_edges(block: Block, rows: Tensor) -> Tensor:
    """[num_dst, width]: the sum over each whole list's edges, estimated from the block's."""
    return aggregate(edge_lists(block), rows, "sum")


def edge_features(block: Block, width: int) -> Tensor:
    """The edge features of the block, [edges, width]; an error where they have another width."""
    rows = block.edge_attr
    if rows is None or tuple(rows.shape) != (block.num_edges, width):
        has = "none" if rows is None else f"of shape {tuple(rows.shape)}"
        raise PenstockError(
            f"The layer reads {width} numbers of each of {block.num_edges:,} edges, and the block has edge_attr {has}:"
            " name the fields of the edges with edge_features.",
            code="shape-mismatch",
        )
    found: Tensor = rows
    return found
