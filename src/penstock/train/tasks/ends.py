"""What tasks on edges share: batches of edges, and exact rows of their ends."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.processes import ranges
from penstock.progress import Progress
from penstock.sampling.block import MiniBatch
from penstock.sampling.links import EdgeBatch, EdgeBatcher, share_of
from penstock.train.batch_source import BatchSource, EdgeTimes
from penstock.train.layerwise.inference import Inference
from penstock.train.tasks.task import Owners

_BLOCK_BYTES = 64 << 20
"""Bytes of one block of pairs that a head computes at a time."""
_ARRAYS = 8
"""Arrays as wide as a row that a head allocates for a pair."""

Rows = torch.Tensor | dict[str, torch.Tensor]
Share = Callable[[EdgeBatch], Array]
"""Which positive edges of a batch belong to this worker: their positions, ascending."""


class DrawnEdges:
    """What tasks on one relation's edges have in common: how they draw batches of them, alone or among workers."""

    batcher: EdgeBatcher
    _batches: BatchSource
    _share: Share | None
    """Where several workers train: this one's edges of a batch."""
    times: EdgeTimes | None = None
    """Where edges are sampled by time: theirs."""

    def sample(self, planned: Planned) -> Batch:
        return sample_ends(self.batcher, self._batches, planned, self._share, self.times)

    def examples(self, planned: Planned) -> Batch:
        batch = examples_of(self.batcher, planned, self._share)
        self.label(batch)
        return batch

    def label(self, batch: Batch) -> None:
        raise NotImplementedError

    def divided(self, planned: Planned, owners: Owners, world: int) -> list[Batch]:
        """Each worker has the edges that lead to its own vertices, with their negatives."""
        links = self.batcher.batch(planned.seeds, planned.key)
        ranks, found = owners(links.edge_type[2], links.destination), list[Batch]()
        for rank in range(world):
            share = share_of(links, np.flatnonzero(ranks == rank))
            found.append(MiniBatch(share.nodes, share.nodes, [], links=share))
        return found


def sample_ends(
    batcher: EdgeBatcher,
    batches: BatchSource,
    planned: Planned,
    share: Share | None = None,
    times: EdgeTimes | None = None,
) -> Batch:
    """A batch of edges and their ends' neighbourhoods, before their `times`, without the batch's edges."""
    links = examples_of(batcher, planned, share).links
    if times is None:
        batch = batches.sample(links.nodes, planned, exclude=links.exclude)
    else:
        placed = {} if links.places is None else {"places": links.places}
        seen = {"exclude": times.exclude(links), "times": times.limits(links.node_times)}
        batch = batches.sample(links.nodes, planned, **seen, **placed)
    batch.links = links
    return batch


def examples_of(batcher: EdgeBatcher, planned: Planned, share: Share | None = None) -> MiniBatch:
    """A batch of edges, or a share of it, without neighbourhoods."""
    links = batcher.batch(planned.seeds, planned.key)
    if share is not None:
        links = share_of(links, share(links))
    return MiniBatch(links.nodes, links.nodes, [], links=links)


def end_rows(out: Rows, kind: EdgeType, width: int, near: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's rows of both ends' types; empty ones where a worker's share of a batch has no edges."""
    if isinstance(out, torch.Tensor):
        return out, out
    none = torch.zeros(0, width, device=near.device, requires_grad=True)
    return out.get(kind[0], none), out.get(kind[2], none)


def mean_of_batch(
    losses: torch.Tensor, whole: int | torch.Tensor | None, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """The mean of losses, or a share's part of the `whole` batch's; `weights` are 0 for padding."""
    losses = losses if weights is None else losses * weights
    return losses.mean() if whole is None else losses.sum() / whole


def by_row(losses: torch.Tensor, rows: int) -> torch.Tensor:
    """Losses by row; where a user's function has returned their mean, that value for each row."""
    return losses.expand(rows) if losses.dim() == 0 else losses


def pair_bytes(pairs: int, width: int) -> int:
    """Approximate bytes that a head takes for so many pairs at once, with gradients."""
    return 4 * _ARRAYS * width * pairs


def pair_blocks(count: int, width: int) -> Iterator[slice]:
    """Slices that cover so many pairs, each as large as a head may compute with rows `width` wide."""
    size = max(1, _BLOCK_BYTES // pair_bytes(1, width))
    return (slice(start, stop) for start, stop in ranges(count, size))


def block_bytes(count: int, width: int) -> int:
    """Approximate bytes that a head takes for so many pairs in such blocks, without gradients: two arrays of each."""
    size = min(count, max(1, _BLOCK_BYTES // pair_bytes(1, width)))
    return 2 * 4 * width * size


EndRows = Callable[[EdgeBatch], tuple[torch.Tensor, torch.Tensor]]
"""The exact output rows of each edge's source, and of its destination."""


class RowsAtTimes:
    """`EndRows` where a vertex has another row for each time: the rows are computed for each batch."""

    def __init__(self, kind: EdgeType, inference: Inference, times: EdgeTimes) -> None:
        self._kind, self._inference, self._times = kind, inference, times
        inference.prepare_times()

    def of(self, links: EdgeBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute rows for the batch, each vertex at its time."""
        sources, destinations = self.of_vertices(links)
        return sources[torch.from_numpy(links.source_rows)], destinations[torch.from_numpy(links.destination_rows)]

    def of_vertices(self, links: EdgeBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows that the `_rows` arrays of the batch index: of the sources' type, and of the destinations'."""
        assert links.node_times is not None
        out = self._inference.at_times(links.nodes, self._times.limits(links.node_times))
        return out[self._kind[0]], out[self._kind[2]]


def end_rows_of(
    graph: Graph, kind: EdgeType, times: EdgeTimes | None, inference: Inference, progress: Progress
) -> EndRows:
    """Exact rows of the ends of a relation's edges, at the edges' times if the job is sampled by time."""
    if times is not None:
        return RowsAtTimes(kind, inference, times).of
    sources, destinations = all_rows(graph, kind, inference, progress)
    return lambda links: (sources[torch.from_numpy(links.source)], destinations[torch.from_numpy(links.destination)])


class RowsOfSome:
    """Rows of some vertices of a type, which stand for those of all: they are indexed by the vertices' numbers."""

    def __init__(self, vertices: Array, rows: torch.Tensor) -> None:
        """`vertices` ascend; row i is that of vertex i of them."""
        self._vertices, self._rows = torch.from_numpy(vertices), rows

    def __getitem__(self, numbers: torch.Tensor) -> torch.Tensor:
        return self._rows[torch.searchsorted(self._vertices, numbers)]


def rows_of_some(
    kind: EdgeType, sources: Array, destinations: Array, inference: Inference, progress: Progress
) -> tuple[RowsOfSome, RowsOfSome]:
    """Exact rows of some vertices at either end of a relation."""
    if kind[0] == kind[2]:
        sources = destinations = np.concatenate([sources, destinations])
    ends = {kind[0]: sources, kind[2]: destinations}
    wanted = {name: np.unique(numbers).astype(np.int64) for name, numbers in ends.items()}
    out = inference.outputs(wanted, progress)
    found = {name: RowsOfSome(wanted[name], out[name]) for name in wanted}
    return found[kind[0]], found[kind[2]]


def all_rows(graph: Graph, kind: EdgeType, inference: Inference, progress: Progress) -> tuple[Any, Any]:
    """Exact rows of every vertex of the sources' and of the destinations' type."""
    wanted = {name: np.arange(graph.nodes[name].count) for name in (kind[0], kind[2])}
    out = inference.outputs(wanted, progress)
    return out[kind[0]], out[kind[2]]
