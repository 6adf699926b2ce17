"""Exact outputs of a model over a partitioned graph: every worker computes vertices of its own parts, layer by layer.

Outputs of a layer are kept at their vertices' owners, where the next layer reads them. Between two layers the workers
wait for each other.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from penstock.cluster.layout import Layout
from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.inputs import PartedInputs
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.partition.owners import Book
from penstock.sampling import ALL, BatchKey
from penstock.sampling.block import unwrapping
from penstock.sampling.parts import parted_sampler
from penstock.store.parts import PartedStore
from penstock.train.batch_source import clock_for, layers_of
from penstock.train.layerwise.host import SHARE, followed_relations
from penstock.train.layerwise.inference import Chunk, GrowingChunks, Level, Sampled, VertexRange
from penstock.train.session import Session
from penstock.train.steps.group import RegroupError

# The vertices that each worker computes where rows of all vertices are computed: its share of its machine's parts.


def worker_ranges(layout: Layout, book: Book, node_type: str) -> Iterator[tuple[int, int, int]]:
    """(first, last, rank) of ranges of new numbers, ascending.

    A part is shared by the workers of its machine, or by all workers where its machine has none.
    """
    workers = layout.of_kind("worker")
    for part in range(book.parts):
        near = [task.rank for task in workers if part in task.parts] or [task.rank for task in workers]
        first, last = book.range(part, node_type)
        for place, rank in enumerate(near):
            count = last - first
            yield first + count * place // len(near), first + count * (place + 1) // len(near), rank


_FIRST = 256
"""Vertices of the first chunk; later ones are as large as the working memory allows."""
_ANY = BatchKey(0, 0, 0)


class InferenceGroup(Protocol):
    """The workers that compute together."""

    rank: int
    world: int

    def barrier(self, name: str) -> None:
        """Wait until all workers have arrived."""

    def holds(self) -> bool:
        """Whether all workers are still there, and nothing that they share was lost."""


class PartedPlan:
    """The `LayerPlan` of a worker: its share of its machine's parts. Vertices are requested by original number, and
    computed by new one.
    """

    computes_every_vertex = True

    def __init__(self, session: Session, parts: Parts, workers: InferenceGroup, name: str) -> None:
        """`name` distinguishes the fields of this inference from those of others."""
        self._session, self._parts, self._workers, self._name = session, parts, workers, name
        self._inputs, self._graph, self._job = session.inputs, session.graph, session.job
        self.first = self.pull = session.inputs.pull
        self._budget = (session.job.inference_mb << 20) // SHARE
        self._clock = clock_for(session.job, session.graph)
        self._followed = followed_relations(session.graph, session.job.fanouts, layers_of(session.job))
        self._shared, self._hops, self._types = 0, list[list[EdgeType]](), list[list[str]]()

    @property
    def by_layers(self) -> bool:
        """As on one machine: False with times, where a vertex has another value for each seed."""
        return self._clock is None

    @contextmanager
    def running(self) -> Iterator[None]:
        """A restarted task has lost rows that others read: then the round is over, and everything is repeated."""
        try:
            yield
        except PenstockError as error:
            if self._workers.holds():
                raise
            raise RegroupError(str(error)) from error

    def start(self, wanted: dict[str, Array], computed: int, layers: int) -> int:
        """If the weights were restored, the owners' embeddings are restored too before any worker reads them."""
        assert isinstance(self._inputs, PartedInputs)
        if self._inputs.tables:
            self._inputs.settle()
            self._workers.barrier(f"settled-{self._name}")
        followed = [self._followed[min(place, len(self._followed) - 1)] for place in range(layers)]
        self._hops = followed[::-1][:computed]
        self._types = self._needed_types(list(wanted))
        return sum(last - first for types in self._types for name in types for first, last in self._ranges(name))

    def chunks(self, number: int) -> Iterator[Sampled]:
        """Ranges of this worker's vertices, as many at a time as the working memory holds."""
        sample = self._sampler([self._hops[number]])
        for name in self._types[number]:
            for first, last in self._ranges(name):
                yield from self._grower().over(Chunk(name, VertexRange(first, last), first), sample)

    def level(self, number: int) -> Level:
        """Storage at the owners of the vertices."""
        return PartedLevel(self._parts.store, f"level-{self._name}-{number}", self._inputs.device)

    def finish_layer(self, number: int) -> None:
        """A barrier: the next layer reads what others write."""
        self._workers.barrier(f"level-{self._name}-{number}")

    def finish(self) -> None:
        """Wait until no worker reads this one's rows any more."""
        self._workers.barrier(f"read-{self._name}")
        if self._workers.rank == 0:
            for name in self._graph.nodes:
                for number in range(len(self._hops)):
                    self._parts.store.drop(f"{name}/level-{self._name}-{number}")

    def ids(self, node_type: str, rows: Array) -> Array:
        """Vertices in the numbering of the cut graph."""
        return self._parts.partition.new_ids(rows, node_type)

    def neighbourhoods(self, node_type: str, rows: Array, times: Array | None = None) -> Iterator[Sampled]:
        """The neighbourhoods of this worker's share of the requested vertices; times of seeds are
        by original number.
        """
        if times is None and self._clock is not None:
            times = self._clock.of(node_type)[rows]
        whole = Chunk(node_type, self.ids(node_type, rows), 0, times)
        return self._grower(_FIRST if times is None else 1).over(whole, self._sampler(self._followed))

    def joined(self, count: int, compute: Callable[[slice], list[torch.Tensor]]) -> torch.Tensor:
        """Rows are exchanged as float32; a worker without any sends an empty array of the task's width."""

        def own(some: slice) -> Array:
            found = [rows.float().cpu().numpy() for rows in compute(some)]
            return np.concatenate(found) if found else np.empty((0, self._session.task.out), np.float32)

        return torch.from_numpy(self.in_parts(count, own)).to(self._inputs.device)

    def in_parts(self, count: int, compute: Callable[[slice], Array]) -> Array:
        """`compute` over ranges of `count` items, one row each: every worker computes some, and gets all."""
        self._shared += 1
        name, rank, world = f"{self._name}-{self._shared}", self._workers.rank, self._workers.world
        with self.running():
            bounds = [count * each // world for each in range(world + 1)]
            own = compute(slice(bounds[rank], bounds[rank + 1]))
            if world == 1:
                return own
            exchange = self._parts.exchange
            exchange.keep(name, own)
            self._workers.barrier(f"kept-{name}")
            found = exchange.joined(name, np.diff(bounds).tolist())
            self._workers.barrier(f"had-{name}")
            exchange.forget(name)
            return found

    def _needed_types(self, wanted: list[str]) -> list[list[str]]:
        """For every layer that is computed, the node types whose outputs are needed."""
        needed = [wanted]
        for kinds in self._hops[:0:-1]:
            read = {kind[0] for kind in kinds if kind[2] in needed[0]}
            needed.insert(0, [name for name in self._graph.nodes if name in read or name in needed[0]])
        return needed[: len(self._hops)]

    def _grower(self, size: int = _FIRST) -> GrowingChunks:
        width = max(*self._inputs.widths.values(), self._job.hidden)

        def load(sampled: Sampled) -> int:
            edges: int = sampled.blocks[0].num_edges
            return 4 * width * sampled.num_inputs + 16 * edges

        return GrowingChunks(size, self._budget, load)

    def _sampler(self, hops: list[list[EdgeType]]) -> Callable[[Chunk], Sampled]:
        """A sampler of whole lists, over some hops."""
        graph, of_sampler = self._graph, unwrapping(self._graph)
        sampler: Any = parted_sampler(
            self._parts.partition,
            [ALL if len(hop) == len(graph.edges) else dict.fromkeys(hop, ALL) for hop in hops],
            weight=self._session.list_weight,
            totals=True,
            edges=bool(self._inputs.exact_edges),
            time=self._job.time,
            local=self._parts.owned,
            channels=self._parts.lists,
            absent=self._parts.absent,
            vertex_times=self._parts.vertex_times(self._job.time),
            edge_times=self._parts.edge_times(self._job.time),
            ages=self._job.time_width > 0,
        )

        def sample(chunk: Chunk) -> Sampled:
            times = None if chunk.times is None else of_sampler({chunk.node_type: chunk.times})
            batch = sampler.sample(of_sampler({chunk.node_type: chunk.rows}), _ANY, times=times)
            return Sampled(chunk, batch.blocks, batch.vertices)

        return sample

    def _ranges(self, name: str) -> Iterator[tuple[int, int]]:
        """New numbers of this worker's vertices, as ranges."""
        for first, last, rank in worker_ranges(self._parts.member.setup.layout, self._parts.partition.book, name):
            if rank == self._workers.rank:
                yield first, last


class PartedLevel:
    """The outputs of one layer at the owners of their vertices, as a field made for it, by new number."""

    def __init__(self, store: PartedStore, name: str, device: torch.device) -> None:
        self._store, self._name, self._device = store, name, device
        self._made: set[str] = set()

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        """Send the outputs of a chunk to their owners."""
        field = f"{chunk.node_type}/{self._name}"
        if field not in self._made:
            self._store.make(field, out.shape[1])
            self._made.add(field)
        self._store.push(field, chunk.rows, out.detach().float().cpu().numpy())

    def fetch(self, node_type: str, ids: Array) -> torch.Tensor:
        rows: torch.Tensor = self._store.source(f"{node_type}/{self._name}").read(ids, self._device)
        return rows
