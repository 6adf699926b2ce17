"""Steps of a user's module on the whole graph. Its layers are unknown, so it computes whole neighbourhoods at once,
which must fit memory. They are read from the graph's lists once and kept.
"""

from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.nn.adapter import merged_relations
from penstock.nn.drop import dropping
from penstock.pipeline.schedule import Planned
from penstock.sampling.block import MiniBatch
from penstock.sampling.device.block import block_on
from penstock.train.layerwise.host import Reach, frontiers
from penstock.train.session import Session
from penstock.train.whole.memory import free_bytes
from penstock.train.whole.prepared import ExampleSource

_TRIED = 64
"""Items of the small batch whose memory is measured."""
_INDEX_BYTES = 16
"""Bytes of an edge in the list of pairs that the module is given."""


class KeptNeighbourhood:
    """The whole neighbourhood that one step computes, its stored features, and the step's examples."""

    def __init__(self, session: Session, reach: Reach, planned: Planned) -> None:
        self._session = session
        seeds = session.task.readable(planned.seeds)
        _require_room(session, reach, seeds, planned)
        self.batch: MiniBatch = reach.batches(reach.hops)(seeds)
        _place(session, self.batch)
        counts = {name: len(rows) for name, rows in seeds.items()}
        self.examples = ExampleSource(session, planned, seeds, [counts])


class OwnModulePasses:
    """The forward and backward pass of one step."""

    def __init__(self, session: Session, kept: KeptNeighbourhood, planned: Planned) -> None:
        self._session, self._batch = session, kept.batch
        self._key, self._examples = planned.key.purpose("dropout"), kept.examples.of(planned.key)
        self._x = session.inputs.complete(kept.batch)

    def forward(self) -> Tensor:
        session = self._session
        with dropping(self._key, self._batch.row_names), session.precision():
            out = session.encode(self._batch, self._x)
            return session.task.loss(_rows_at(out, self._examples.places), self._examples.batch)

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def learned_rows(self) -> list[Tensor]:
        """Learnable rows with their gradients, to be clipped with the others."""
        return self._session.inputs.learned_rows(self._batch, self._x)

    def learn(self) -> None:
        """Apply the gradients of learnable rows."""
        self._session.inputs.learn(self._batch, self._x)


def _rows_at(out: Any, places: dict[str, Tensor | None]) -> Any:
    """The outputs of the examples' vertices."""
    if isinstance(out, dict):
        return {name: _rows_at(rows, {name: places[name]}) for name, rows in out.items() if name in places}
    (found,) = places.values()
    return out if found is None else out.index_select(0, found)


def _require_room(session: Session, reach: Reach, seeds: dict[str, Array], planned: Planned) -> None:
    """Refuse a neighbourhood that does not fit memory, estimated from what a small batch keeps for
    its backward pass.
    """
    needed = frontiers(reach.graph, seeds, reach.hops)
    vertices = sum(len(rows) for rows in needed[0].values())
    edges = 0
    for kind, lists in reach.graph.edges.items():
        rows = needed[1][kind[2]]
        edges += int((lists.indptr[rows + 1] - lists.indptr[rows]).sum())
    of_vertex, of_edge = _kept_bytes(session, planned)
    size = vertices * of_vertex + edges * of_edge
    free = free_bytes(session.inputs.device, session.job.device_share)
    if size > free:
        raise PenstockError(
            f"A module of your own computes the whole neighbourhood of a step at once, {vertices:,} vertices and"
            f" {edges:,} edges, which needs about {size / 1e9:,.1f} GB where {free / 1e9:,.1f} GB are free: raise"
            " steps_per_epoch, use sampler neighbour, or use a model of the zoo, which is computed in bins.",
            code="out-of-memory",
        )


def _kept_bytes(session: Session, planned: Planned) -> tuple[float, float]:
    """Bytes that the module keeps for its backward pass, per vertex and per edge, measured on a small batch."""
    few = planned._replace(seeds=planned.seeds[:_TRIED])
    batch: Any = session.execution.sample(few)
    _place(session, batch)
    x = session.inputs.complete(batch)
    weights = {tensor.data_ptr() for tensor in session.learned.parameters()}
    kept: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor
        return tensor

    buffers = {name: values.clone() for name, values in session.model.named_buffers()}
    with session.drawing(planned.key.purpose("memory")), session.precision(), saved_tensors_hooks(note, lambda t: t):
        session.encode(batch, x)
    for name, values in session.model.named_buffers():
        values.copy_(buffers[name])
    lists = [pairs.shape[1] for pairs in merged_relations(batch.blocks).values()]
    of_edges = sum(tensor.nbytes for tensor in kept.values() if set(lists) & set(tensor.shape))
    # The inputs exist twice: a module gets a copy of its rows, which it may change.
    of_vertices = (
        sum(tensor.nbytes for tensor in kept.values()) - of_edges + 2 * sum(rows.nbytes for rows in x.values())
    )
    return of_vertices / sum(map(len, batch.vertices.values())), of_edges / max(1, sum(lists)) + _INDEX_BYTES


def _place(session: Session, batch: MiniBatch) -> None:
    """Put a batch's blocks, with what its edges carry, and its stored features where the model is computed."""
    inputs = session.inputs
    batch.blocks = [block_on(block, inputs.device) for block in inputs.edges.attached(batch.blocks)]
    batch.features = {name: inputs.pull(name, ids) for name, ids in batch.vertices.items() if name not in inputs.tables}
