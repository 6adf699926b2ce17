"""Exact outputs of a model: whole neighbourhoods, layer by layer, in bounded memory.

Each layer is computed for every vertex that the next one reads, in chunks whose working memory is bounded; a vertex is
computed once per layer however many neighbours read it. Models that are not made of layers are given the whole
neighbourhoods of a few vertices at a time instead.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, passing_rows
from penstock.graph.data import EdgeSet
from penstock.graph.folder import Graph
from penstock.kernels import njit
from penstock.pipeline.batch_rows import NO_EDGE_ROWS, BufferPool, EdgeRows
from penstock.pipeline.stages import Stage, StageError, StagePipeline
from penstock.progress import SILENT, Progress
from penstock.sampling.block import unwrapping
from penstock.sampling.device.block import block_on
from penstock.store.source import ArraySource
from penstock.traced import is_gpu
from penstock.train.dataset.inputs import Inputs, roomy_rows
from penstock.train.run_context import INFERENCE, device_memory

# Vertices cut into chunks whose inputs fit the working memory.

_PIECES = 8
"""A chunk grows by pieces that fill at most one in this many parts of the room."""


class VertexRange:
    """The vertices from `first` to `last` - 1, as arrays that are made when slices are asked for."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._count = first, last - first

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, some: slice) -> Array:
        start, stop, _ = some.indices(self._count)
        return np.arange(self._first + start, self._first + stop)


class Chunk(NamedTuple):
    """Vertices of a type, from `start` in the list they were cut from; `times`: until when each sees the graph.

    A `VertexRange` is cut before its vertices are read.
    """

    node_type: str
    rows: Any
    start: int
    times: Array | None = None

    def part(self, first: int, count: int) -> "Chunk":
        """The chunk of `count` of its vertices from `first` on."""
        some = slice(first, first + count)
        times = None if self.times is None else self.times[some]
        return Chunk(self.node_type, self.rows[some], self.start + first, times)


class Sampled(NamedTuple):
    """A chunk with its vertices' whole lists: blocks, outermost first, and the vertices they read, by type."""

    chunk: Chunk
    blocks: list[Any]
    inputs: dict[str, Array]

    @property
    def num_inputs(self) -> int:
        """The number of vertices whose rows are read."""
        return sum(map(len, self.inputs.values()))


class GrowingChunks:
    """Cuts chunks whose size is known only after sampling: as many vertices as fit the room, at least one.

    Chunks begin with `size` vertices, double while they take half the room or less, and are halved when they take more.
    """

    def __init__(self, size: int, room: int, load: Callable[[Sampled], int]) -> None:
        self._size, self._room, self._load = size, room, load

    def over(self, whole: Chunk, sample: Callable[[Chunk], Sampled]) -> Iterator[Sampled]:
        """Cover all vertices of a chunk by smaller ones that fit."""
        start = 0
        while start < len(whole.rows):
            sampled = sample(whole.part(start, self._size))
            count, load = len(sampled.chunk.rows), self._load(sampled)
            if load > self._room and count > 1:
                self._size = count // 2
                continue
            yield sampled
            start += count
            if 2 * load <= self._room:
                self._size *= 2


