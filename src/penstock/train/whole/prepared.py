"""A step made ready: its bins on the device that computes, the source of its examples, and inputs that are kept."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.pipeline.batch_rows import NO_EDGE_ROWS, EdgeRows, as_tensors
from penstock.pipeline.schedule import Planned
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.device.block import block_on
from penstock.traced import FEATURES, TOPOLOGY, is_gpu, is_traced, memory_for, placed
from penstock.train.session import Session
from penstock.train.whole.levels import KeptLevel, LevelGradients, RowsInPlace, UncountedLevel, Where
from penstock.train.whole.memory import Decision
from penstock.train.whole.norms import Sum
from penstock.train.whole.plan import Bin, WholePlan

# The examples of a step: the vertices whose outputs the loss reads, and their labels.


class Examples(NamedTuple):
    """The examples of one step in one epoch."""

    batch: MiniBatch
    """Seeds and labels, where the model is computed."""
    places: dict[str, Tensor | None]
    """The positions of seeds among the computed rows, by node type; None: they are these rows, in order."""


class ExampleSource:
    """The examples of one step. Its items are the same in every epoch; negatives are drawn anew in each."""

    def __init__(
        self, session: Session, planned: Planned, order: dict[str, Array], counts: list[dict[str, int]]
    ) -> None:
        """`order` are the computed vertices by node type, `counts` how many of them are in each level that the loss
        reads.
        """
        self._session, self._planned, self._order, self._counts = session, planned, order, counts
        self._fixed: Examples | None = None
        self._known: dict[str, Array] = {}

    def of(self, key: BatchKey) -> Examples:
        """The examples of the step in the key's epoch."""
        if self._fixed is not None:
            return self._fixed
        device, task = self._session.inputs.device, self._session.task
        batch: MiniBatch = task.examples(self._planned._replace(key=key))
        batch.labels = moved(as_tensors(batch.labels), device)
        found = Examples(batch, {name: self._places(name, rows, device) for name, rows in batch.seeds.items()})
        if not task.redraws:
            self._fixed = found
        return found

    def _places(self, name: str, rows: Array, device: torch.device) -> Tensor | None:
        order = self._order[name]
        if all(level[name] == len(rows) for level in self._counts) and np.array_equal(order[: len(rows)], rows):
            return None
        if name not in self._known:
            self._known[name] = np.empty(int(order.max(initial=-1)) + 1, np.int64)
            self._known[name][order] = np.arange(len(order))
        return torch.from_numpy(self._known[name][rows]).to(device)


def moved(labels: Any, device: torch.device) -> Any:
    """Labels, moved to where the model is computed."""
    if isinstance(labels, dict):
        return {name: moved(each, device) for name, each in labels.items()}
    return labels.to(device)


@dataclass(eq=False)
class PreparedBin(Bin):
    """A bin whose block and positions are where the model is computed."""

    places: dict[str, Tensor | None] = field(default_factory=dict)
    row_names: dict[str, Tensor] = field(default_factory=dict)
    """`names` as tensors, where dropout reads them."""
    in_place: RowsInPlace | None = None
    """How it reads the level below in place; None: it reads copies of rows."""


class PreparedStep:
    """What one step needs in every epoch."""

    def __init__(self, session: Session, plan: WholePlan, decision: Decision, planned: Planned) -> None:
        self._session, self.plan, self.decision = session, plan, decision
        with memory_for(TOPOLOGY):
            self.bins = [[self.prepared(work) for work in layer] for layer in plan.bins]
        model: Any = session.model
        read = plan.counts[1:] if model.needs_all_outputs else plan.counts[-1:]
        self.examples = ExampleSource(session, planned, plan.order, read)
        unchanged = not model.options.input_dropout
        self.constant: dict[Any, Any] | None = {} if unchanged and decision.retain else None
        self.normalises = normalised_layers(session, plan.layers)
        self.add: Sum | None = None
        self._kept_inputs: dict[PreparedBin, dict[str, Tensor]] = {}
        self._computed = next(session.learned.parameters()).dtype
        self._dtype = torch.bfloat16 if session.job.keep_type == "bfloat16" else self._computed

    def level(self, number: int) -> KeptLevel:
        """Storage for a level's rows."""
        last = number == self.plan.layers
        return stored_level(self._session, self.plan.counts[number], self.decision.keep, last)

    def gradients(self, number: int) -> LevelGradients:
        """Storage for the gradients of a level's rows."""
        return LevelGradients(self.plan.counts[number], self._session.inputs.device)

    def fetch(self, work: PreparedBin, level: KeptLevel | None) -> dict[str, Any]:
        """The rows that a bin reads of a level, or of the inputs where that is None.

        They are leaf tensors of autograd in every pass: the order of products depends on that, and must be the same.
        """
        if level is None:
            return self.inputs(work)
        x = {name: level.read(name, places).detach() for name, places in work.places.items()}
        return {name: rows.requires_grad_() for name, rows in x.items()}

    def inputs(self, work: PreparedBin) -> dict[str, Tensor]:
        """The rows that a bin of the first layer reads, with the current learnable ones."""
        session = self._session
        x = self._kept_inputs.get(work)
        if x is None:
            sources = session.inputs.sources
            stored = [name for name in work.names if name not in session.inputs.tables]
            # A source that the device reads by itself takes indices that are on the device.
            ids: dict[str, Any] = {
                name: (work.row_names if sources[name].on_device else work.names)[name] for name in stored
            }
            x = {name: self.read(name, ids[name]) for name in stored}
            if self.decision.retain:
                self._kept_inputs[work] = x
        x = dict(x)
        for name, rows in work.names.items():
            if name in session.inputs.tables:
                x[name] = self.read(name, rows).requires_grad_()
        return x

    def prepared(self, work: Bin) -> PreparedBin:
        """A bin, moved to where it is computed."""
        inputs = self._session.inputs
        return prepared_bin(work, inputs.device, inputs.edges)

    def read(self, node_type: str, ids: Array) -> Tensor:
        """The input rows of some vertices."""
        with memory_for(FEATURES):
            return self._session.inputs.pull(node_type, ids)


def prepared_bin(work: Bin, device: torch.device, edges: EdgeRows = NO_EDGE_ROWS) -> PreparedBin:
    """A bin, moved to where it is computed."""
    places = {name: None if rows is None else placed(rows, device) for name, rows in work.inputs.items()}
    block: Any = None if work.block is None else block_on(edges.attached([work.block])[0], device)
    row_names = {name: placed(ids, device, torch.int64) for name, ids in work.names.items()}
    return PreparedBin(work.rows, block, work.inputs, work.names, places, row_names)


def stored_level(session: Session, counts: dict[str, int], keep: Where, last: bool) -> KeptLevel:
    """Storage for a level's rows. The last level is read by the loss at once."""
    computed = next(session.learned.parameters()).dtype
    stored = torch.bfloat16 if session.job.keep_type == "bfloat16" and not last else computed
    where: Where = "device" if last else keep
    device = session.inputs.device
    counted = not is_traced() or where == "device" or (where == "host" and not is_gpu(device))
    kind = KeptLevel if counted else UncountedLevel
    return kind(counts, where, stored, device, session.temporary_folder, computed)


def normalised_layers(session: Session, layers: int) -> list[bool]:
    """Which layers are followed by a batch normalisation: all but the last, unless the layers are joined."""
    model: Any = session.model
    if session.job.norm != "batch":
        return [False] * layers
    return [number < layers - 1 or model.needs_all_outputs for number in range(layers)]
