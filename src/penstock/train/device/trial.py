"""What a step keeps in a device's memory, learned from two small ones before anything is placed.

Nothing is known of a model's inside, but what it keeps grows with the rows and edges of its batch: a half and a quarter
of a batch are computed, forward and back, and the line through both is followed to a whole one. The model is left as it
was found.
"""

from typing import Any, NamedTuple

import torch

from penstock.errors import PenstockError
from penstock.pipeline.device import DeviceCarrier
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Schedule
from penstock.sampling.device.room import Room
from penstock.sampling.device.streams import rest
from penstock.train.kept_state import state_kept
from penstock.train.run_context import device_peak
from penstock.train.session import Session, model_at_fault


class Load(NamedTuple):
    """The size of a batch: numbers of its inputs, and rows and edges that its layers compute and read."""

    inputs: int
    rows: int
    edges: int


class StepMemory(NamedTuple):
    """Bytes of a step beside its inputs: a fixed part, and so many a row."""

    fixed: float
    a_row: float
    whole: Load
    """What a whole batch is expected to be, by twice the half."""

    def of(self, load: Load) -> int:
        """Bytes of a step on a batch of that size."""
        return max(0, round(self.fixed + self.a_row * _weighed(load)))


NOTHING = StepMemory(0.0, 0.0, Load(0, 0, 0))
"""Where nothing is trained."""


def tried_steps(session: Session, row_type: torch.dtype) -> StepMemory:
    """Compute two small batches and look at what they took."""
    device, size = session.inputs.device, session.task.batch_size
    inputs = session.inputs
    carrier = DeviceCarrier(device, inputs.sources, row_type, inputs.scale, edges=inputs.edges)
    sizes = sorted({max(1, min(size, len(session.task.items)) // part) for part in (4, 2)})
    # Libraries allocate what they keep when they are first used.
    _tried(session, carrier, sizes[0])
    tried = [_tried(session, carrier, seeds) for seeds in sizes]
    return followed(tried, min(size, len(session.task.items)) / sizes[-1])


def followed(tried: list[tuple[Load, float]], factor: float) -> StepMemory:
    """The line through steps that were tried, from the smallest to the largest, to a batch `factor` times as large."""
    (small, little), (large, much) = tried[0], tried[-1]
    grown = _weighed(large) - _weighed(small)
    if grown > 0.1 * _weighed(large) and much > little:
        a_row = (much - little) / grown
        fixed = max(0.0, little - a_row * _weighed(small))
    else:
        a_row, fixed = much / max(1.0, _weighed(large)), 0.0
    return StepMemory(fixed, a_row, Load(*(round(factor * amount) for amount in large)))


def room_load(room: Room, width: int) -> Load:
    """A batch that fills a room."""
    return Load(room.rows[-1] * width, sum(room.rows[:-1]), sum(room.edges))


def _tried(session: Session, carrier: DeviceCarrier, seeds: int) -> tuple[Load, float]:
    planned = next(Schedule(session.task.items, seeds, session.job.draw_seed).from_position())
    batch = session.task.sample(planned)
    carrier.gather(batch)
    session.task.label(batch)
    device = session.inputs.device
    with state_kept(session):
        carrier.transfer(batch)
        carrier.arrive(batch)
        x = session.inputs.complete(batch)
        rest(device)
        before = torch.cuda.memory_allocated(device)
        peak = device_peak(device)
        try:
            with model_at_fault():
                with session.precision():
                    loss = session.task.loss(session.encode(batch, x), batch)
                session.backward(loss)
        except torch.OutOfMemoryError:
            raise PenstockError(
                f"Not even {seeds:,} seeds fit {device}: lower batch_size, fanouts or hidden, or free device memory.",
                code="out-of-memory",
            ) from None
        rest(device)
        most = peak.read()
    return batch_load(batch, x), most - before


def batch_load(batch: Batch, x: dict[str, Any]) -> Load:
    """The size of a batch with its inputs."""
    rows = edges = 0
    for block in batch.blocks:
        rows += sum(part.num_dst for part in block.parts)
        edges += block.num_edges
    return Load(sum(values.numel() for values in x.values()), rows, edges)


def _weighed(load: Load) -> float:
    return load.rows + load.edges / 8
