"""The small graph that represents a worker's parts, and the masks of its remote rows and columns.

For every node type all local vertices are pooled into one, whose row is their mean. It is linked with every remote
vertex in both directions, by every relation that joins their types, and with the pooled vertices. A mask over remote
vertices and one over columns for every node type are found such that the model's prediction for the pooled vertex of
the target type is preserved. A remote row under masks m (its own) and f (of columns) is m (f x + (1 - f) mean): a
column that does not matter is replaced by the mean, as when it is not sent.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.explain import Mask, MaskOptions, optimise_masks, target_of
from penstock.explain.mask_optimiser import Masks, Output
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.sampling.block import Block

# The rows of an explanation graph under masks, differentiable by the masks, in one pass each way.
#
# Row 0 is the pooled vertex's, which is the mean of the local rows. A remote row x under masks m (its own) and f (of
# columns) is m (f x + (1 - f) mean).


def masked_rows(mean: Tensor, remote: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """[1 + remote rows, width] of the masks `rows` and `columns`."""
    result: Tensor = cast(Any, _MaskedRows).apply(rows, columns, mean, remote)
    return result


class _MaskedRows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, columns: Tensor, mean: Tensor, remote: Tensor) -> Tensor:
        m, f, local, x = (each.detach().numpy() for each in (rows, columns, mean, remote))
        context.given = m, f, local, x
        out = np.empty((1 + len(x), len(local)), x.dtype)
        _mask(m, f, local, x, out)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rows, columns, mean, remote = context.given
        by_rows, by_columns = np.empty_like(rows), np.zeros_like(columns)
        _differentiate(rows, columns, mean, remote, gradient.contiguous().numpy(), by_rows, by_columns)
        return torch.from_numpy(by_rows), torch.from_numpy(by_columns), None, None


@njit(nogil=True, cache=True)
def _mask(rows: Array, columns: Array, mean: Array, remote: Array, out: Array) -> None:
    width = mean.shape[0]
    for k in range(width):
        out[0, k] = mean[k]
    for i in range(rows.shape[0]):
        for k in range(width):
            out[i + 1, k] = rows[i] * (mean[k] + columns[k] * (remote[i, k] - mean[k]))


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _differentiate(
    rows: Array, columns: Array, mean: Array, remote: Array, gradient: Array, by_rows: Array, by_columns: Array
) -> None:
    width = mean.shape[0]
    for i in range(rows.shape[0]):
        total = mean.dtype.type(0)
        for k in range(width):
            apart = remote[i, k] - mean[k]
            total += gradient[i + 1, k] * (mean[k] + columns[k] * apart)
            by_columns[k] += gradient[i + 1, k] * rows[i] * apart
        by_rows[i] = total


_ROWS = {"size": 0.5, "size_of": "mean", "entropy": 1.0}
"""GNNExplainer's weight of 0.005 for each of a hundred edges, whatever the number of rows: the prediction's share
shrinks too.
"""
_COLUMNS = {"size": 1.0, "size_of": "mean", "entropy": 0.1}


class PooledRows(NamedTuple):
    """Of one node type: the mean of the local rows, and the remote rows that are explained."""

    mean: torch.Tensor
    remote: torch.Tensor


class FoundRowMasks(NamedTuple):
    """For one node type: a value for each remote row and one for each column."""

    rows: Array
    columns: Array


Encode = Callable[[list[Block], dict[str, torch.Tensor]], torch.Tensor]
"""The model on blocks and rows by node type; the outputs of the target type's rows."""


def explained_masks(
    encode: Encode,
    rows: Mapping[str, PooledRows],
    edge_types: list[EdgeType],
    target: str,
    layers: int,
    output: Output,
    options: MaskOptions,
    seed: int,
    beat: Callable[[], None] = lambda: None,
) -> dict[str, FoundRowMasks]:
    """The masks by node type; `beat` is called before every pass through the model."""
    counts = {name: len(each.remote) for name, each in rows.items()}
    blocks = star_blocks(counts, edge_types, target, layers)

    def forward(masks: Masks) -> torch.Tensor:
        beat()
        return encode(blocks, {name: _masked(each, masks, name) for name, each in rows.items()})

    whole = {f"rows {name}": torch.ones(count) for name, count in counts.items()}
    whole |= {f"columns {name}": torch.ones_like(each.mean) for name, each in rows.items()}
    with torch.no_grad():
        wanted = target_of(forward(whole), output)
    masks = {
        **{f"rows {name}": Mask((count,), **_ROWS) for name, count in counts.items()},  # type: ignore[arg-type]
        **{f"columns {name}": Mask(tuple(each.mean.shape), **_COLUMNS) for name, each in rows.items()},  # type: ignore[arg-type]
    }
    found = optimise_masks(forward, wanted, masks, options, seed).values
    return {name: FoundRowMasks(found[f"rows {name}"].numpy(), found[f"columns {name}"].numpy()) for name in rows}


def star_blocks(counts: Mapping[str, int], edge_types: list[EdgeType], target: str, layers: int) -> list[Block]:
    """Blocks of all layers over a pooled vertex, row 0, and `counts` remote ones by type; the last computes one row."""
    every = {name: 1 + count for name, count in counts.items()}
    if len(counts) == 1 and len(edge_types) == 1:
        whole, last = (_star(edge_types[0], every, {target: rows}) for rows in (every[target], 1))
        return [whole] * (layers - 1) + [last]
    inner = [Block.of_relations({kind: _star(kind, every, every) for kind in edge_types}, every, every)] * (layers - 1)
    end = {name: int(name == target) for name in every}
    leading = [kind for kind in edge_types if kind[2] == target]
    return [*inner, Block.of_relations({kind: _star(kind, every, end) for kind in leading}, every, end)]


def _star(kind: EdgeType, rows: Mapping[str, int], computed: Mapping[str, int]) -> Block:
    """The lists of the first `computed` rows: the pooled vertex reads all sources, all others the pooled source."""
    sources = rows[kind[0]]
    lengths = np.ones(rows[kind[2]], np.int64)
    lengths[0] = sources
    end = computed[kind[2]]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[:end])])
    indices = np.zeros(indptr[-1], np.int32)
    indices[:sources] = np.arange(sources)
    return Block(indptr, indices, sources, None, _totals(kind, lengths, sources))


def _totals(kind: EdgeType, lengths: Array, sources: int) -> Array:
    """Lengths of whole lists of the destination type's rows, as many as a layer may need."""
    totals = lengths.astype(np.float32)
    if kind[0] == kind[2]:
        return totals
    more = max(0, sources - len(totals))
    return np.concatenate([totals, np.ones(more, np.float32)])


def _masked(rows: PooledRows, masks: Masks, name: str) -> torch.Tensor:
    return masked_rows(rows.mean, rows.remote, masks[f"rows {name}"], masks[f"columns {name}"])