def cut_into_chunks(graph: Graph, rows: dict[str, Array], room: int, most_edges: int) -> Iterator[Chunk]:
    """Chunks of `rows` (ascending numbers by type) that read at most `room` different vertices and `most_edges` edges.

    Neighbours that several rows of a chunk share are counted once. A vertex with more neighbours is a chunk by itself.
    """
    seen = {name: np.full(nodes.count, -1, np.int32) for name, nodes in graph.nodes.items()}
    number = 0
    for name, numbers in rows.items():
        into = [(kind[0], edges) for kind, edges in graph.edges.items() if kind[2] == name]
        start, stop, read, edges = 0, 0, 0, 0
        for end, load in _pieces(numbers, into, max(1, room // _PIECES)):
            more = _stamp(numbers[stop:end], name, into, seen, number)
            if stop > start and (read + more > room or edges + load > most_edges):
                yield Chunk(name, numbers[start:stop], start)
                start, read, edges, number = stop, 0, 0, number + 1
                more = _stamp(numbers[stop:end], name, into, seen, number)
            stop, read, edges = end, read + more, edges + load
        if stop > start:
            yield Chunk(name, numbers[start:stop], start)
            number += 1


def _pieces(numbers: Array, into: list[tuple[str, EdgeSet]], room: int) -> Iterator[tuple[int, int]]:
    """Pieces that read at most `room` vertices, or are one row, as (end, rows and edges)."""
    load = np.ones(len(numbers), np.int64)
    for _, edges in into:
        load += edges.indptr[numbers + 1] - edges.indptr[numbers]
    ends = np.cumsum(load)
    start, done = 0, 0
    while start < len(numbers):
        start = max(start + 1, int(np.searchsorted(ends, done + room, "right")))
        yield start, int(ends[start - 1]) - done
        done = int(ends[start - 1])


def _stamp(rows: Array, name: str, into: list[tuple[str, EdgeSet]], seen: dict[str, Array], number: int) -> int:
    """Mark the vertices that the rows read; returns how many are new to the chunk."""
    new = _stamp_rows(rows, seen[name], number)
    for source, edges in into:
        new += _stamp_sources(edges.indptr, edges.indices, rows, seen[source], number)
    return int(new)


@njit(nogil=True, cache=True)
def _stamp_rows(rows: Array, seen: Array, number: int) -> int:
    new = 0
    for row in rows:
        new += seen[row] != number
        seen[row] = number
    return new


@njit(nogil=True, cache=True)
def _stamp_sources(indptr: Array, indices: Array, rows: Array, seen: Array, number: int) -> int:
    new = 0
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            new += seen[indices[k]] != number
            seen[indices[k]] = number
    return new


# The outputs of one layer, which the next one reads: in memory or in a file.


class Level(Protocol):
    """The outputs of one layer, which the next layer reads."""

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        """Store the outputs of a chunk."""

    def fetch(self, node_type: str, ids: Array) -> torch.Tensor:
        """The outputs of some vertices, all of which have been computed, on the device that computes."""


class HostLevel:
    """The outputs of some rows of every type in the host's memory, or in a file in `folder` when they are large."""

    def __init__(
        self,
        rows: dict[str, Array],
        in_memory: int,
        folder: Path,
        device: torch.device,
        most: int,
        pool: BufferPool,
    ) -> None:
        """`most`: rows that the next layer reads for a chunk, at most, into buffers of `pool`."""
        self.rows, self.values, self._in_memory, self._folder = rows, dict[str, Array](), in_memory, folder
        self._device, self._most, self._pool = device, most, pool

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        if chunk.node_type not in self.values:
            self.values[chunk.node_type] = self._room((len(self.rows[chunk.node_type]), out.shape[1]))
        self.values[chunk.node_type][chunk.start : chunk.start + len(out)] = out.detach().float().cpu().numpy()

    def fetch(self, node_type: str, ids: Array) -> torch.Tensor:
        rows = self.rows[node_type]
        places = ids if len(rows) and rows[-1] == len(rows) - 1 else np.searchsorted(rows, ids)
        values = self.values[node_type]
        return roomy_rows(ArraySource(values), places, min(self._most, len(values)), self._pool).to(self._device)

    def _room(self, shape: tuple[int, int]) -> Array:
        if shape[0] * shape[1] * 4 <= self._in_memory:
            return np.empty(shape, np.float32)
        return passing_rows(shape, 0, self._folder, what="Exact inference", mend=", or lower hidden")


# What differs between computing alone, on a device and among workers: which chunks, and where rows are kept.


class LayerPlan(Protocol):
    """Which chunks this process computes, where the rows between two layers are kept, and where processes wait for each
    other.
    """

    @property
    def by_layers(self) -> bool:
        """Whether a vertex has one value for all its readers; not so where values depend on a seed's time."""

    @property
    def computes_every_vertex(self) -> bool:
        """Whether layers compute every vertex, whichever are asked for."""

    def running(self) -> AbstractContextManager[None]:
        """A context around everything that is computed for one request of outputs."""

    def start(self, wanted: dict[str, Array], computed: int, layers: int) -> int:
        """Called before the first of `computed` layers, of a model with `layers`; returns how many vertices are
        computed here.
        """

    def first(self, node_type: str, ids: Array) -> Any:
        """The rows that the first layer reads of some vertices."""

    def chunks(self, number: int) -> Iterator[Sampled]:
        """This process's chunks of a layer, each with its vertices' whole lists."""

    def level(self, number: int) -> Level:
        """Storage for a layer's rows."""

    def finish_layer(self, number: int) -> None:
        """Called when all chunks of this process are written; returns when those of every process are."""

    def finish(self) -> None:
        """Release the layers' rows once no process reads them."""

    def ids(self, node_type: str, rows: Array) -> Array:
        """The numbers under which levels and inputs store some vertices."""

    def neighbourhoods(self, node_type: str, rows: Array, times: Array | None = None) -> Iterator[Sampled]:
        """Vertices in chunks with their whole neighbourhoods, until their own or the given `times`."""

    def pull(self, node_type: str, ids: Array) -> Any:
        """The features that such a chunk reads."""

    def joined(self, count: int, compute: Callable[[slice], list[torch.Tensor]]) -> torch.Tensor:
        """`compute` over `count` vertices, in pieces: every process computes some, and all get the whole."""

    def in_parts(self, count: int, compute: Callable[[slice], Array]) -> Array:
        """`compute` over `count` items, one row each: every process computes some, and all get the whole."""


# One layer of a model over chunks of vertices, from a source of rows to a sink of rows.

Fetch = Callable[[str, Array], Any]
"""The rows of some vertices of a type, on the device that computes: tensors, or a table's rows in place."""


class RowSink(Protocol):
    """Stores the rows that a layer computes."""

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        """Store the rows of a chunk."""


class ChunkPass(NamedTuple):
    """What a layer read and computed for one chunk: enough for its backward pass, at once or after recomputing."""

    chunk: Chunk
    block: Any
    inputs: dict[str, Array]
    """The vertices whose rows were read, by type."""
    x: dict[str, Any]
    """Their rows as the source gave them: leaf tensors of autograd where gradients are enabled."""
    out: torch.Tensor


class LayerEngine:
    """Computes one layer of a model at a time. `typed`: rows are dictionaries by node type. `edges`
    reads edge fields.
    """

    def __init__(
        self, model: torch.nn.Module, device: torch.device, typed: bool, edges: EdgeRows = NO_EDGE_ROWS
    ) -> None:
        self._model: Any = model
        self._device, self._typed, self.edges = device, typed, edges

    def run(
        self,
        number: int,
        chunks: Iterator[Sampled],
        source: Fetch,
        sink: RowSink,
        keep: Callable[[ChunkPass], None] | None = None,
    ) -> None:
        """Compute layer `number` for all chunks; the first one includes what the model does before its layers.

        `keep` is called after each chunk, in order, with what a backward pass needs. Gradients are recorded if the
        caller has enabled them, within a chunk and not across: the rows between two layers are detached.
        """
        # A source has no rows of types that no vertex reads.
        for sampled, x in self.read(chunks, source, skip_empty=True):
            if torch.is_grad_enabled():
                for rows in x.values():
                    rows.requires_grad_()
            out = self.layer(number, sampled, x)
            sink.write(sampled.chunk, out)
            if keep is not None:
                keep(ChunkPass(sampled.chunk, sampled.blocks[0], sampled.inputs, dict(x), out))
            # Otherwise they would stay in memory while the next chunk is read and computed.
            del out, sampled

    def prepared(self, x: dict[str, Any]) -> dict[str, Any]:
        """The inputs of the first layer, from some vertices' features."""
        if self._typed:
            prepared: dict[str, Any] = self._model.prepare(x)
            return prepared
        return {name: self._model.prepare(rows) for name, rows in x.items()}

    def forward(self, sampled: Sampled, x: dict[str, Any]) -> Any:
        """The whole model on the neighbourhoods of a chunk."""
        return self._model(sampled.blocks, x if self._typed else x[sampled.chunk.node_type])

    def read(
        self, chunks: Iterator[Sampled], source: Fetch, skip_empty: bool = False
    ) -> Iterator[tuple[Sampled, dict[str, Any]]]:
        """Chunks with the rows they read. A host reads the next chunk while one is computed, a device when it is done.

        A chunk's rows are dropped when the next chunk is requested, so that at most two chunks are in a host's memory,
        and one in a device's. `skip_empty`: the source is not called for types without vertices.
        """

        def read(sampled: Sampled) -> tuple[Sampled, dict[str, Any]]:
            with torch.no_grad():
                x = {name: source(name, ids) for name, ids in sampled.inputs.items() if len(ids) or not skip_empty}
                if self.edges:
                    sampled = sampled._replace(blocks=self.edges.attached(sampled.blocks))
                if is_gpu(self._device) or any(block.on_device for block in sampled.blocks):
                    sampled = sampled._replace(blocks=[block_on(block, self._device) for block in sampled.blocks])
            return sampled, x

        first = list(islice(chunks, 2))
        if len(first) < 2:
            # There is nothing to read ahead, and threads take time to start.
            yield from map(read, first)
            return
        # The next chunk is sampled meanwhile in any case.
        stages = [] if is_gpu(self._device) else [Stage("read", read, 1, 1, waits_for_room=True)]
        try:
            with StagePipeline(chain(first, chunks), stages, source_depth=1) as flow:
                for each in flow:
                    sampled, x = each if stages else read(each)
                    yield sampled, x
                    # As soon as the next chunk is taken, the pipeline reads another one.
                    x.clear()
                    del sampled, each
        except StageError as error:
            raise error.__cause__ or error from None

    def layer(self, number: int, sampled: Sampled, x: dict[str, Any]) -> torch.Tensor:
        """The output of layer `number` for a chunk."""
        if number == 0:
            x = self.prepared(x)
        name = sampled.chunk.node_type
        out = self._model.layer(number, sampled.blocks[0], x if self._typed else x[name])
        rows: torch.Tensor = out[name] if self._typed else out
        return rows


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and restore the mode of each of its parts afterwards: some may be frozen."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


class Inference:
    """Computes outputs of a model for any vertices of its graph; `plan` says what this process computes."""

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Inputs,
        graph: Graph,
        plan: LayerPlan,
        target: str | None = None,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """`target`: the only node type whose outputs are returned."""
        self._model: Any = model
        self._inputs, self._graph, self.plan = inputs, graph, plan
        self._target, self._precision = target, precision
        self.engine = LayerEngine(model, inputs.device, not graph.is_homogeneous, inputs.exact_edges)

    def outputs(
        self, wanted: dict[str, Array], progress: Progress = SILENT, hidden: bool = False
    ) -> dict[str, torch.Tensor]:
        """The outputs of ascending vertices by type, in that order; `hidden`: of the last hidden layer."""
        for name, rows in wanted.items():
            _check_rows(name, rows, self._graph.nodes[name].count)
        with (
            device_memory(lambda: "in exact inference", INFERENCE),
            self.plan.running(),
            torch.no_grad(),
            evaluating(self._model),
            self._precision(),
        ):
            if getattr(self._model, "layerwise", False) and self.plan.by_layers:
                return self._by_layers(wanted, progress, hidden)
            return self._by_neighbourhoods(wanted, progress)

    @property
    def is_same_for_few(self) -> bool:
        """Whether a vertex's output has the same bits whichever others are asked for."""
        by_layers = getattr(self._model, "layerwise", False) and self.plan.by_layers
        # Rows that are joined, or that no layer computes, are computed together with the others that are asked for.
        apart = by_layers and not self._model.needs_all_outputs and self._model.num_layers > 0
        return bool(apart and self.plan.computes_every_vertex)

    def depth(self, types: set[str], hidden: bool) -> int:
        """The layers that outputs of some types take, where the model is computed layer by layer."""
        # With jumping knowledge the final output is computed after the last layer, else by it; the last layer may
        # compute only rows of the target type.
        last = self._model.needs_all_outputs and (self._target is None or types == {self._target})
        return int(self._model.num_layers) - (1 if hidden and not last else 0)

    def prepare_times(self) -> None:
        """Must be called by all workers of a run before `at_times`."""
        self.plan.start({}, 0, 0)

    def at_times(self, wanted: dict[str, Array], times: dict[str, Array]) -> dict[str, torch.Tensor]:
        """The outputs of vertices by type, in any order and with repeats, each from the graph up to a given time.

        Every worker computes what it asks for; call it after `prepare_times`, and inside `in_parts` among several
        workers.
        """
        with (
            device_memory(lambda: "in exact inference", INFERENCE),
            torch.no_grad(),
            evaluating(self._model),
            self._precision(),
        ):
            return {
                name: torch.cat(self._of_neighbourhoods(name, rows, SILENT, times[name]))
                for name, rows in wanted.items()
                if len(rows)
            }

    def in_parts(self, count: int, compute: Callable[[slice], Array]) -> Array:
        """`compute` over all of `count` items, one row each, divided among the workers of a run."""
        return self.plan.in_parts(count, compute)

    def _by_layers(self, wanted: dict[str, Array], progress: Progress, hidden: bool) -> dict[str, torch.Tensor]:
        layers = self.depth(set(wanted), hidden)
        asked = {name: self.plan.ids(name, rows) for name, rows in wanted.items() if len(rows)}
        fetch: Fetch = self.plan.first
        kept: dict[str, list[torch.Tensor]] = {name: [] for name in asked}
        progress.start("exact inference", self.plan.start(wanted, layers, self._model.num_layers), "vertices")

        def advance(done: ChunkPass) -> None:
            progress.advance(len(done.out))

        for number in range(layers):
            level = self.plan.level(number)
            self.engine.run(number, self.plan.chunks(number), fetch, level, advance)
            self.plan.finish_layer(number)
            fetch = level.fetch
            if self._model.needs_all_outputs or number == layers - 1:
                for name, ids in asked.items():
                    kept[name].append(fetch(name, ids))
        progress.finish()
        self.plan.finish()
        if not layers:
            x = {name: self._inputs.pull(name, ids) for name, ids in asked.items()}
            return self.engine.prepared(x)
        return {name: rows[-1] for name, rows in kept.items()} if hidden else self._join(kept)

    def _join(self, kept: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        found = {}
        for name, outputs in kept.items():
            joined = self._model.join([unwrapping(self._graph)({name: out}) for out in outputs])
            found[name] = _rows_of(joined, name)
        return found

    def _by_neighbourhoods(self, wanted: dict[str, Array], progress: Progress) -> dict[str, torch.Tensor]:
        progress.start("exact inference", sum(map(len, wanted.values())), "vertices")
        self.plan.start(wanted, 0, 0)
        found = {}
        for name, rows in wanted.items():

            def compute(some: slice, name: str = name, rows: Array = rows) -> list[torch.Tensor]:
                return self._of_neighbourhoods(name, rows[some], progress)

            if len(rows):
                found[name] = self.plan.joined(len(rows), compute)
        progress.finish()
        return found

    def _of_neighbourhoods(
        self, name: str, rows: Array, progress: Progress, times: Array | None = None
    ) -> list[torch.Tensor]:
        found = []
        for sampled, x in self.engine.read(self.plan.neighbourhoods(name, rows, times), self.plan.pull):
            found.append(_own_copy(_rows_of(self.engine.forward(sampled, x), name)))
            progress.advance(len(sampled.chunk.rows))
            del sampled
        return found


def _own_copy(rows: torch.Tensor) -> torch.Tensor:
    """A copy of rows: a view would keep the outputs of the whole neighbourhood until the last chunk."""
    return rows.clone() if rows.untyped_storage().nbytes() > rows.nbytes else rows


def _check_rows(name: str, rows: Array, count: int) -> None:
    if len(rows) and (rows[0] < 0 or rows[-1] >= count or np.any(rows[1:] <= rows[:-1])):
        raise PenstockError(
            f"Vertices of type {name!r} to compute must be ascending numbers in 0..{count - 1}: sort them, each once.",
            code="id-out-of-range",
        )


def _rows_of(out: Any, name: str) -> torch.Tensor:
    rows = out if isinstance(out, torch.Tensor) else out.get(name)
    if rows is None:
        raise PenstockError(
            f"The model returns no rows of type {name!r}: return them in its forward.", code="user-code-failed"
        )
    return rows
