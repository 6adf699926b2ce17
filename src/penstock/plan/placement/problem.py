"""What is to be placed: tasks with demands, machines with capacities, and what may not move or moves together."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from penstock.graph.arrays import Array
from penstock.hardware.network import Network
from penstock.simulate.workload import Workload


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """A workload, the network it runs on, and the limits of every machine (`placement_problem` poses and checks it).

    Tasks are placed in units: tasks of one unit stand on one machine (ring steps with their worker). A unit with a
    pinned task does not move (a graph store stays with its part).
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
        """Number of machines, M."""
        return len(self.network.machines)

    @cached_property
    def units(self) -> int:
        """Number of units, U."""
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
