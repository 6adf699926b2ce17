"""Exact outputs of a model: whole neighbourhoods, layer by layer, in bounded memory.

Layer after layer is computed for every vertex that the next one reads, in chunks whose working memory is bounded; a
vertex is computed once a layer however many neighbours read it. Models that are not made of layers get the whole
neighbourhoods of a few vertices at a time instead.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.pipeline.flow import Flow, Stage, StageError
from penstock.progress import SILENT, Progress
from penstock.train.chunks import Chunk, cut_into_chunks
from penstock.train.device_full import INFERENCE, device_memory
from penstock.train.inputs import Inputs
from penstock.train.levels import Level
from penstock.train.reach import Reach, frontiers

_SHARE = 8
"""A chunk's inputs take this part of the working memory: layers hold several arrays of that size."""
_EDGE = 16
"""Bytes an edge of a block takes, with what is derived from it."""

Fetch = Callable[[str, Array], torch.Tensor]
Sampled = Iterator[tuple[Chunk, Any]]


class Inference:
    """Outputs of a model for any vertices of its graph."""

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Inputs,
        reach: Reach,
        budget_mb: int,
        target: str | None = None,
        folder: Path | None = None,
        whole: Any = None,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """`target`: the only type that the model's answer is about; `folder`: for outputs that do not fit memory.

        `whole`: the graph as one block on a device with room for every vertex's outputs.
        """
        self._model, self._inputs, self._reach, self._graph = model, inputs, reach, reach.graph
        self._budget, self._target = budget_mb << 20, target
        self._folder, self._whole, self._precision = folder or Path(tempfile.gettempdir()), whole, precision

    def outputs(
        self, wanted: dict[str, Array], progress: Progress = SILENT, hidden: bool = False
    ) -> dict[str, torch.Tensor]:
        """The outputs of vertices (ascending numbers by type), in that order.

        `hidden`: of the last layer that is not yet the answer, where the model is made of layers.
        """
        for name, rows in wanted.items():
            _check_rows(name, rows, self._graph.nodes[name].count)
        try:
            with device_memory(lambda: "in exact inference", INFERENCE):
                return self._computed(wanted, progress, hidden)
        except StageError as error:
            raise error.__cause__ or error from None

    def _computed(self, wanted: dict[str, Array], progress: Progress, hidden: bool) -> dict[str, torch.Tensor]:
        with torch.no_grad(), evaluating(self._model), self._precision():
            # Times differ from seed to seed: no vertex has one value that all its readers could share.
            if getattr(self._model, "layerwise", False) and self._reach.clock is None:
                return self._by_layers(wanted, progress, hidden)
            return self._by_neighbourhoods(wanted, progress)

    def _by_layers(self, wanted: dict[str, Array], progress: Progress, hidden: bool) -> dict[str, torch.Tensor]:
        model: Any = self._model
        # With jumping knowledge the answer is made behind the last layer, else by it; and the last layer may compute
        # the target's rows alone.
        last = model.needs_all_outputs and (self._target is None or set(wanted) == {self._target})
        layers = model.num_layers - (1 if hidden and not last else 0)
        if self._whole is not None:
            return self._at_once(wanted, progress, hidden, layers)
        hops = [self._reach.of_layer(number, model.num_layers) for number in range(layers)]
        needed = frontiers(self._graph, wanted, hops[::-1])
        fetch: Fetch = self._prepared
        kept: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}
        progress.start("exact inference", sum(len(rows) for need in needed[1:] for rows in need.values()), "vertices")
        for number in range(layers):
            level = Level(needed[number + 1], self._budget, self._folder)
            for chunk, out in self._layer(number, fetch, needed[number + 1]):
                level.write(chunk, out)
                progress.advance(len(out))
            fetch = level.fetch
            if model.needs_all_outputs or number == layers - 1:
                for name, rows in wanted.items():
                    if len(rows):
                        kept[name].append(fetch(name, rows).to(self._inputs.device))
        progress.finish()
        if hidden:
            return {name: (kept[name] or [fetch(name, rows)])[-1] for name, rows in wanted.items() if len(rows)}
        return self._join(kept)

    def _at_once(
        self, wanted: dict[str, Array], progress: Progress, hidden: bool, layers: int
    ) -> dict[str, torch.Tensor]:
        """Every vertex's outputs, layer after layer, on the device that holds the graph."""
        model: Any = self._model
        ((name, rows),) = wanted.items()
        if not layers:
            return {name: self._prepared(name, rows)}
        places = torch.from_numpy(rows).to(self._inputs.device)
        outputs, x = [], model.prepare(self._whole.rows())
        progress.start("exact inference", layers, "layers")
        for number in range(layers):
            x = model.layer(number, self._whole.block, x)
            outputs.append(x[places])
            progress.advance(1)
        progress.finish()
        return {name: outputs[-1]} if hidden else self._join({name: outputs})

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
        kinds = self._reach.of_layer(number, model.num_layers)
        sample = self._reach.sampler([kinds])
        read = Graph(self._graph.nodes, {kind: self._graph.edges[kind] for kind in kinds})
        size = self._budget // _SHARE
        chunks = cut_into_chunks(read, rows, max(1, size // (4 * self._width(number))), size // _EDGE)
        # A level has no rows of a type that nobody reads.
        sampled = ((chunk, sample(chunk)) for chunk in chunks)
        for chunk, batch, x in self._read(sampled, lambda name, ids: fetch(name, ids) if len(ids) else None):
            if self._graph.is_homogeneous:
                yield chunk, model.layer(number, batch.blocks[0], x[chunk.node_type])
            else:
                yield chunk, model.layer(number, batch.blocks[0], x)[chunk.node_type]

    def _by_neighbourhoods(self, wanted: dict[str, Array], progress: Progress) -> dict[str, torch.Tensor]:
        found: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}
        progress.start("exact inference", sum(map(len, wanted.values())), "vertices")
        for chunk, batch, x in self._read(self._neighbourhoods(wanted), self._inputs.pull):
            out = self._model(batch.blocks, x[chunk.node_type] if self._graph.is_homogeneous else x)
            found[chunk.node_type].append(_rows_of(out, chunk.node_type))
            progress.advance(len(chunk.rows))
        progress.finish()
        return {name: torch.cat(parts) for name, parts in found.items() if parts}

    def _neighbourhoods(self, wanted: dict[str, Array]) -> Sampled:
        """Whole neighbourhoods of as many vertices at a time as the working memory holds, or of one.

        How far they reach is known once they are there: chunks double while they are small, and are halved when they
        have become too large.
        """
        sample = self._reach.sampler(self._reach.hops)
        row = 4 * self._width(0)
        room = self._budget // _SHARE // row
        # Trees of seeds with times of their own repeat vertices: only without times is the graph the most there is.
        at_once = self._reach.clock is None and self._graph.num_nodes + self._graph.num_edges <= room
        size = self._graph.num_nodes if at_once else 1
        for name, rows in wanted.items():
            start = 0
            while start < len(rows):
                chunk = Chunk(name, rows[start : start + size], start)
                batch = sample(chunk)
                load = sum(map(len, batch.inputs.values())) + max(block.num_edges for block in batch.blocks)
                if load > room and len(chunk.rows) > 1:
                    size = len(chunk.rows) // 2
                    continue
                yield chunk, batch
                start += len(chunk.rows)
                if 2 * load <= room:
                    size = min(2 * size, self._graph.num_nodes)

    def _read(
        self, sampled: Sampled, fetch: Callable[[str, Array], torch.Tensor | None]
    ) -> Iterator[tuple[Chunk, Any, dict[str, torch.Tensor]]]:
        """Chunks with their whole neighbourhoods and inputs; the next is read while one is computed."""

        def read(pair: tuple[Chunk, Any]) -> tuple[Chunk, Any, dict[str, torch.Tensor]]:
            chunk, batch = pair
            device = self._inputs.device
            with torch.no_grad():
                x = {name: fetch(name, ids) for name, ids in batch.inputs.items()}
                if device.type != "cpu":
                    from penstock.sampling.device.block import on_device

                    batch.blocks = [on_device(block, device) for block in batch.blocks]
            return chunk, batch, {name: rows.to(device) for name, rows in x.items() if rows is not None}

        first = list(islice(sampled, 2))
        if len(first) < 2:
            # Nothing to read ahead: threads would only cost their start.
            yield from map(read, first)
            return
        with Flow(chain(first, sampled), [Stage("read", read, 1, 1)], source_depth=1) as flow:
            yield from flow

    def _width(self, number: int) -> int:
        """The widest rows that a layer reads or writes, as far as is known."""
        options: Any = getattr(self._model, "options", None)
        widest = max(self._inputs.widths.values())
        hidden = widest if options is None else options.hidden
        return int(max(hidden, widest) if number == 0 else hidden)


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


def _check_rows(name: str, rows: Array, count: int) -> None:
    if len(rows) and (rows[0] < 0 or rows[-1] >= count or np.any(rows[1:] <= rows[:-1])):
        raise PenstockError(
            f"Vertices of type {name!r} to compute do not ascend within 0..{count - 1}: sort them, each once.",
            code="id-out-of-range",
        )


def _rows_of(out: Any, name: str) -> torch.Tensor:
    rows = out if isinstance(out, torch.Tensor) else out.get(name)
    if rows is None:
        raise PenstockError(
            f"The model gives no rows of type {name!r}: let its forward return them.", code="user-code-failed"
        )
    return rows


def _only(model: Any, name: str, outputs: list[torch.Tensor]) -> torch.Tensor:
    joined: dict[str, torch.Tensor] = model.join([{name: out} for out in outputs])
    return joined[name]
