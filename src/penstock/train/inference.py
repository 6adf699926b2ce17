"""Exact outputs of a model: whole neighbourhoods, layer by layer, in bounded memory.

Layer after layer is computed for every vertex that the next one reads, in chunks whose working memory is bounded; a
vertex is computed once a layer however many neighbours read it. Models that are not made of layers get the whole
neighbourhoods of a few vertices at a time instead.
"""

import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit

from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.pipeline.flow import Flow, Stage, StageError
from penstock.progress import SILENT, Progress
from penstock.sampling import ALL, BatchKey, NeighbourSampler, TypedNeighbourSampler
from penstock.store.rows import gather_rows
from penstock.train.chunks import Chunk, cut_into_chunks
from penstock.train.inputs import Inputs

_ANY = BatchKey(0, 0, 0)
"""Whole neighbourhoods are not drawn: any key names them."""
_FEW = 512
"""Vertices at a time for models that are not made of layers."""
_SHARE = 8
"""A chunk's inputs take this part of the working memory: layers hold several arrays of that size."""
_EDGE = 16
"""Bytes an edge of a block takes, with what is derived from it."""

Fetch = Callable[[str, Array], torch.Tensor]


class _Level:
    """The outputs of one layer for some rows of every type; kept in a file when they are large."""

    def __init__(self, rows: dict[str, Array], in_memory: int, folder: Path) -> None:
        self.rows, self.values, self._in_memory, self._folder = rows, dict[str, Array](), in_memory, folder

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        """Take the outputs of a chunk."""
        if chunk.node_type not in self.values:
            self.values[chunk.node_type] = self._room((len(self.rows[chunk.node_type]), out.shape[1]))
        self.values[chunk.node_type][chunk.start : chunk.start + len(out)] = out.cpu().numpy()

    def fetch(self, node_type: str, ids: Array) -> torch.Tensor:
        """The outputs of some vertices, all of which have been computed."""
        rows = self.rows[node_type]
        places = ids if len(rows) and rows[-1] == len(rows) - 1 else np.searchsorted(rows, ids)
        return torch.from_numpy(gather_rows(self.values[node_type], places))

    def _room(self, shape: tuple[int, int]) -> Array:
        if shape[0] * shape[1] * 4 <= self._in_memory:
            return np.empty(shape, np.float32)
        with tempfile.NamedTemporaryFile(dir=self._folder) as file:
            return np.memmap(file, np.float32, "w+", shape=shape).view(np.ndarray)


