"""The interface of an execution mode to the planner: a section of the plan, a run's workload, sums of gradients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock.cost.profile import Profile
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument
from penstock.graph.folder import Graph
from penstock.hardware.cluster import ClusterDocument
from penstock.hardware.machines import Machines
from penstock.sampling.entry import SamplerEntry
from penstock.simulate.timeline import Timeline
from penstock.simulate.workload import Item, Spread, Workload, WorkloadBuilder

# Memory over time: what machines and their devices hold in a simulated run.


class HeldMemory(NamedTuple):
    """Memory that a task's machine holds from the start of the task in each iteration on."""

    task: str
    gb: float
    device: str = "cpu"
    until: str | None = None
    """The task at whose end it is freed; None: it is held for the whole run."""
    lag: int = 0
    """It is freed so many iterations later."""


class MemoryCurve(NamedTuple):
    """The use of one kind of memory: `gb[k]` from `seconds[k]` to `seconds[k + 1]`."""

    seconds: Array
    gb: Array

    @property
    def peak(self) -> float:
        """The most that is held at any time."""
        return float(self.gb.max(initial=0.0))


def memory_over_time(
    timeline: Timeline, placement: Array, held: Iterable[HeldMemory]
) -> dict[tuple[str, str], MemoryCurve]:
    """By machine and kind of device, what is held in a timeline whose tasks are placed on machines by number."""
    numbers = timeline.load.item_numbers
    changes: dict[tuple[str, str], list[Array]] = {}
    for each in held:
        task = numbers[each.task]
        place = timeline.network.machines[int(placement[task])], each.device
        if each.until is None:
            found = np.array([[0.0, each.gb]])
        else:
            starts, ends = timeline.starts[:, task], timeline.ends[each.lag :, numbers[each.until]]
            # Memory of the last iterations is freed after the end of the simulation.
            taken = np.stack([starts, np.full(len(starts), each.gb)], axis=1)
            found = np.concatenate([taken, np.stack([ends, np.full(len(ends), -each.gb)], axis=1)])
        changes.setdefault(place, []).append(found)
    return {place: _curve(np.concatenate(parts)) for place, parts in changes.items()}


def _curve(changes: Array) -> MemoryCurve:
    """Changes of (second, GB) summed in order; at equal times memory is freed before it is taken."""
    ordered = changes[np.lexsort((changes[:, 1], changes[:, 0]))]
    return MemoryCurve(ordered[:, 0], np.maximum(ordered[:, 1].cumsum(), 0.0))


@dataclass(frozen=True, eq=False)
class ExecutionWorkload:
    """A run in the simulator's terms: the repeated template, how amounts vary, and what is pinned."""

    load: Workload
    """The repeated tasks and flows. Resources of a task are held for the whole run."""
    memory: tuple[HeldMemory, ...] = ()
    """Further memory of tasks: of devices, and memory that is taken and freed."""
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """How amounts vary from iteration to iteration, by kind of task or flow."""
    pinned: Mapping[str, int] = field(default_factory=dict)
    """Tasks that cannot be moved, and the number of their machine in the cluster document."""
    owners: str | None = None
    """The kind of tasks that hold the data which others read; on large clusters these reads are simulated in turns."""
    unrolled: int = 1
    """Iterations of the run in one iteration of the workload."""
    ahead: int = 0
    """Iterations of the workload that tasks work ahead of the last one."""
    period: int | None = None
    """Iterations after which amounts repeat; None: as many as the number of flows allows."""
    floor_s: Callable[[Machines], float] = lambda machines: 0.0
    """A lower bound on the seconds of an iteration from what the simulator does not model."""
    words: Mapping[str, str] = field(default_factory=dict)
    """For each kind of task, its work in words: `worker-0 spends 90 % of the time on WORDS`."""
    notes: tuple[str, ...] = ()
    """Notes on a prediction from this workload."""


def _no_graph() -> Graph:
    raise PenstockError("This plan needs the job's graph: plan with `penstock plan JOB`.", code="missing-data")


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """What a run's setup is decided from."""

    cluster: ClusterDocument
    job: Any
    profile: Profile
    device: str = "cpu"
    """The kind of device that workers compute on."""
    gpus: float = 0.0
    """GPUs that each worker needs."""
    seats: tuple[int, ...] | None = None
    """The machine of every worker, if a placement is known; None: as in the cluster file."""
    open_graph: Callable[[], Graph] = _no_graph
    """Opens the job's graph, for modes whose amounts depend on its partition."""

    @property
    def has_graph(self) -> bool:
        """Whether the job's graph can be opened."""
        return self.open_graph is not _no_graph


