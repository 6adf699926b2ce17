"""The profile of a job at other numbers of parts and workers, predicted from one that was measured.

Bytes follow what batches read: features and learnable rows follow the vertices, neighbour lists and blocks the rows and
edges drawn, each at the measured bytes for one of them. Processor seconds follow the same work: sampling the rows and
edges, gathering the vertices, a step both of them, a store what one worker reads from one part. What does not grow with
the work (calls, the optimiser's step) is told by a second measurement with smaller batches: seconds are a straight line
through both. A profile without one is scaled in proportion. A server's seconds follow the workers that it serves.
"""

from collections.abc import Mapping

import numpy as np

from penstock.cost.profile import MeasuredSetup, Profile, TaskCost
from penstock.cost.work import TaskWork
from penstock.graph.arrays import Array

_GB = 1 << 30
_LEAST_SHARE = 0.2
"""Of the measured memory, that a store keeps however small its part is: the interpreter and its libraries."""


SCALED_SAMPLERS = ("neighbour", "labor")
"""Samplers whose batches are drawn worker by worker, from the seeds of each: what they read at other sizes is known."""


def scaled_profile(
    profile: Profile, at: TaskWork, wanted: TaskWork, smaller: TaskWork | None = None, graph_bytes: int = 0
) -> Profile:
    """The profile for the parts and workers of `wanted`.

    `at` is the work where it was measured, and `smaller` that of its measurement with smaller batches.
    """
    here, there = _loads(at), _loads(wanted)
    small = None if smaller is None else _loads(smaller)
    tasks = dict(profile.tasks)
    for kind, cost in profile.tasks.items():
        if kind == "server":
            tasks[kind] = _with_seconds(cost, cost.seconds.mean * wanted.workers / profile.workers)
        else:
            less = None if small is None or profile.smaller is None else (small[kind], profile.smaller.seconds[kind])
            tasks[kind] = _with_seconds(cost, _on_line((here[kind], cost.seconds.mean), less, there[kind]))
    tasks["store"] = _with_part(tasks["store"], graph_bytes / _GB, profile.parts, wanted.parts)
    blocks = sum(profile.blocks) / profile.workers * wanted.entries.sum(axis=0)
    return profile.model_copy(
        update={
            "parts": wanted.parts,
            "workers": wanted.workers,
            "tasks": tasks,
            "lists": _spread_over(profile.lists, at.entries, wanted.entries),
            "features": _spread_over(profile.features, at.vertices, wanted.vertices),
            "embeddings": _spread_over(profile.embeddings, at.vertices, wanted.vertices) if profile.embeddings else [],
            "blocks": (blocks / max(at.entries.sum() / at.workers, 1e-300)).tolist(),
            "scaled_from": MeasuredSetup(parts=profile.parts, workers=profile.workers),
            "smaller": None,
        }
    )


def _loads(work: TaskWork) -> Mapping[str, float]:
    """What the seconds of each kind of task follow, for one worker's batch."""
    vertices, entries = (float(each.sum()) / work.workers for each in (work.vertices, work.entries))
    both = vertices + entries
    return {"sampler": entries, "gather": vertices, "worker": both, "store": both / work.parts}


def _on_line(here: tuple[float, float], less: tuple[float, float] | None, load: float) -> float:
    """Seconds at a load, on the line through two measurements; neither its slope nor its start is below 0."""
    most, seconds = here
    if less is None or less[0] >= most:
        return seconds * load / max(most, 1e-300)
    slope = (seconds - less[1]) / (most - less[0])
    slope = min(max(slope, 0.0), seconds / most)
    return seconds + slope * (load - most)


def _spread_over(measured: list[list[float]], at: Array, wanted: Array) -> list[list[float]]:
    """The measured bytes for each unit of work times the work wanted, from part to worker."""
    each = float(np.sum(measured)) / max(float(at.sum()), 1e-300)
    found: list[list[float]] = (each * wanted).tolist()
    return found


def _with_seconds(cost: TaskCost, mean: float) -> TaskCost:
    return cost.model_copy(update={"seconds": cost.seconds.model_copy(update={"mean": mean})})


def _with_part(store: TaskCost, graph_gb: float, before: int, after: int) -> TaskCost:
    """A store's memory with a part of another size."""
    other = store.memory_gb + graph_gb / after - graph_gb / before
    return store.model_copy(update={"memory_gb": max(other, _LEAST_SHARE * store.memory_gb)})
