"""What is to be placed: tasks, machines and units that move together; as flat arrays, with the state of a walk over
them.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.hardware.machines import Network
from penstock.kernels import njit
from penstock.simulate.workload import Workload

# What is to be placed: tasks with demands, machines with capacities, and what may not move or moves together.


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """A workload, the network it runs on, and the limits of every machine (made and checked by `placement_problem`).

    Tasks are placed in units: tasks of one unit are on one machine (ring steps with their worker). A unit with a pinned
    task does not move (a graph store stays with its part).
    """

    workload: Workload
    network: Network
    resources: tuple[str, ...]
    capacities: Array  # float64 [M, R]
    pinned: Array  # int32 [T]: machine, or -1
    unit_of: Array  # int32 [T]: units are numbered from 0 by their first task
    speeds: Array  # float64 [M]: a task takes its seconds divided by its machine's speed
    demands: Array = field(init=False)  # float64 [U, R]: what a unit holds

    def __post_init__(self) -> None:
        held = np.stack([self.workload.resources[name] for name in self.resources], axis=1) if self.resources else None
        demands = np.zeros((self.units, len(self.resources)))
        if held is not None:
            np.add.at(demands, self.unit_of, held)
        object.__setattr__(self, "demands", demands)

    @property
    def machines(self) -> int:
        """The number of machines, M."""
        return len(self.network.machines)

    @cached_property
    def units(self) -> int:
        """The number of units, U."""
        return int(self.unit_of.max()) + 1

    def units_at(self, machine_of: Array) -> Array:
        """The machine of every unit in a placement of tasks, int32 [U]."""
        _, first = np.unique(self.unit_of, return_index=True)
        return np.asarray(machine_of, np.int32)[first]

    @cached_property
    def home(self) -> Array:
        """The machine of every pinned unit and -1 for those that move, int32 [U]."""
        home = np.full(self.units, -1, np.int32)
        held = self.pinned >= 0
        home[self.unit_of[held]] = self.pinned[held]
        return home

    @cached_property
    def movable(self) -> Array:
        """Units that may be placed anywhere, int32."""
        return np.flatnonzero(self.home < 0).astype(np.int32)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kind of every unit: that of its first task."""
        _, first = np.unique(self.unit_of, return_index=True)
        return tuple(self.workload.task_kinds[task] for task in first)

    @cached_property
    def free(self) -> Array:
        """Capacities less what pinned units hold, float64 [M, R]."""
        free = self.capacities.copy()
        held = self.home >= 0
        np.subtract.at(free, self.home[held], self.demands[held])
        return free

    @cached_property
    def groups(self) -> list[Array]:
        """Every worker's movable unit followed by those of its samplers, int32 each, in the order of workers."""
        kinds, load = self.kinds, self.workload
        fed = {unit: [unit] for unit in range(self.units) if kinds[unit] == "worker" and self.home[unit] < 0}
        for source, target in zip(load.sources.tolist(), load.targets.tolist(), strict=True):
            giver, taker = int(self.unit_of[source]), int(self.unit_of[target])
            samples = kinds[giver] == "sampler" and self.home[giver] < 0
            if samples and taker in fed and giver not in fed[taker]:
                fed[taker].append(giver)
        return [np.array(units, np.int32) for units in fed.values()]

    def machine_of(self, machine_of_unit: Array) -> Array:
        """The placement of tasks (int32 [T]) that a placement of units gives."""
        return np.asarray(machine_of_unit, np.int32)[self.unit_of]

    def over_use(self, machine_of_unit: Array) -> Array:
        """What machines hold beyond their capacities, float64 [M, R], 0 where they do not."""
        used = np.zeros_like(self.capacities)
        np.add.at(used, machine_of_unit, self.demands)
        return np.asarray(np.maximum(used - self.capacities * (1 + 1e-9), 0))


# A problem as flat arrays, and the state of a walk over its placements: where units are and what links carry.


class Tables(NamedTuple):
    """What does not change while units move. Bytes are integers, so that sums of them are exact in any order."""

    unit_task_starts: Array  # int32 [U + 1]
    unit_tasks: Array  # int32
    unit_flow_starts: Array  # int32 [U + 1]
    unit_flows: Array  # int32: flows with an end in the unit
    sources: Array  # int32 [F]
    targets: Array  # int32 [F]
    flow_bytes: Array  # float64 [F]: mean bytes of an iteration
    path_starts: Array  # int32 [M * M + 1]
    path_links: Array  # int32
    link_rates: Array  # float64 [L]: bytes per second
    demands: Array  # float64 [U, R]
    capacities: Array  # float64 [M, R]
    unit_seconds: Array  # float64 [U]: of the unit's longest task, on a machine of speed 1
    slowness: Array  # float64 [M]: 1 over a machine's speed
    movable: Array  # int32
    group_starts: Array  # int32 [G + 1]
    group_units: Array  # int32: a worker's unit, then its samplers'
    group_of: Array  # int32 [U]: the group of a unit, -1 without


class Walk(NamedTuple):
    """A placement and what follows from it, kept up to date by `move`."""

    units: Array  # int32 [U]: machine, or -1: not placed yet, its flows do not count
    tasks: Array  # int32 [T]: machine, or -1
    link_bytes: Array  # float64 [L]: bytes of an iteration
    link_flows: Array  # int64 [L]: flows of an iteration (the degrees of eq. 21 and 22)
    used: Array  # float64 [M, R]


