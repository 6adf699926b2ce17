"""Captured steps that have their inputs from the host in another way, with the graph where it lies."""

from dataclasses import replace

from penstock.pipeline.schedule import Schedule
from penstock.plan.residence import Place
from penstock.train.device.fitting import way_of
from penstock.train.device.placed import Placed
from penstock.train.device.traced import TracedMemory
from penstock.train.device_memory import device_memory_of
from penstock.train.first_layer.way import FirstLayerWay, reasons_against
from penstock.train.first_layer.ways import WAYS
from penstock.train.job import Job
from penstock.train.session import Session
from penstock.train.trace.categories import FEATURES, TOPOLOGY
from penstock.train.trace.untraceable import UntraceableError


def other_ways(session: Session, placed: Placed) -> list[FirstLayerWay]:
    """What captured steps of a session could do instead of `auto`; what has no room on the device is left out."""
    features = placed.decision.residence.features
    return [
        way
        for way in WAYS.values()
        if _reads(way, features)
        and way is not way_of(session.job, features)
        and not _impossible(session, way)
        and _has_room(session, placed, way)
    ]


def job_with(job: Job, placed: Placed, name: str) -> Job:
    """A job with another `first_layer`, whose features lie where they were placed."""
    pinned = WAYS[name].on_host and placed.decision.residence.features == "pinned"
    wish = {**job.placed.model_dump(exclude={"cache_rows"}), "features": "pinned"} if pinned else placed.wish
    return job.model_copy(update={"first_layer": name, "placement": wish})


def _reads(way: FirstLayerWay, features: Place) -> bool:
    """Whether a way fills slots from features in a place; rows that `auto` reads from pinned memory it gathers too."""
    if way.filler is None or features == "device":
        return False
    return features == "pinned" if way.on_both else way.name != "gather"


def _impossible(session: Session, way: FirstLayerWay) -> list[str]:
    assert way.filler is not None
    tables = [session.graph.nodes[name].fields[field] for name, field in session.inputs.fields.items()]
    unread = [reason for table in tables for reason in way.filler.reasons_against(session.job, table)]
    return unread + reasons_against(way, session.job, session.graph, session.model, session.inputs)


def _has_room(session: Session, placed: Placed, way: FirstLayerWay) -> bool:
    """Whether the device has room for steps of a way, beside all that lies there."""
    task, job = session.task, job_with(session.job, placed, way.name)
    memory = TracedMemory(replace(session, job=job), Schedule(task.items, task.batch_size, job.draw_seed))
    try:
        found = memory.traced(replace(placed.decision, gathers=False)).categories
    except UntraceableError:
        return False
    free, total = device_memory_of(placed.device)
    needed = sum(size for name, size in found.items() if name not in (FEATURES, TOPOLOGY))
    return needed <= free - (1 - job.device_share) * total