@dataclass(frozen=True)
class WorkloadEntry:
    """One execution mode that can be planned for."""

    mode: str
    section: type[StrictDocument]
    """The document of a run's setup in this mode: the section `execution` of its plan, beside `mode`."""
    set_up: Callable[[PlannedRun], Any]
    """From a run to the section."""
    build: Callable[[Profile, Any], ExecutionWorkload]
    """(profile, section) -> the workload."""
    conditions: Callable[[ClusterDocument], Mapping[str, Any]]
    """Settings of a cluster that affect the amounts of a profile: they must be the same as when it was measured."""
    samplers: Callable[[SamplerEntry], bool] | None = None
    """Whether jobs with a sampler are executed in this mode; None: those that no other mode claims."""
    any_size: bool = False
    """Whether a profile serves clusters of every size, as its amounts are per row and edge."""
    uses_replicas: bool = False
    """Whether replicas of features, and the wire type of rows, affect what is sent."""
    decides: Callable[[Any], Mapping[str, Any]] = lambda section: {}
    """Job fields that its section decided: the plan's job has them."""


# Gradients summed by parameter servers, or around a ring of the workers: their tasks and flows.

_ROUNDS = 8
"""The most simulated steps of a ring."""


class Summed(NamedTuple):
    """Gradients that are summed together."""

    label: str
    """A label in the names of tasks and flows."""
    bytes: float
    computed: Sequence[Item]
    """The task of each worker that computes its gradients."""
    following: Sequence[Item]
    """The task of each worker that needs the sum."""
    lag: int = 0
    """How many iterations later it needs it."""


def sum_on_servers(building: WorkloadBuilder, summed: Summed, servers: Sequence[Item], seconds: float) -> None:
    """Every server gets its share of the gradients from all workers, and sends back weights."""
    shard = summed.bytes / len(servers)
    for number, server in enumerate(servers):
        added = building.work(f"sum {number}.{summed.label}", "sum", seconds, server)
        for rank, (step, next_step) in enumerate(zip(summed.computed, summed.following, strict=True)):
            building.flow(
                step, added, shard, "gradients",
                name=f"gradients {rank}.{summed.label} to {number}", follows_itself=False,
            )  # fmt: skip
            building.flow(
                added, next_step, shard, "weights",
                name=f"weights {number} to {rank}.{summed.label}", arrival_lag=summed.lag, follows_itself=False,
            )  # fmt: skip


def sum_around_ring(building: WorkloadBuilder, summed: Summed, workers: Sequence[Item]) -> None:
    """2(n - 1) steps in which every worker sends an n-th to the next, one after the other.

    A ring of many workers is simulated with fewer and larger steps, as many bytes in all. These do not propagate the
    delay of a late worker all the way around, so all wait for the last one first: with every step, each would wait for
    it too.
    """
    computed, following, label = summed.computed, summed.following, summed.label
    size = len(computed)
    rounds = min(2 * (size - 1), _ROUNDS)
    sent = summed.bytes * 2 * (size - 1) / size / rounds
    hops = [
        [building.work(f"hop {rank}.{label}.{hop}", "hop", 0.0, workers[rank]) for hop in range(rounds)]
        for rank in range(size)
    ]
    whole = rounds == 2 * (size - 1)
    first = computed if whole else [_all_computed(building, label, computed, workers[0])] * size
    for rank in range(size):
        building.wait(first[rank], hops[rank][0])
        right = (rank + 1) % size
        for hop in range(rounds):
            ends = hop == rounds - 1
            sending = building.flow(
                hops[rank][hop], following[right] if ends else hops[right][hop + 1], sent, "ring",
                name=f"ring {rank}.{label}.{hop}", coflow=f"ring {label}.{hop}",
                arrival_lag=summed.lag if ends else 0, follows_itself=False,
            )  # fmt: skip
            if not ends:
                # A worker sends one step's share after the other.
                building.wait(sending, hops[rank][hop + 1])


def _all_computed(building: WorkloadBuilder, label: str, computed: Sequence[Item], worker: Item) -> Item:
    """A task that ends when every worker has computed."""
    last = building.work(f"computed {label}", "hop", 0.0, worker)
    for each in computed:
        building.wait(each, last)
    return last
