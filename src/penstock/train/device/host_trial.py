"""Tries small steps of a model that cannot be traced, and follows the memory that their tensors take to whole ones."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.memory import available_mb
from penstock.pipeline.batch_rows import HostCarrier
from penstock.pipeline.schedule import Schedule
from penstock.pipeline.stages import Batch, Loaded
from penstock.trace.allocations import Allocations, peak_of, tensors_in
from penstock.train.device.memory import Load, StepMemory, batch_load, followed
from penstock.train.optimisers import make_optimiser
from penstock.train.run_context import generators_kept
from penstock.train.session import Session
from penstock.train.steps.one_by_one import loss_of

_SMALL = 0.01
_MEMORY_SHARE = 0.25
"""The share of free memory that such steps may take; the rest is for other processes."""


def tried_on_host(session: Session) -> StepMemory:
    """Compute two small batches on the host and record what their tensors take."""
    size = min(session.task.batch_size, len(session.task.items))
    sizes = sorted({max(1, size // part) for part in (4, 2)})
    with computed_here(session):
        return followed([_tried(session, seeds) for seeds in sizes], size / sizes[-1])


def _tried(session: Session, seeds: int) -> tuple[Load, float]:
    planned = next(Schedule(session.task.items, seeds, session.job.draw_seed).from_position())
    loaded = Loaded(planned, session.task.sample(planned))
    require_small(session, loaded.batch.vertices.values())
    carrier: Any = session.inputs.carrier
    carrier.gather(loaded.batch)
    session.task.label(loaded.batch)
    carrier.transfer(loaded.batch)
    x = session.inputs.complete(loaded.batch)
    return watched(session, loaded.batch, x, lambda: loss_of(session, loaded, x))


@contextmanager
def computed_here(session: Session) -> Iterator[None]:
    """Within it weights have numbers, and the session computes where these are: on the host if they were counted only,
    or are there.
    """
    _give_numbers(session)
    inputs, before = session.inputs, (session.inputs.device, session.inputs.carrier)
    if next(session.learned.parameters()).device.type == "cpu":
        inputs.device = torch.device("cpu")
        inputs.carrier = HostCarrier(inputs.sources, edges=inputs.edges)
    try:
        yield
    finally:
        inputs.device, inputs.carrier = before


def watched(session: Session, batch: Batch, x: dict[str, Tensor], loss: Callable[[], Tensor]) -> tuple[Load, float]:
    """The load of a batch, and the most bytes of tensors that its forward and backward pass takes. The model is left as
    it was.
    """
    buffers = {name: values.clone() for name, values in session.learned.named_buffers()}
    noted = Noted()
    with generators_kept(), noted:
        session.backward(loss())
    session.optimiser.zero_grad(set_to_none=True)
    for name, values in session.learned.named_buffers():
        values.copy_(buffers[name])
    return batch_load(batch, x), peak_of(noted.events).bytes


def _give_numbers(session: Session) -> None:
    """Replace meta weights, which have no values, by small random ones: nothing is learned with them."""
    learned = session.learned
    if not any(weights.is_meta for weights in learned.parameters()):
        return
    _require_room(2 * sum(each.nbytes for each in (*learned.parameters(), *learned.buffers())))
    learned.to_empty(device="cpu")
    with torch.no_grad():
        for values in (*learned.parameters(), *learned.buffers()):
            values.fill_(_SMALL if values.is_floating_point() else 0)
    session.optimiser = make_optimiser(learned.parameters(), session.job, torch.device("cpu"))


def require_small(session: Session, vertices: Iterable[Array]) -> None:
    """Refuse a small step that would take much of this machine's memory."""
    # Each matrix produces a row of its width for each vertex, which has a gradient.
    widths = sum(len(weights) for weights in session.learned.parameters() if weights.ndim > 1)
    _require_room(2 * 4 * widths * sum(map(len, vertices)))


def _require_room(size: int) -> None:
    most = int(_MEMORY_SHARE * (available_mb() << 20))
    if size > most:
        raise PenstockError(
            f"The job's memory cannot be traced, and small steps to learn it from would take about {size / 1e9:,.1f} GB"
            f" where a forecast may take {most / 1e9:,.1f} GB: lower hidden, layers or batch_size.",
            code="out-of-memory",
        )


class Noted(Allocations):  # type: ignore[no-untyped-call]
    """Records the memory of real tensors while computing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation and record the memory of what it returns."""
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            self.note(tensor)
        return out
