"""What batches read of other machines, counted in batches that are drawn before a run.

Batches are drawn from the whole graph with the sampler's own code and shared among workers as in a run: seeds ordered
by part, in equal ranges. Counted are different remote rows of a batch, those of them that a cache would have, and the
neighbour lists of remote vertices; and the same for sampler explained with all remote vertices alike, as nothing has
been explained yet. That sampler reads fewer rows than its bias alone would tell: all lists of a hop see the same random
number of a vertex and so agree on whom to take.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.pipeline.schedule import Planned, Schedule
from penstock.sampling import Block, MiniBatch, NeighbourSampler
from penstock.sampling.explained.unscored_lists import CutNumbers, UnscoredLists
from penstock.sampling.local_source import LocalSource
from penstock.sampling.options import SamplerOptions
from penstock.sampling.parts.shared_sampler import share_of
from penstock.sampling.registry import SamplerSettings, layer_count, plain_fanouts, sampler_entry

_LEARNED = 16
"""Batches from which a worker learns which rows it reads most, as in a run."""
_COUNTED = 8
"""Batches after these, in which reads are counted."""


@dataclass(frozen=True)
class RemoteReads:
    """What a batch reads of other machines, all workers added up, in the mean over some batches."""

    rows: float
    """Different remote rows of each worker."""
    cache_hits: float
    """Of these, rows that are in the workers' caches."""
    lists: float
    """Lists of remote vertices that are drawn from, at all hops."""
    edges: float
    """Edges drawn from them."""
    readers: float
    """Remote vertices whose lists are drawn from at the last hop."""
    halos: tuple[int, ...]
    """Of every worker, the remote vertices that the lists of its machine's part name."""


WorkerBatches = list[MiniBatch[Block] | None]
"""The share of one batch that each worker has; None: no seed of it."""