class Inference:
    """Outputs of a model for any vertices of its graph."""

    def __init__(
        self,
        model: torch.nn.Module,
        graph: Graph,
        inputs: Inputs,
        layers: int,
        budget_mb: int,
        weight: str | None = None,
        clock: tuple[str, Array] | None = None,
    ) -> None:
        """`layers`: hops a model that is not made of layers reads; `clock`: a time field and every vertex's time."""
        self._model, self._graph, self._inputs, self._layers = model, graph, inputs, layers
        self._budget, self._weight = budget_mb << 20, weight
        self._clock, self._folder = clock, Path(tempfile.gettempdir())

    def outputs(
        self, wanted: dict[str, Array], progress: Progress = SILENT, hidden: bool = False
    ) -> dict[str, torch.Tensor]:
        """The outputs of vertices (ascending numbers by type), in that order.

        `hidden`: of the last layer that is not yet the answer, where the model is made of layers.
        """
        was_training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                # Times differ from seed to seed: no vertex has one value that all its readers could share.
                if getattr(self._model, "layerwise", False) and self._clock is None:
                    return self._by_layers(wanted, progress, hidden)
                return self._by_neighbourhoods(wanted, progress)
        except StageError as error:
            raise error.__cause__ or error from None
        finally:
            self._model.train(was_training)

    def _by_layers(self, wanted: dict[str, Array], progress: Progress, hidden: bool) -> dict[str, torch.Tensor]:
        model: Any = self._model
        # With jumping knowledge the answer is made behind the last layer, else by it.
        layers = model.num_layers - (1 if hidden and not model.needs_all_outputs else 0)
        needed = frontiers(self._graph, wanted, layers)
        fetch: Fetch = self._prepared
        kept: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}
        progress.start("exact inference", sum(len(rows) for need in needed[1:] for rows in need.values()), "vertices")
        for number in range(layers):
            level = _Level(needed[number + 1], self._budget, self._folder)
            for chunk, out in self._layer(number, fetch, needed[number + 1]):
                level.write(chunk, out)
                progress.advance(len(out))
            fetch = level.fetch
            if model.needs_all_outputs or number == layers - 1:
                for name, rows in wanted.items():
                    if len(rows):
                        kept[name].append(fetch(name, rows))
        progress.finish()
        if hidden:
            return {name: (kept[name] or [fetch(name, rows)])[-1] for name, rows in wanted.items() if len(rows)}
        return self._join(kept)

    def _join(self, kept: dict[str, list[torch.Tensor]]) -> dict[str, torch.Tensor]:
        model: Any = self._model
        joined = {}
        for name, outputs in kept.items():
            if outputs:
                joined[name] = model.join(outputs) if self._graph.is_homogeneous else _only(model, name, outputs)
        return joined

    def _prepared(self, node_type: str, ids: Array) -> torch.Tensor:
        model: Any = self._model
        x = self._inputs.pull(node_type, ids)
        if self._graph.is_homogeneous:
            prepared: torch.Tensor = model.prepare(x)
            return prepared
        by_type: dict[str, torch.Tensor] = model.prepare({node_type: x})
        return by_type[node_type]

    def _layer(self, number: int, fetch: Fetch, rows: dict[str, Array]) -> Iterator[tuple[Chunk, torch.Tensor]]:
        model: Any = self._model
        for chunk, batch, x in self._read(fetch, 1, self._chunks(number, rows)):
            if self._graph.is_homogeneous:
                yield chunk, model.layer(number, batch.blocks[0], x[chunk.node_type])
            else:
                yield chunk, model.layer(number, batch.blocks[0], x)[chunk.node_type]

    def _by_neighbourhoods(self, wanted: dict[str, Array], progress: Progress) -> dict[str, torch.Tensor]:
        found: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}
        whole = self._graph.num_edges * max(self._inputs.widths.values(), default=1) * 4 <= self._budget
        size = self._graph.num_nodes if whole else _FEW
        chunks = (
            Chunk(name, rows[start : start + size], start)
            for name, rows in wanted.items()
            for start in range(0, len(rows), size)
        )
        progress.start("exact inference", sum(map(len, wanted.values())), "vertices")
        for chunk, batch, x in self._read(self._inputs.pull, self._layers, chunks):
            out = self._model(batch.blocks, x[chunk.node_type] if self._graph.is_homogeneous else x)
            found[chunk.node_type].append(out if isinstance(out, torch.Tensor) else out[chunk.node_type])
            progress.advance(len(chunk.rows))
        progress.finish()
        return {name: torch.cat(parts) for name, parts in found.items() if parts}

    def _read(
        self, fetch: Fetch, hops: int, chunks: Iterator[Chunk]
    ) -> Iterator[tuple[Chunk, Any, dict[str, torch.Tensor]]]:
        """Chunks with their whole neighbourhoods and inputs; the next is read while one is computed."""
        sample = self._whole(hops)

        def read(chunk: Chunk) -> tuple[Chunk, Any, dict[str, torch.Tensor]]:
            batch = sample(chunk)
            with torch.no_grad():
                return chunk, batch, {name: fetch(name, ids) for name, ids in batch.inputs.items() if len(ids)}

        first = list(islice(chunks, 2))
        if len(first) < 2:
            # Nothing to read ahead: threads would only cost their start.
            yield from map(read, first)
            return
        with Flow(chain(first, chunks), [Stage("read", read, 1, 1)]) as flow:
            yield from flow

    def _whole(self, hops: int) -> Callable[[Chunk], Any]:
        """Samples all neighbours of a chunk."""
        if not self._graph.is_homogeneous:
            typed = TypedNeighbourSampler(self._graph, [ALL] * hops, weight=self._weight, totals=True)
            return lambda chunk: typed.sample({chunk.node_type: chunk.rows}, _ANY)
        if self._clock is None:
            plain = NeighbourSampler(self._graph, [ALL] * hops, weight=self._weight, totals=True)
            return lambda chunk: plain.sample(chunk.rows, _ANY)
        time, times = self._clock
        timed = NeighbourSampler(self._graph, [ALL] * hops, weight=self._weight, totals=True, time=time)
        return lambda chunk: timed.sample(chunk.rows, _ANY, times=times[chunk.rows])

    def _chunks(self, number: int, rows: dict[str, Array]) -> Iterator[Chunk]:
        """Rows cut so that what a layer reads for a chunk fits the working memory."""
        options: Any = getattr(self._model, "options", None)
        widest = max(self._inputs.widths.values())
        hidden = widest if options is None else options.hidden
        width = max(hidden, widest) if number == 0 else hidden
        size = self._budget // _SHARE
        return cut_into_chunks(self._graph, rows, max(1, size // (4 * width)), size // _EDGE)


def frontiers(graph: Graph, wanted: dict[str, Array], layers: int) -> list[dict[str, Array]]:
    """For each level, inputs first, the vertices whose values are needed: ascending numbers by type."""
    needed = [{name: np.asarray(wanted.get(name, ()), np.int64) for name in graph.nodes}]
    for _ in range(layers):
        marks = {name: np.zeros(nodes.count, np.bool_) for name, nodes in graph.nodes.items()}
        for name, rows in needed[0].items():
            marks[name][rows] = True
        for (source, _, destination), edges in graph.edges.items():
            _mark_sources(edges.indptr, edges.indices, needed[0][destination], marks[source])
        needed.insert(0, {name: np.flatnonzero(mark) for name, mark in marks.items()})
    return needed


@njit(nogil=True, cache=True)
def _mark_sources(indptr: Array, indices: Array, rows: Array, mark: Array) -> None:
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            mark[indices[k]] = True


def _only(model: Any, name: str, outputs: list[torch.Tensor]) -> torch.Tensor:
    joined: dict[str, torch.Tensor] = model.join([{name: out} for out in outputs])
    return joined[name]
