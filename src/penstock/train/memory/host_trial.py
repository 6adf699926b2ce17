"""What a step keeps, learned from two small ones on the host: where a model cannot be traced."""

from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.memory import available_mb
from penstock.pipeline.host_carrier import HostCarrier
from penstock.pipeline.loader import Loaded
from penstock.pipeline.schedule import Schedule
from penstock.train.device.trial import Load, StepMemory, batch_load, followed
from penstock.train.execution.loaded import loss_of
from penstock.train.optimisers import make_optimiser
from penstock.train.run_context import generators_kept
from penstock.train.session import Session
from penstock.train.trace.allocations import Allocations, peak_of, tensors_in

_SMALL = 0.01
_MEMORY_SHARE = 0.25
"""Of the memory that is free: others on this machine go on."""


def tried_on_host(session: Session) -> StepMemory:
    """Compute two small batches on the host and note what their tensors take."""
    _give_numbers(session)
    device, carrier = session.inputs.device, session.inputs.carrier
    session.inputs.device, session.inputs.carrier = (
        torch.device("cpu"),
        HostCarrier(session.inputs.sources, edges=session.inputs.edges),
    )
    try:
        size = min(session.task.batch_size, len(session.task.items))
        sizes = sorted({max(1, size // part) for part in (4, 2)})
        return followed([_tried(session, seeds) for seeds in sizes], size / sizes[-1])
    finally:
        session.inputs.device, session.inputs.carrier = device, carrier


def _tried(session: Session, seeds: int) -> tuple[Load, float]:
    planned = next(Schedule(session.task.items, seeds, session.job.draw_seed).from_position())
    loaded = Loaded(planned, session.task.sample(planned))
    # Each matrix makes a row of its width for each vertex, which has a gradient.
    widths = sum(len(weights) for weights in session.learned.parameters() if weights.ndim > 1)
    _require_small(2 * 4 * widths * sum(len(each) for each in loaded.batch.vertices.values()))
    carrier: Any = session.inputs.carrier
    carrier.gather(loaded.batch)
    session.task.label(loaded.batch)
    carrier.transfer(loaded.batch)
    x = session.inputs.complete(loaded.batch)
    buffers = {name: values.clone() for name, values in session.learned.named_buffers()}
    noted = _Noted()
    with generators_kept(), noted:
        session.backward(loss_of(session, loaded, x))
    session.optimiser.zero_grad(set_to_none=True)
    for name, values in session.learned.named_buffers():
        values.copy_(buffers[name])
    return batch_load(loaded.batch, x), peak_of(noted.events).bytes


def _give_numbers(session: Session) -> None:
    """Weights that were only counted so far are made, small ones: nothing is learned with them."""
    learned = session.learned
    if not any(weights.is_meta for weights in learned.parameters()):
        return
    _require_small(2 * sum(each.nbytes for each in (*learned.parameters(), *learned.buffers())))
    learned.to_empty(device="cpu")
    with torch.no_grad():
        for values in (*learned.parameters(), *learned.buffers()):
            values.fill_(_SMALL if values.is_floating_point() else 0)
    session.optimiser = make_optimiser(learned.parameters(), session.job, torch.device("cpu"))


def _require_small(size: int) -> None:
    """Refuse to compute for a forecast what takes much of this machine's memory."""
    most = int(_MEMORY_SHARE * (available_mb() << 20))
    if size > most:
        raise PenstockError(
            f"The job's memory cannot be traced, and small steps to learn it from would take about {size / 1e9:,.1f} GB"
            f" where a forecast may take {most / 1e9:,.1f} GB: lower hidden, layers or batch_size.",
            code="out-of-memory",
        )


class _Noted(Allocations):  # type: ignore[no-untyped-call]
    """Notes the memory of real tensors, and computes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation and note what it returns."""
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            self.note(tensor)
        return out