def tables_of(problem: PlacementProblem, flow_bytes: Array | None = None) -> Tables:
    """The problem for kernels; `flow_bytes` [F] replaces the workload's own means where given."""
    load, network = problem.workload, problem.network
    touching: list[list[int]] = [[] for _ in range(problem.units)]
    ends = zip(problem.unit_of[load.sources].tolist(), problem.unit_of[load.targets].tolist(), strict=True)
    for flow, (source, target) in enumerate(ends):
        touching[source].append(flow)
        if target != source:
            touching[target].append(flow)
    task_starts, tasks = _rows([np.flatnonzero(problem.unit_of == unit).tolist() for unit in range(problem.units)])
    flow_starts, flows = _rows(touching)
    group_starts, group_units = _rows([group.tolist() for group in problem.groups])
    unit_seconds = np.zeros(problem.units)
    np.maximum.at(unit_seconds, problem.unit_of, load.task_seconds)
    group_of = np.full(problem.units, -1, np.int32)
    for number, group in enumerate(problem.groups):
        group_of[group] = number
    return Tables(
        task_starts,
        tasks,
        flow_starts,
        flows,
        load.sources.astype(np.int32),
        load.targets.astype(np.int32),
        np.round(load.flow_bytes if flow_bytes is None else flow_bytes).astype(np.float64),
        network.path_starts.astype(np.int32),
        network.path_links.astype(np.int32),
        network.capacities.astype(np.float64),
        np.ascontiguousarray(problem.demands),
        np.ascontiguousarray(problem.capacities),
        unit_seconds,
        1 / problem.speeds,
        problem.movable,
        group_starts,
        group_units,
        group_of,
    )


def walk_from(tables: Tables, machine_of_unit: Array) -> Walk:
    """The state that begins at a placement of units."""
    walk = Walk(
        machine_of_unit.astype(np.int32),
        np.empty(len(tables.unit_tasks), np.int32),
        np.zeros(len(tables.link_rates)),
        np.zeros(len(tables.link_rates), np.int64),
        np.zeros_like(tables.capacities),
    )
    settle(tables, walk)
    return walk


@njit(nogil=True, cache=True)
def settle(tables: Tables, walk: Walk) -> None:
    """Compute the tasks' machines, the links' bytes and flows and the use of machines from `walk.units` anew."""
    walk.link_bytes[:] = 0
    walk.link_flows[:] = 0
    walk.used[:] = 0
    for unit in range(walk.units.shape[0]):
        for at in range(tables.unit_task_starts[unit], tables.unit_task_starts[unit + 1]):
            walk.tasks[tables.unit_tasks[at]] = walk.units[unit]
        if walk.units[unit] >= 0:
            for resource in range(walk.used.shape[1]):
                walk.used[walk.units[unit], resource] += tables.demands[unit, resource]
    for flow in range(tables.sources.shape[0]):
        _count(tables, walk, flow, 1)


@njit(nogil=True, cache=True)
def move(tables: Tables, walk: Walk, unit: int, to: int) -> None:
    """Put one unit on another machine (or on none, -1); the cost is that of its flows."""
    here = walk.units[unit]
    if here == to:
        return
    for at in range(tables.unit_flow_starts[unit], tables.unit_flow_starts[unit + 1]):
        _count(tables, walk, tables.unit_flows[at], -1)
    walk.units[unit] = to
    for at in range(tables.unit_task_starts[unit], tables.unit_task_starts[unit + 1]):
        walk.tasks[tables.unit_tasks[at]] = to
    for at in range(tables.unit_flow_starts[unit], tables.unit_flow_starts[unit + 1]):
        _count(tables, walk, tables.unit_flows[at], 1)
    for resource in range(walk.used.shape[1]):
        if here >= 0:
            walk.used[here, resource] -= tables.demands[unit, resource]
        if to >= 0:
            walk.used[to, resource] += tables.demands[unit, resource]


@njit(nogil=True, cache=True)
def over_use(tables: Tables, walk: Walk) -> float:
    """Sum over machines and resources of the use beyond the capacity, relative to it (the penalty of eq. 27).

    Infinity where a machine without a resource is used for it.
    """
    total = 0.0
    for machine in range(walk.used.shape[0]):
        for resource in range(walk.used.shape[1]):
            capacity = tables.capacities[machine, resource]
            beyond = walk.used[machine, resource] - capacity
            if beyond > 1e-9 * capacity + 1e-9:
                if capacity == 0:
                    return np.inf
                total += beyond / capacity
    return total


@njit(nogil=True, cache=True)
def _count(tables: Tables, walk: Walk, flow: int, sign: int) -> None:
    """Add a flow to the links it crosses, or remove it."""
    machines = tables.capacities.shape[0]
    source, target = walk.tasks[tables.sources[flow]], walk.tasks[tables.targets[flow]]
    if source < 0 or target < 0:
        return
    pair = source * machines + target
    for at in range(tables.path_starts[pair], tables.path_starts[pair + 1]):
        link = tables.path_links[at]
        walk.link_bytes[link] += sign * tables.flow_bytes[flow]
        walk.link_flows[link] += sign


def _rows(rows: list[list[int]]) -> tuple[Array, Array]:
    """Lists of numbers as starts and values, int32 each."""
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    return starts, np.array([value for row in rows for value in row], np.int32)