class CountedBatches:
    """Batches of a job on a graph of one type, where worker r is on the machine with part `seats[r]`."""

    def __init__(self, graph: Graph, job: Mapping[str, Any], part_of: Array, seats: Sequence[int]) -> None:
        (nodes,), self._graph, self._part_of, self._seats = graph.nodes.values(), graph, part_of, seats
        given = nodes.splits.get("train", ())
        train = np.asarray(given if len(given) else np.arange(nodes.count))
        fields = {name: job[name] for name in SamplerOptions.model_fields if name in job}
        self._options = SamplerOptions.model_validate(fields)
        self._entry, layers = sampler_entry(self._options.sampler), layer_count(self._options, job.get("layers") or 0)
        self._sampler = self._entry.build(
            LocalSource(graph, train), SamplerSettings(self._options, layers, 0, totals=False)
        )
        size = int(job.get("batch_size") or 1024)
        if self._entry.items_per_batch is not None:
            train, size = self._sampler.items, self._entry.items_per_batch(self._options)
        elif self._entry.batches_per_epoch is not None:
            size = max(1, -(-len(train) // self._entry.batches_per_epoch(self._options)))
        self._schedule = Schedule(train, size, 0)
        self._halos = tuple(_halo(graph, part_of, seat) for seat in seats)

    def plain(self, cached: float) -> RemoteReads:
        """Reads of the job's own sampler, where each worker's cache has room for a share of its halo's rows."""
        learned: list[list[Array]] = [[np.empty(0, np.int64)] for _ in self._seats]
        for batches in map(self._drawn, self._planned(0, _LEARNED)):
            for rank, rows in self._far_rows(batches):
                learned[rank].append(rows)
        kept = [_most_read(rows, round(cached * halo)) for rows, halo in zip(learned, self._halos, strict=True)]
        return self._counted(map(self._drawn, self._planned(_LEARNED, _COUNTED)), kept)

    def explained(self, bias: float) -> RemoteReads:
        """Reads of sampler explained with this `remote_bias`, before anything is explained; without a cache."""
        ((kind, edges),) = self._graph.edges.items()
        numbers = CutNumbers(self._part_of, 1 + int(self._part_of.max(initial=0)))
        plain = NeighbourSampler(self._graph, plain_fanouts(self._options))
        samplers = [plain.drawing_from({kind: UnscoredLists(edges, numbers, seat, bias)}) for seat in self._seats]

        def drawn(planned: Planned) -> WorkerBatches:
            shares = zip(samplers, self._shares(planned.seeds), strict=True)
            return [each.sample(planned.seeds[mine], planned.key) if len(mine) else None for each, mine in shares]

        return self._counted(map(drawn, self._planned(_LEARNED, _COUNTED)), [np.empty(0, np.int64)] * len(samplers))

    def _planned(self, first: int, count: int) -> Iterator[Planned]:
        return islice(self._schedule.from_position(), first, first + count)

    def _drawn(self, planned: Planned) -> WorkerBatches:
        """Every worker's share of a batch, as the job's sampler draws it."""
        if self._entry.joint:
            whole = self._sampler.sample(planned.seeds, planned.key)
            shares = self._shares(whole.seeds[whole.node_type])
            return [share_of(whole, mine) if len(mine) else None for mine in shares]
        seeds = planned.seeds
        return [
            self._sampler.sample(seeds[mine], planned.key) if len(mine) else None
            for mine in self._shares(planned.seeds)
        ]

    def _shares(self, seeds: Array) -> list[Array]:
        """The places of each worker's seeds."""
        ordered, workers = np.lexsort((seeds, self._part_of[seeds])), len(self._seats)
        ends = [round(rank * len(seeds) / workers) for rank in range(workers + 1)]
        return [ordered[first:last] for first, last in pairwise(ends)]

    def _far_rows(self, batches: WorkerBatches) -> Iterator[tuple[int, Array]]:
        """The remote vertices of each worker that has a share."""
        for rank, batch in enumerate(batches):
            if batch is not None:
                vertices = batch.vertices[batch.node_type]
                yield rank, vertices[self._part_of[vertices] != self._seats[rank]]

    def _counted(self, drawn: Iterator[WorkerBatches], kept: Sequence[Array]) -> RemoteReads:
        found = np.zeros(5)
        for batches in drawn:
            for rank, rows in self._far_rows(batches):
                batch = batches[rank]
                assert batch is not None
                found += len(rows), np.isin(rows, kept[rank]).sum(), *self._lists(batch, self._seats[rank])
        rows, hits, lists, edges, readers = (found / _COUNTED).tolist()
        return RemoteReads(rows, hits, lists, edges, readers, self._halos)

    def _lists(self, batch: MiniBatch[Block], seat: int) -> tuple[int, int, int]:
        """Lists of remote vertices, edges drawn from them, and those of the lists that the last hop draws from."""
        far = self._part_of[batch.vertices[batch.node_type]] != seat
        asked = [far[: block.num_dst] for block in batch.blocks]
        edges = sum(int(np.diff(block.indptr)[mine].sum()) for block, mine in zip(batch.blocks, asked, strict=True))
        return sum(int(mine.sum()) for mine in asked), edges, int(asked[0].sum())


def _most_read(rows: Sequence[Array], count: int) -> Array:
    """The `count` rows that are read most."""
    ids, reads = np.unique(np.concatenate(rows), return_counts=True)
    return np.asarray(ids[np.argsort(-reads, kind="stable")[:count]])


def _halo(graph: Graph, part_of: Array, part: int) -> int:
    """How many vertices of other parts the lists of a part name."""
    (edges,) = graph.edges.values()
    members, named = np.flatnonzero(part_of == part), np.zeros(graph.num_nodes, np.bool_)
    first, lengths = edges.indptr[:-1][members], edges.indptr[1:][members] - edges.indptr[:-1][members]
    offsets = np.cumsum(lengths) - lengths
    named[edges.indices[np.arange(int(lengths.sum())) + np.repeat(first - offsets, lengths)]] = True
    return int((named & (part_of != part)).sum())
