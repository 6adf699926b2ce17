"""From a workload, a network and the machines' means to a placement problem that has a solution."""

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.hardware.network import Network
from penstock.plan.placement.feasibility import check_machines, check_placeable
from penstock.plan.placement.problem import PlacementProblem
from penstock.simulate.workload import Workload


def placement_problem(
    load: Workload,
    network: Network,
    capacities: Mapping[str, Sequence[float] | Array],
    pinned: Mapping[str, str] | None = None,
    speeds: Sequence[float] | Array | None = None,
) -> PlacementProblem:
    """The problem of one job or of several merged ones; that a placement exists is checked.

    `capacities` gives each resource's amount on every machine in the network's order. `pinned` names the machine of a
    task; without it the k-th graph store of a job stays on the k-th machine. `speeds` of machines
    are 1 where not given.
    """
    missing = sorted(name for name, held in load.resources.items() if name not in capacities and held.any())
    if missing:
        raise PenstockError(
            f"Tasks need {missing[0]}, but the cluster does not say how much each machine has: set {missing[0]}.",
            code="option-missing",
        )
    names = tuple(name for name in load.resources if name in capacities)
    for name in names:
        if len(capacities[name]) != len(network.machines):
            raise PenstockError(
                f"The cluster gives {name} for {len(capacities[name])} of its {len(network.machines)} machines: give"
                " it for each.",
                code="shape-mismatch",
            )
    table = np.array([capacities[name] for name in names], np.float64).reshape(len(names), len(network.machines)).T
    homes = _named_pins(load, network, pinned) if pinned is not None else _store_pins(load, network)
    pace = np.ones(len(network.machines)) if speeds is None else np.asarray(speeds, np.float64)
    problem = PlacementProblem(load, network, names, np.ascontiguousarray(table), homes, _units(load), pace)
    check_machines(problem)
    check_placeable(problem)
    return problem


def _store_pins(load: Workload, network: Network) -> Array:
    homes = np.full(load.tasks, -1, np.int32)
    seen: dict[int, int] = {}
    for task, (kind, job) in enumerate(zip(load.task_kinds, load.task_jobs.tolist(), strict=True)):
        if kind == "store":
            homes[task] = seen.setdefault(job, 0)
            seen[job] += 1
    most = max(seen.values(), default=0)
    if most > len(network.machines):
        raise PenstockError(
            f"{most} graph stores need a machine each, and there are {len(network.machines)} machines: cut the graph"
            " into fewer parts, or pin every store to a machine.",
            code="infeasible",
        )
    return homes


def _named_pins(load: Workload, network: Network, pinned: Mapping[str, str]) -> Array:
    homes = np.full(load.tasks, -1, np.int32)
    numbers = {name: task for task, name in enumerate(load.task_names)}
    for task, machine in pinned.items():
        if task not in numbers:
            raise PenstockError(
                f"There is no task to pin called {task!r}{nearest(task, load.task_names)}", code="unknown-name"
            )
        homes[numbers[task]] = network.machine(machine)
    return homes


def _units(load: Workload) -> Array:
    """One unit for each task that stands by itself, with all that stand beside it; numbered by their first task."""
    return np.unique(load.beside, return_inverse=True)[1].reshape(-1).astype(np.int32)
