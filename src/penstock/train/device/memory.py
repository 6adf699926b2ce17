"""What training takes of a device's memory beside the graph, by two small steps that were tried there."""

from dataclasses import dataclass
from typing import Any

import torch

from penstock.plan.residence import Place
from penstock.sampling.device.room import Room
from penstock.train.device.trial import StepMemory, room_load
from penstock.train.job import Job
from penstock.train.session import Session
from penstock.train.trace.libraries import library_memory

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_STREAMS = 6
"""Workspaces of matrix libraries: for the trial's stream, those of two warm-ups and the one that captures, some with
two libraries. That is what was missing in the memory of captured steps on an H200, whatever the graph."""
_ITEM_BYTES = 60
"""An item of an epoch: its name, number and label, before and after the shuffle, and the sort's own memory."""
_EDGE_BYTES = 4
"""Of a block that is copied to the device; its derived lists belong to the step."""


@dataclass(frozen=True)
class Working:
    """Bytes of everything but topology and features. `row_type` is how features reach the model."""

    bytes: int
    row_type: torch.dtype
    parts: dict[str, int]


class TrialMemory:
    """By what a step was seen to need. Where a trace cannot be had this is what there is."""

    method = "trial"

    def __init__(self, session: Session, step: StepMemory, untraced: str) -> None:
        """`untraced` says why there is no trace."""
        self._session, self._step, self.untraced = session, step, untraced

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        """See `decision.MemoryModel`."""
        session, job = self._session, self._session.job
        task: Any = session.task
        parameters, rows_as = sum(p.numel() for p in session.learned.parameters()), row_type(job)
        vertices = session.graph.num_nodes
        if captured and room is not None:
            label, width = task.labels_of(task.items[:1]).nbytes, max(session.inputs.widths.values())
            given = width, vertices, len(task.items), label, parameters, rows_as
            return captured_working(self._step, room, *given, in_place)
        return loaded_working(
            self._step, room, vertices, job.transfer_depth + 1, parameters, rows_as, job.drawing_threads,
            positions=bool(session.inputs.edges),
        )  # fmt: skip

    def predicted(self, decision: Any) -> int:
        """See `decision.MemoryModel`."""
        return int(decision.residence.device_bytes)


def row_type(job: Job) -> torch.dtype:
    """The type in which features reach the model."""
    return TYPES.get(job.compute_type, torch.float32)


def captured_working(
    step: StepMemory,
    room: Room,
    width: int,
    vertices: int,
    items: int,
    label_bytes: int,
    parameters: int,
    row_type: torch.dtype,
    in_place: bool,
) -> Working:
    """Of captured steps: two slots, weights with gradients and moments, and one step's activations."""
    parts = {
        "numbering": 4 * vertices,
        "slots": 2 * _slot_bytes(room),
        "epoch": items * (_ITEM_BYTES + 2 * label_bytes),
        "weights": 4 * 3 * parameters,
        "step": step.of(room_load(room, width)),
        "libraries": _STREAMS * library_memory().product_workspace,
    }
    if not in_place:
        parts["inputs"] = 2 * room.rows[-1] * width * row_type.itemsize
    return Working(sum(parts.values()), row_type, parts)


def loaded_working(
    step: StepMemory,
    room: Room | None,
    vertices: int,
    ahead: int,
    parameters: int,
    row_type: torch.dtype,
    threads: int = 1,
    positions: bool = False,
    merges: bool = False,
) -> Working:
    """Of steps on batches that a pipeline brings, so many `ahead`; with a sampler a thread where there is `room`.

    `positions`: samplers keep the numbers of drawn edges. `merges`: they keep the edges of all hops as one list, too.
    """
    load = step.whole
    parts = {
        "batches": (1 + ahead) * (load.inputs * row_type.itemsize + _EDGE_BYTES * (load.edges + load.rows)),
        "weights": 4 * 3 * parameters,
        "step": step.of(load),
        "libraries": library_memory().product_workspace,
    }
    if room is not None:
        slot = _slot_bytes(room) + (8 * positions + 16 * merges) * sum(room.edges)
        parts |= {"numbering": threads * 4 * vertices, "slots": threads * slot}
    return Working(sum(parts.values()), row_type, parts)


def _slot_bytes(room: Room) -> int:
    """See `sampling.device.hops.Slot` and `Turned`."""
    rows, edges = sum(room.rows[:-1]), sum(room.edges)
    scratch = 4 * (max(room.edges[0::2]) + max(room.edges[1::2], default=0)) + max(room.edges)
    turned = sum(8 * held + 20 * size for held, size in zip(room.rows[1:-1], room.edges[:-1], strict=True))
    return 8 * room.rows[-1] + 4 * rows + 4 * edges + scratch + turned
