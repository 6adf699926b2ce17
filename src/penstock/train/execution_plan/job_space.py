"""What a job and the machine that a profile is of leave open."""

import torch

from penstock.cost.model import CostModel
from penstock.pipeline.grouped_batches import PER_PROCESSOR
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution import PipelineDepths, Space
from penstock.plan.execution.choice import Device, Features
from penstock.plan.execution.search import PlannedWay
from penstock.train.device.decision import decide
from penstock.train.device.traced import TracedMemory
from penstock.train.device_memory import UNKNOWN, assumed_memory
from penstock.train.execution.support import DEVICE_SAMPLING, demands_of
from penstock.train.execution.support import reasons_against as reasons_against_mode
from penstock.train.first_layer.way import reasons_against
from penstock.train.first_layer.ways import WAYS
from penstock.train.session import Session


def space_of(session: Session, model: CostModel, device_memory: int | None) -> Space:
    """Every way to execute a job that it allows; `device_memory` bytes hold what is placed on a GPU.

    A GPU is there if the profile has one whose copies were measured.
    """
    job, inputs = session.job, session.inputs
    ways = {
        way.name: PlannedWay(way.planned, way.on_host, way.on_both)
        for way in WAYS.values()
        if way.planned is not None and not reasons_against(way, job, session.graph, session.model, inputs)
    }
    devices = devices_of(job.device, model)
    on_device = "cuda" in devices and not reasons_against_mode(DEVICE_SAMPLING, demands_of(session))
    cores = model.machine.cores
    return Space(
        ways,
        devices,
        ("cpu", "cuda") if on_device else ("cpu",),
        (("host", 0), *(_places(session, device_memory) if "cuda" in devices else ())),
        tuple(dict.fromkeys((job.drawing_threads, cores))),
        (1, PER_PROCESSOR * cores),
        PipelineDepths(job.sample_depth, job.gather_depth, job.transfer_depth),
    )


def devices_of(asked: str, model: CostModel) -> tuple[Device, ...]:
    """The devices that a job may be computed by, of those that the profile knows."""
    known: tuple[Device, ...] = ("cpu", "cuda") if model.knows("copy_up", "cuda") else ("cpu",)
    return known if asked == "auto" else tuple(each for each in known if each == asked.partition(":")[0])


def _places(session: Session, device_memory: int | None) -> list[tuple[Features, int]]:
    """Where a GPU of so much memory can read features: pinned, with as large a cache as fits, or on the device."""
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.draw_seed)
    session.inputs.device = torch.device("cuda")
    try:
        with assumed_memory(UNKNOWN if device_memory is None else device_memory):
            residence = decide(session, schedule, TracedMemory(session, schedule)).residence
    finally:
        session.inputs.device = torch.device("cpu")
    found: list[tuple[Features, int]] = [("pinned", 0)]
    if residence.features == "device":
        return [*found, ("device", 0)]
    return [*found, ("pinned", residence.cache_rows)] if residence.cache_rows else found
