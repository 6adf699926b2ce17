"""The profile of a job at other numbers of parts and workers, predicted from one that was measured.

Bytes follow what batches read: features and learnable rows follow the vertices, neighbour lists and blocks the rows and
edges drawn, each at the measured bytes for one of them. Processor seconds follow the same work: sampling the rows and
edges, gathering the vertices, a step both of them, a store what one worker reads from one part, a server the workers
that it serves. What does not grow with the work (calls, the optimiser's step) cannot be told from one measurement, so
the seconds of much smaller batches come out too low; benchmarks/scaled_profiles.py shows by how much.
"""

import numpy as np

from penstock.cost.profile import Measured, Profile, TaskCost
from penstock.cost.work import Work
from penstock.graph.arrays import Array

_GB = 1 << 30
_LEAST_SHARE = 0.2
"""Of the measured memory, that a store keeps however small its part is: the interpreter and its libraries."""


def scaled_profile(profile: Profile, at: Work, wanted: Work, graph_bytes: int = 0) -> Profile:
    """The profile for the parts and workers of `wanted`; `at` is the work where it was measured."""
    vertices = wanted.vertices.sum() / wanted.workers / max(at.vertices.sum() / at.workers, 1e-300)
    entries = wanted.entries.sum() / wanted.workers / max(at.entries.sum() / at.workers, 1e-300)
    both = (vertices + entries) / 2
    served = both * profile.parts / wanted.parts
    factors = {"sampler": entries, "gather": vertices, "worker": both, "store": served}
    factors["server"] = wanted.workers / profile.workers
    tasks = {kind: _scaled_task(cost, factors[kind]) for kind, cost in profile.tasks.items()}
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
            "scaled_from": Measured(parts=profile.parts, workers=profile.workers),
        }
    )


def _spread_over(measured: list[list[float]], at: Array, wanted: Array) -> list[list[float]]:
    """The measured bytes for each unit of work times the work wanted, from part to worker."""
    each = float(np.sum(measured)) / max(float(at.sum()), 1e-300)
    found: list[list[float]] = (each * wanted).tolist()
    return found


def _scaled_task(cost: TaskCost, factor: float) -> TaskCost:
    seconds = cost.seconds.model_copy(update={"mean": cost.seconds.mean * float(factor)})
    return cost.model_copy(update={"seconds": seconds})


def _with_part(store: TaskCost, graph_gb: float, before: int, after: int) -> TaskCost:
    """A store's memory with a part of another size."""
    other = store.memory_gb + graph_gb / after - graph_gb / before
    return store.model_copy(update={"memory_gb": max(other, _LEAST_SHARE * store.memory_gb)})
