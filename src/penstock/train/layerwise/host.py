"""Exact inference on one machine: chunks from the host's lists, levels in memory or in files."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.train.inputs import Inputs
from penstock.train.layerwise.chunks import Chunk, GrowingChunks, Sampled, cut_into_chunks
from penstock.train.layerwise.levels import HostLevel, Level
from penstock.train.layerwise.reach import Reach, frontiers

SHARE = 8
"""A chunk's inputs take this part of the working memory: layers hold several arrays of that size."""
_EDGE = 16
"""Bytes an edge of a block takes, with what is derived from it."""


class AlonePlan:
    """What a process does that computes by itself: all of everything, when it is asked for."""

    def running(self) -> AbstractContextManager[None]:
        """Nothing to do around it."""
        return nullcontext()

    def finish_layer(self, number: int) -> None:
        """There is nobody to wait for."""

    def finish(self) -> None:
        """Levels go when nobody holds them any more."""

    def ids(self, node_type: str, rows: Array) -> Array:
        """The vertices themselves: on one machine there is one numbering."""
        return rows

    def joined(self, count: int, compute: Callable[[slice], list[torch.Tensor]]) -> torch.Tensor:
        """The rows themselves: one machine holds all of them."""
        return torch.cat(compute(slice(0, count)))

    def in_parts(self, count: int, compute: Callable[[slice], Array]) -> Array:
        """The vertices themselves: one machine holds all of them."""
        return compute(slice(0, count))


class HostPlan(AlonePlan):
    """Vertices that the next layer reads, in chunks that fit the working memory of `budget_mb`."""

    def __init__(
        self, model: torch.nn.Module, inputs: Inputs, reach: Reach, budget_mb: int, folder: Path | None = None
    ) -> None:
        """`folder`: for outputs that do not fit memory; the system's temporary folder if None."""
        self._reach, self._graph, self._device, self.first = reach, reach.graph, inputs.device, inputs.pull
        self.budget, self.folder = budget_mb << 20, folder or Path(tempfile.gettempdir())
        options: Any = getattr(model, "options", None)
        self._widest = max(inputs.widths.values())
        self._hidden: int = self._widest if options is None else options.hidden
        self._layers, self._needed = 0, list[dict[str, Array]]()

    @property
    def by_layers(self) -> bool:
        """Times differ from seed to seed: no vertex has one value that all its readers could share."""
        return self._reach.clock is None

    def start(self, wanted: dict[str, Array], computed: int, layers: int) -> int:
        """Find out which vertices each layer must compute."""
        self._layers = layers
        self._growing = self._grower()
        hops = [self._reach.of_layer(number, layers) for number in range(computed)]
        self._needed = frontiers(self._graph, wanted, hops[::-1])
        return sum(len(rows) for need in self._needed[1:] for rows in need.values())

    def start_everywhere(self, layers: int) -> None:
        """Let each layer compute every vertex, without asking which ones the next layer reads."""
        every = {name: np.arange(nodes.count) for name, nodes in self._graph.nodes.items()}
        self._layers, self._needed = layers, [every] * (layers + 1)

    def level(self, number: int) -> Level:
        """In memory, or in a file where it outgrows the budget."""
        return HostLevel(self._needed[number + 1], self.budget, self.folder, self._device)

    def rows_of(self, number: int) -> dict[str, int]:
        """How many rows a layer gives, by node type."""
        return {name: len(rows) for name, rows in self._needed[number + 1].items()}

    def chunks(self, number: int) -> Iterator[Sampled]:
        """Cut so that the vertices and edges that a chunk reads fit."""
        return self._chunks(number, self._needed[number + 1])

    def some_chunks(self, number: int, count: int) -> list[list[Sampled]]:
        """For each node type, so many of a layer's chunks at most."""
        return [
            list(islice(self._chunks(number, {name: rows}), count)) for name, rows in self._needed[number + 1].items()
        ]

    def _chunks(self, number: int, rows: dict[str, Array]) -> Iterator[Sampled]:
        kinds = self._reach.of_layer(number, self._layers)
        sample = self._reach.sampler([kinds])
        read = Graph(self._graph.nodes, {kind: self._graph.edges[kind] for kind in kinds})
        size = self.budget // SHARE
        room = max(1, size // (4 * self.width(number)))
        return map(sample, cut_into_chunks(read, rows, room, size // _EDGE))

    def neighbourhoods(self, node_type: str, rows: Array, times: Array | None = None) -> Iterator[Sampled]:
        """As many vertices at a time as the working memory holds with their neighbourhoods."""
        return self._growing.over(Chunk(node_type, rows, 0, times), self._reach.sampler(self._reach.hops))

    def neighbourhood(self, node_type: str, rows: Array, times: Array | None = None) -> Sampled:
        """Whole neighbourhoods of vertices in one chunk, whatever they take; of `times` as many as there are rows."""
        chunk = Chunk(node_type, rows, 0, None if times is None else times[: len(rows)])
        return self._reach.sampler(self._reach.hops)(chunk)

    @property
    def room(self) -> int:
        """Rows and edges of whole neighbourhoods that the working memory holds."""
        return self.budget // SHARE // (4 * self.width(0))

    @staticmethod
    def load_of(sampled: Sampled) -> int:
        """Rows that a chunk of whole neighbourhoods takes: its inputs, and a message for each edge of a layer."""
        edges: int = max(block.num_edges for block in sampled.blocks)
        return sampled.num_inputs + edges

    def width(self, number: int) -> int:
        """The widest rows that a layer reads or writes, as far as is known."""
        return int(max(self._hidden, self._widest) if number == 0 else self._hidden)

    def _grower(self) -> GrowingChunks:
        # Trees of seeds with times of their own repeat vertices: only without times is the graph the most there is.
        at_once = self.by_layers and self._graph.num_nodes + self._graph.num_edges <= self.room

        return GrowingChunks(self._graph.num_nodes if at_once else 1, self.room, self.load_of)
