"""One layer of a model over chunks of vertices, from a source of rows to a sink of rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import torch

from penstock.graph.arrays import Array
from penstock.pipeline.edge_rows import NO_EDGE_ROWS, EdgeRows
from penstock.pipeline.stages import Stage, StageError, StagePipeline
from penstock.sampling.device.block import on_device
from penstock.train.layerwise.chunks import Chunk, Sampled

Fetch = Callable[[str, Array], Any]
"""The rows of some vertices of a type, on the device that computes: tensors, or a table's rows in place."""


class RowSink(Protocol):
    """Takes what a layer gives."""

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        """Store the rows of a chunk."""


class ChunkPass(NamedTuple):
    """What a layer read and gave for one chunk: enough to run its backward pass, at once or by computing it again."""

    chunk: Chunk
    block: Any
    inputs: dict[str, Array]
    """The vertices whose rows were read, by type."""
    x: dict[str, Any]
    """Their rows as the source gave them: leaves of autograd's graph where gradients are enabled."""
    out: torch.Tensor


class LayerEngine:
    """Computes layers of a model one at a time. `typed`: its rows come and go by node type. `edges` reads what edges
    carry."""

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
        """Compute layer `number` for all chunks; the first one also does what the model does before it.

        `keep` is called after each chunk, in order, with what a backward pass needs. Gradients are recorded where the
        caller has them enabled, within a chunk and not across: the rows between two layers are numbers.
        """
        # A source has no rows of a type that nobody reads.
        for sampled, x in self.read(chunks, source, skip_empty=True):
            if torch.is_grad_enabled():
                for rows in x.values():
                    rows.requires_grad_()
            out = self.layer(number, sampled, x)
            sink.write(sampled.chunk, out)
            if keep is not None:
                keep(ChunkPass(sampled.chunk, sampled.blocks[0], sampled.inputs, dict(x), out))
            # Else it would be there while the next chunk is computed.
            del out

    def prepared(self, x: dict[str, Any]) -> dict[str, Any]:
        """What the first layer reads of some vertices' inputs."""
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
        """Chunks with the rows they read; the next chunk is read while one is computed.

        A chunk's rows are dropped when the next chunk is asked for, so that those of two chunks are there at most.
        `skip_empty`: the source is not asked for types without vertices.
        """

        def read(sampled: Sampled) -> tuple[Sampled, dict[str, Any]]:
            with torch.no_grad():
                x = {name: source(name, ids) for name, ids in sampled.inputs.items() if len(ids) or not skip_empty}
                if self.edges:
                    sampled = sampled._replace(blocks=self.edges.attached(sampled.blocks))
                if self._device.type != "cpu":
                    blocks = [on_device(block, self._device) for block in sampled.blocks]
                    sampled = sampled._replace(blocks=blocks)
            return sampled, x

        first = list(islice(chunks, 2))
        if len(first) < 2:
            # Nothing to read ahead: threads would only cost their start.
            yield from map(read, first)
            return
        try:
            with StagePipeline(
                chain(first, chunks), [Stage("read", read, 1, 1, waits_for_room=True)], source_depth=1
            ) as flow:
                for sampled, x in flow:
                    yield sampled, x
                    # As soon as the next chunk is taken, the pipeline reads another one.
                    x.clear()
        except StageError as error:
            raise error.__cause__ or error from None

    def layer(self, number: int, sampled: Sampled, x: dict[str, Any]) -> torch.Tensor:
        """What layer `number` gives for a chunk."""
        if number == 0:
            x = self.prepared(x)
        name = sampled.chunk.node_type
        out = self._model.layer(number, sampled.blocks[0], x if self._typed else x[name])
        rows: torch.Tensor = out[name] if self._typed else out
        return rows


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation, and afterwards each of its parts as it was: some may be frozen."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
