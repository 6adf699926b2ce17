"""The profile of a job at other numbers of parts and workers, predicted from one that was measured.

`count_work` counts the work in a batch on the graph: vertices read and neighbour lists drawn, for each part and worker.

Bytes follow what batches read: features and learnable rows follow the vertices, neighbour lists and blocks the rows and
edges drawn, each at the measured bytes for one of them. CPU seconds follow the same work: sampling the rows and edges,
gathering the vertices, a step both of them, a store what one worker reads from one part. The fixed part (calls, the
optimiser's step) is known from a second measurement with smaller batches: seconds are a straight line through both. A
profile without one is scaled in proportion. A server's seconds follow the workers that it serves.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.cost.profile import MeasuredSetup, MemoryUse, Profile, TransferCost
from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Planned
from penstock.sampling import MiniBatch

Draw = Callable[[Array, Planned], MiniBatch]
"""The batch of some seeds."""


@dataclass(frozen=True, eq=False)
class TaskWork:
    """The work of each kind of task, as means over some iterations."""

    vertices: Array
    """float64 [parts, workers]: vertices whose rows a worker reads from a part."""
    entries: Array
    """float64 [parts, workers]: of the lists that a worker draws from at a part, the rows and the edges drawn."""

    @property
    def parts(self) -> int:
        """The number of parts that workers read from."""
        return len(self.vertices)

    @property
    def workers(self) -> int:
        """The number of workers that draw batches."""
        return int(self.vertices.shape[1])


def count_work(draw: Draw, batches: Iterable[Planned], part_of: Array, parts: int, workers: int) -> TaskWork:
    """Draw every worker's share of some batches, and count what it reads from each part.

    `part_of` is the part of every vertex. Seeds are shared as in a run: ordered by part, in equal ranges.
    """
    vertices, entries = np.zeros((parts, workers)), np.zeros((parts, workers))
    count = 0
    for planned in batches:
        count += 1
        shares = seed_shares(planned.seeds, part_of, workers) if workers > 1 else [np.arange(len(planned.seeds))]
        for rank, mine in enumerate(shares):
            if not len(mine):
                continue
            batch = draw(planned.seeds[mine], planned)
            owner = part_of[batch.vertices[batch.node_type]]
            vertices[:, rank] += np.bincount(owner, minlength=parts)
            for block in batch.blocks:
                drawn = 1.0 + np.diff(block.indptr)
                entries[:, rank] += np.bincount(owner[: block.num_dst], weights=drawn, minlength=parts)
    return TaskWork(vertices / max(count, 1), entries / max(count, 1))


def seed_shares(seeds: Array, part_of: Array, workers: int) -> list[Array]:
    """The positions of each worker's seeds, as in a run: ordered by part, in equal ranges."""
    ordered = np.lexsort((seeds, part_of[seeds]))
    ends = [round(rank * len(seeds) / workers) for rank in range(workers + 1)]
    return [ordered[first:last] for first, last in pairwise(ends)]


_GB = 1 << 30
_LEAST_SHARE = 0.2
"""The share of the measured memory that a store needs however small its part is: the interpreter and its libraries."""

SERVED_FOR_ALL = "sum"
"""The operator whose seconds follow the number of workers: a parameter server sums their gradients."""


def scaled_profile(
    profile: Profile, at: TaskWork, wanted: TaskWork, smaller: TaskWork | None = None, graph_bytes: int = 0
) -> Profile:
    """The profile for the parts and workers of `wanted`.

    `at` is the work where it was measured, and `smaller` that of its measurement with smaller batches.
    """
    here, there = _loads(at), _loads(wanted)
    small = None if smaller is None else _loads(smaller)
    operators = []
    for name, device in dict.fromkeys((each.name, each.device) for each in profile.operators):
        cost, *others = profile.measurements(name, device)
        seconds = cost.seconds.mean
        if name in here:
            less = (small[name], others[0].seconds.mean) if small is not None and others else None
            seconds = _on_line((here[name], seconds), less, there[name])
        elif name == SERVED_FOR_ALL:
            seconds = seconds * wanted.workers / profile.workers
        operators.append(cost.model_copy(update={"seconds": cost.seconds.model_copy(update={"mean": seconds})}))
    return profile.model_copy(
        update={
            "parts": wanted.parts,
            "workers": wanted.workers,
            "operators": operators,
            "transfers": [_scaled_transfer(each, at, wanted) for each in profile.transfers],
            "memory": [_scaled_memory(each, graph_bytes / _GB, profile.parts, wanted.parts) for each in profile.memory],
            "scaled_from": MeasuredSetup(parts=profile.parts, workers=profile.workers),
        }
    )


def _loads(work: TaskWork) -> Mapping[str, float]:
    """The load that the seconds of each operator follow, for one worker's batch."""
    vertices, entries = (float(each.sum()) / work.workers for each in (work.vertices, work.entries))
    both = vertices + entries
    return {"sample": entries, "gather": vertices, "step": both, "serve": both / work.parts}


def _on_line(here: tuple[float, float], less: tuple[float, float] | None, load: float) -> float:
    """Seconds at a load, on the line through two measurements; neither its slope nor its intercept is negative."""
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


def _scaled_transfer(measured: TransferCost, at: TaskWork, wanted: TaskWork) -> TransferCost:
    """A transfer scaled with the vertices that batches read, the list entries that they draw, or not at all."""
    if measured.name == "blocks":
        blocks = sum(measured.bytes[0]) / at.workers * wanted.entries.sum(axis=0)
        rows = [(blocks / max(at.entries.sum() / at.workers, 1e-300)).tolist()]
    elif measured.name == "lists":
        rows = _spread_over(measured.bytes, at.entries, wanted.entries)
    elif measured.name in ("features", "embeddings"):
        rows = _spread_over(measured.bytes, at.vertices, wanted.vertices)
    else:
        return measured
    return measured.model_copy(update={"bytes": rows})


def _scaled_memory(held: MemoryUse, graph_gb: float, before: int, after: int) -> MemoryUse:
    """A store's memory with a part of another size; that of other processes is unchanged."""
    if held.process != "store":
        return held
    other = held.gb + graph_gb / after - graph_gb / before
    return held.model_copy(update={"gb": max(other, _LEAST_SHARE * held.gb)})
