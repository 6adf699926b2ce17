"""Steps of a user's module on the whole graph. Its layers are unknown, so it computes whole neighbourhoods at once,
which must fit memory. They are read from the graph's lists once and kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from penstock.errors import PenstockError
from penstock.nn.drop import dropping
from penstock.pipeline.schedule import Planned
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.device.block import block_on
from penstock.traced import FEATURES, TOPOLOGY, memory_for
from penstock.train.device.host_trial import computed_here, require_small, watched
from penstock.train.device.memory import Load, followed
from penstock.train.layerwise.host import Reach
from penstock.train.session import Session
from penstock.train.whole.memory import BinSize, free_bytes
from penstock.train.whole.prepared import ExampleSource

_TRIED = (16, 64)
"""Items of the steps that are tried where a module cannot be traced."""
_ENTRY_BYTES, _PAIR_BYTES = 4, 16
"""Bytes of an edge in each layer's list, and in the list of pairs that the module is given."""


class KeptNeighbourhood:
    """The whole neighbourhood that one step computes, its stored features, and the step's examples."""

    def __init__(self, session: Session, batch: MiniBatch, planned: Planned) -> None:
        self._session, self.batch, device = session, batch, session.inputs.device
        with memory_for(TOPOLOGY):
            batch.blocks = [block_on(block, device) for block in session.inputs.edges.attached(batch.blocks)]
        with memory_for(FEATURES):
            batch.features = _stored_features(session, batch)
        counts = {name: len(rows) for name, rows in batch.seeds.items()}
        self.examples = ExampleSource(session, planned, batch.seeds, [counts])


def whole_neighbourhood(session: Session, reach: Reach, planned: Planned) -> MiniBatch:
    """The batch of a step: all neighbours of its items, over all hops."""
    batch: MiniBatch = reach.batches(reach.hops)(session.task.readable(planned.seeds))
    return batch


class OwnModulePasses:
    """The forward and backward pass of one step."""

    def __init__(self, session: Session, kept: KeptNeighbourhood, key: BatchKey) -> None:
        self._session, self._batch = session, kept.batch
        self._key, self._examples = key.purpose("dropout"), kept.examples.of(key)
        self.inputs = session.inputs.complete(kept.batch)

    def forward(self) -> Tensor:
        session = self._session
        with dropping(self._key, self._batch.row_names), session.precision():
            out = session.encode(self._batch, self.inputs)
            return session.task.loss(_rows_at(out, self._examples.places), self._examples.batch)

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def learned_rows(self) -> list[Tensor]:
        """Learnable rows with their gradients, to be clipped with the others."""
        return self._session.inputs.learned_rows(self._batch, self.inputs)

    def learn(self) -> None:
        """Apply the gradients of learnable rows."""
        self._session.inputs.learn(self._batch, self.inputs)


def _rows_at(out: Any, places: dict[str, Tensor | None]) -> Any:
    """The outputs of the examples' vertices."""
    if isinstance(out, dict):
        return {name: _rows_at(rows, {name: places[name]}) for name, rows in out.items() if name in places}
    (found,) = places.values()
    return out if found is None else out.index_select(0, found)


def tried_bytes(session: Session, reach: Reach, planned: Planned, sizes: Sequence[Sequence[BinSize]]) -> int:
    """The bytes of a step whose layers are as large as `sizes` says, followed from steps on a few items: for a module
    that cannot be traced.
    """
    tried = []
    with computed_here(session):
        for few in _TRIED:
            some = planned._replace(seeds=np.sort(planned.seeds[:few]))
            batch = whole_neighbourhood(session, reach, some)
            require_small(session, batch.vertices.values())
            passes = OwnModulePasses(session, KeptNeighbourhood(session, batch, some), planned.key)
            tried.append(watched(session, batch, passes.inputs, _loss_of(session, passes, planned)))
    step, widths = followed(tried, 1.0), session.inputs.widths
    rows = sum(each.stop - each.start for layer in sizes for size in layer for each in size.rows.values())
    edges = [sum(sum(size.edges.values()) for size in layer) for layer in sizes]
    inputs = sum(count * widths[name] for size in sizes[0] for name, count in size.inputs.items())
    lists = sum(edges) * _ENTRY_BYTES + edges[0] * _PAIR_BYTES
    return step.of(Load(inputs, rows, sum(edges))) + 4 * inputs + lists


def _loss_of(session: Session, passes: "OwnModulePasses", planned: Planned) -> Callable[[], Tensor]:
    def loss() -> Tensor:
        with session.drawing(planned.key.purpose("memory")):
            return passes.forward()

    return loss


def require_room(session: Session, sizes: Sequence[Sequence[BinSize]], needed: int) -> None:
    """Refuse a step of so many bytes that does not fit memory."""
    free = free_bytes(session.inputs.device, session.job.device_share)
    if needed <= free:
        return
    vertices = sum(sum(size.inputs.values()) for size in sizes[0])
    edges = sum(sum(size.edges.values()) for size in sizes[0])
    raise PenstockError(
        f"A module of your own computes the whole neighbourhood of a step at once, {vertices:,} vertices and"
        f" {edges:,} edges, which needs about {needed / 1e9:,.1f} GB where {free / 1e9:,.1f} GB are free: raise"
        " steps_per_epoch, use sampler neighbour, or use a model of the zoo, which is computed in bins.",
        code="out-of-memory",
    )


def _stored_features(session: Session, batch: MiniBatch) -> dict[str, Tensor]:
    tables = session.inputs.tables
    return {name: session.inputs.pull(name, ids) for name, ids in batch.vertices.items() if name not in tables}
