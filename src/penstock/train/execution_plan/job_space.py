"""What a job and the machine that a profile is of leave open."""

from typing import NamedTuple

import torch

from penstock.cost.model import CostModel
from penstock.pipeline.grouped_batches import PER_PROCESSOR
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution import PipelineDepths, Space
from penstock.plan.execution.choice import Device, Features
from penstock.plan.execution.search import PlannedWay
from penstock.plan.residence import NoRoomError
from penstock.train.device.decision import Decision, decide
from penstock.train.device.traced import TracedMemory
from penstock.train.device_memory import UNKNOWN, assumed_memory
from penstock.train.execution.support import DEVICE_SAMPLING, demands_of
from penstock.train.execution.support import reasons_against as reasons_against_mode
from penstock.train.first_layer.way import reasons_against
from penstock.train.first_layer.ways import WAYS
from penstock.train.session import Session


class DeviceRoom(NamedTuple):
    """What a job takes of a GPU's memory."""

    taken: int | None
    """Bytes, with everything where it fits; None where not even a step fits."""
    memory: int | None
    """Bytes that the GPU has; None where that is not known and everything is taken to fit."""
    features: Features
    """The nearest place to the GPU at which features fit."""


def space_of(
    session: Session, model: CostModel, device_memory: int | None, traced: TracedMemory
) -> tuple[Space, DeviceRoom | None]:
    """Every way to execute a job that it allows; `device_memory` bytes hold what is placed on a GPU.

    A GPU is there if the profile has one whose copies were measured. A job that does not fit on it is computed by the
    host, if it leaves that open.
    """
    job, inputs = session.job, session.inputs
    ways = {
        way.name: PlannedWay(way.planned, way.on_host, way.on_both)
        for way in WAYS.values()
        if way.planned is not None and not reasons_against(way, job, session.graph, session.model, inputs)
    }
    devices, room, places = devices_of(job.device, model), None, list[tuple[Features, int]]()
    on_device = False
    if "cuda" in devices:
        try:
            decision = _decision(session, device_memory, traced)
        except NoRoomError:
            if devices == ("cuda",):
                raise
            devices, room = ("cpu",), DeviceRoom(None, device_memory, "host")
        else:
            places = _places(decision)
            room = DeviceRoom(decision.predicted_bytes, device_memory, decision.residence.features)
            # Lists that stay on the host are drawn there.
            refused = reasons_against_mode(DEVICE_SAMPLING, demands_of(session))
            on_device = not refused and decision.residence.topology != "host"
    cores = model.machine.cores
    space = Space(
        ways,
        devices,
        ("cpu", "cuda") if on_device else ("cpu",),
        (("host", 0), *places),
        tuple(dict.fromkeys((job.drawing_threads, cores))),
        (1, PER_PROCESSOR * cores),
        PipelineDepths(job.sample_depth, job.gather_depth, job.transfer_depth),
    )
    return space, room


def devices_of(asked: str, model: CostModel) -> tuple[Device, ...]:
    """The devices that a job may be computed by, of those that the profile knows."""
    known: tuple[Device, ...] = ("cpu", "cuda") if model.knows("copy_up", "cuda") else ("cpu",)
    return known if asked == "auto" else tuple(each for each in known if each == asked.partition(":")[0])


def schedule_of(session: Session) -> Schedule:
    """The batches of a job."""
    return Schedule(session.task.items, session.task.batch_size, session.job.draw_seed)


def _decision(session: Session, device_memory: int | None, traced: TracedMemory) -> Decision:
    """What a run would put on a GPU of so much memory."""
    session.inputs.device = torch.device("cuda")
    try:
        with assumed_memory(UNKNOWN if device_memory is None else device_memory):
            return decide(session, schedule_of(session), traced)
    finally:
        session.inputs.device = torch.device("cpu")


def _places(decision: Decision) -> list[tuple[Features, int]]:
    """Where a GPU can read features: pinned, with as large a cache as fits, or on the device."""
    residence, found = decision.residence, list[tuple[Features, int]]([("pinned", 0)])
    if residence.features == "device":
        return [*found, ("device", 0)]
    return [*found, ("pinned", residence.cache_rows)] if residence.cache_rows else found
