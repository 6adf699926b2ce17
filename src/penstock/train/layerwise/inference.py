"""Exact outputs of a model: whole neighbourhoods, layer by layer, in bounded memory.

Layer after layer is computed for every vertex that the next one reads, in chunks whose working memory is bounded; a
vertex is computed once a layer however many neighbours read it. Models that are not made of layers get the whole
neighbourhoods of a few vertices at a time instead.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.progress import SILENT, Progress
from penstock.train.device_full import INFERENCE, device_memory
from penstock.train.inputs import Inputs
from penstock.train.layerwise.engine import ChunkPass, Fetch, LayerEngine, evaluating
from penstock.train.layerwise.plan import LayerPlan


class Inference:
    """Outputs of a model for any vertices of its graph; `plan` says what is computed here."""

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Inputs,
        graph: Graph,
        plan: LayerPlan,
        target: str | None = None,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """`target`: the only type that the model's answer is about."""
        self._model: Any = model
        self._inputs, self._graph, self.plan = inputs, graph, plan
        self._target, self._precision = target, precision
        self.engine = LayerEngine(model, inputs.device, not graph.is_homogeneous, inputs.exact_edges)

    def outputs(
        self, wanted: dict[str, Array], progress: Progress = SILENT, hidden: bool = False
    ) -> dict[str, torch.Tensor]:
        """The outputs of vertices (ascending numbers by type), in that order.

        `hidden`: of the last layer that is not yet the answer, where the model is made of layers.
        """
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

    def prepare_times(self) -> None:
        """Before outputs at given times: all workers of a run do it."""
        self.plan.start({}, 0, 0)

    def at_times(self, wanted: dict[str, Array], times: dict[str, Array]) -> dict[str, torch.Tensor]:
        """The outputs of vertices by type, in any order and with repeats, each as it sees the graph up to a time.

        Every worker computes what it asks for: to be called after `prepare_times`, inside `in_parts` among several.
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
        """What `compute` gives for all of `count` items, one row each: workers of one run compute some each."""
        return self.plan.in_parts(count, compute)

    def _by_layers(self, wanted: dict[str, Array], progress: Progress, hidden: bool) -> dict[str, torch.Tensor]:
        # With jumping knowledge the answer is made behind the last layer, else by it; and the last layer may compute
        # the target's rows alone.
        last = self._model.needs_all_outputs and (self._target is None or set(wanted) == {self._target})
        layers = self._model.num_layers - (1 if hidden and not last else 0)
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
        if self._graph.is_homogeneous:
            return {name: self._model.join(outputs) for name, outputs in kept.items()}
        return {name: self._model.join([{name: out} for out in outputs])[name] for name, outputs in kept.items()}

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
        for sampled, x in self.engine.read(self.plan.neighbourhoods(name, rows, times), self._inputs.pull):
            found.append(_own_copy(_rows_of(self.engine.forward(sampled, x), name)))
            progress.advance(len(sampled.chunk.rows))
        return found


def _own_copy(rows: torch.Tensor) -> torch.Tensor:
    """Rows in memory of their own: a view would keep the outputs of the whole neighbourhood until the last chunk."""
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
