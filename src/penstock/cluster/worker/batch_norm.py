"""Batch normalisation of a batch that several workers share: which rows of a layer others compute too.

Before a batch is computed the workers exchange the vertices of its layers. That is 8 bytes per row of the largest
normalised layer, little compared with the features of the neighbours that the layer reads.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from penstock.cluster.worker.collectives import CollectiveGroup
from penstock.graph.arrays import Array
from penstock.nn.norm import RowShares, SharedBatch
from penstock.pipeline.stages import Batch
from penstock.sampling.lists import HashedRows
from penstock.train.session import Session

Sizes = list[tuple[str, int]]
"""The type and the rows of every normalisation of a batch, in the order in which the model makes them."""


def shared_batch(session: Session, batch: Batch, group: CollectiveGroup, rank: int) -> SharedBatch | None:
    """What the normalisations of a batch need to know about the other workers; None: the model has none."""
    find_sizes: Any = getattr(session.model, "normalised_rows", None)
    sizes: Sizes = [] if find_sizes is None else find_sizes(batch.blocks)
    if not sizes:
        return None
    # With sampling by time every seed has its own tree, whose rows no other worker computes.
    apart = session.job.time is not None
    told = [np.array([rows for _, rows in sizes], np.int64), *([] if apart else _vertices(batch, sizes))]
    own = torch.from_numpy(np.concatenate(told)).to(group.device)
    parts, device = [part.cpu().numpy() for part in group.gather(own)], session.inputs.device
    shares = _apart(parts, sizes) if apart else _by_vertex(parts, [name for name, _ in sizes], rank)
    return SharedBatch([RowShares(torch.from_numpy(w).to(device), total) for w, total in shares], summing(group))


def summing(group: CollectiveGroup) -> Callable[[torch.Tensor], None]:
    """The group's sum, for tensors on any device."""

    def add(numbers: torch.Tensor) -> None:
        near = numbers.to(group.device)
        group.sum(near)
        if near is not numbers:
            numbers.copy_(near)

    return add


def _vertices(batch: Batch, sizes: Sizes) -> list[Array]:
    """The vertices of the largest layer of every normalised type; rows of the other layers are prefixes of it."""
    inputs: dict[str, Any] = dict(batch.vertices)
    if len(inputs) == 1:
        # A model of one type need not know the type's name.
        inputs = dict.fromkeys((name for name, _ in sizes), next(iter(inputs.values())))
    largest = _largest([name for name, _ in sizes], [rows for _, rows in sizes])
    return [np.asarray(inputs[name][:rows], np.int64) if rows else np.empty(0, np.int64) for name, rows in largest]


def _apart(parts: Sequence[Array], sizes: Sizes) -> list[tuple[Array, int]]:
    totals = np.sum(parts, axis=0).tolist()
    return [(np.ones(rows), total) for (_, rows), total in zip(sizes, totals, strict=True)]


def _by_vertex(parts: Sequence[Array], names: Sequence[str], rank: int) -> list[tuple[Array, int]]:
    """For every normalisation the weights of this worker's rows, and the number of different rows of all workers."""
    sizes = [part[: len(names)] for part in parts]
    numbered = _numbered(parts, names)
    found = []
    for place, name in enumerate(names):
        rows, known = numbered[name]
        workers = np.zeros(known, np.int64)
        for these, size in zip(rows, sizes, strict=True):
            workers[these[: size[place]]] += 1
        found.append((1.0 / workers[rows[rank][: sizes[rank][place]]], int(np.count_nonzero(workers))))
    return found


def _numbered(parts: Sequence[Array], names: Sequence[str]) -> dict[str, tuple[list[Array], int]]:
    """Every worker's vertices by type, numbered so that the same vertex has the same number; and how many there are."""
    starts = [len(names)] * len(parts)
    lengths = [dict(_largest(names, part[: len(names)].tolist())) for part in parts]
    found = {}
    for name in lengths[0]:
        table, rows = HashedRows(np.dtype(np.int64)), []
        for worker, part in enumerate(parts):
            first, starts[worker] = starts[worker], starts[worker] + lengths[worker][name]
            rows.append(table.number_these(part[first : starts[worker]]))
        found[name] = rows, table.known
    return found


def _largest(names: Sequence[str], rows: Sequence[int]) -> list[tuple[str, int]]:
    """The types in order of first appearance, with the rows of the largest layer of each."""
    largest = dict.fromkeys(names, 0)
    for name, amount in zip(names, rows, strict=True):
        largest[name] = max(largest[name], amount)
    return list(largest.items())
