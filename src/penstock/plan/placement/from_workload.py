"""From a workload, a network and the machines' capacities to a placement problem that has a solution."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.hardware.machines import Network
from penstock.plan.placement.packing import classes_of, fits, most_of_commonest
from penstock.plan.placement.problem import PlacementProblem
from penstock.simulate.workload import Workload

# Whether a placement exists; if not, an error that names the resource and how much is missing.


def _infeasible(sentence: str) -> PenstockError:
    return PenstockError(sentence, code="infeasible")


def check_machines(problem: PlacementProblem) -> None:
    """Check that every machine has a speed above 0 and a finite amount, 0 or more, of every resource."""
    machines, capacities, speeds = problem.network.machines, problem.capacities, problem.speeds
    if len(speeds) != len(machines):
        raise PenstockError(
            f"{len(speeds)} speeds are given for {len(machines)} machines: give one for each.", code="shape-mismatch"
        )
    bad = np.flatnonzero(~(np.isfinite(speeds) & (speeds > 0)))
    if len(bad):
        raise PenstockError(
            f"Machine {machines[bad[0]]} has a speed of {speeds[bad[0]]:g}: give a finite number above 0.",
            code="value-out-of-range",
        )
    wrong = np.argwhere(~(np.isfinite(capacities) & (capacities >= 0)))
    if len(wrong):
        machine, resource = wrong[0]
        raise PenstockError(
            f"Machine {machines[machine]} has {capacities[machine, resource]:g} {problem.resources[resource]}:"
            " give a finite number, 0 or more.",
            code="value-out-of-range",
        )


def check_placeable(problem: PlacementProblem) -> None:
    """Raise an error for the first obstacle: pinned tasks, sums, a task too large, or the packing."""
    _check_pinned(problem)
    _check_sums(problem)
    _check_single_tasks(problem)
    _check_packing(problem)


def _check_pinned(problem: PlacementProblem) -> None:
    used = problem.capacities - problem.free
    over = np.argwhere(problem.free < -1e-9 * np.maximum(problem.capacities, 1))
    if len(over):
        machine, resource = over[0]
        has = problem.capacities[machine, resource]
        raise _infeasible(
            f"The tasks pinned to {problem.network.machines[machine]} need {used[machine, resource]:g}"
            f" {problem.resources[resource]} and it has {has:g}: add {used[machine, resource] - has:g},"
            " or pin some elsewhere."
        )


def _check_sums(problem: PlacementProblem) -> None:
    needed = problem.demands.sum(axis=0)
    has = problem.capacities.sum(axis=0)
    short = np.flatnonzero(needed > has * (1 + 1e-9))
    if not len(short):
        return
    resource = int(short[0])
    name = problem.resources[resource]
    asking = np.flatnonzero(problem.demands[:, resource] > 0)
    lack = needed[resource] - has[resource]
    counts = Counter(problem.kinds[unit] for unit in asking)
    verb = "needs" if len(asking) == 1 else "need"
    who = f"{_listed(counts)} {verb} {needed[resource]:g} {name}"
    cluster = f"the cluster has {has[resource]:g}" if has[resource] else "the cluster has none"
    remedy = "ask for fewer tasks"
    if len(counts) == 1:
        kind = next(iter(counts))
        fitting = int(has[resource] / problem.demands[asking, resource].max() + 1e-9)
        remedy = f"ask for {_counted(fitting, kind)}" if fitting else f"ask for a {kind} without {name}"
    raise _infeasible(f"{who} and {cluster}: add {lack:g}, or {remedy}.")


def _check_single_tasks(problem: PlacementProblem) -> None:
    demands, class_of = classes_of(problem.demands[problem.movable])
    for number, demand in enumerate(demands):
        if any(fits(demand, free) for free in problem.free):
            continue
        unit = problem.movable[int(np.flatnonzero(class_of == number)[0])]
        task = problem.workload.task_names[int(np.flatnonzero(problem.unit_of == unit)[0])]
        most = problem.free.max(axis=0)
        larger = np.flatnonzero(demand > most)
        if len(larger):
            resource = int(larger[0])
            name = problem.resources[resource]
            raise _infeasible(
                f"{task} needs {demand[resource]:g} {name} and no machine has more than {most[resource]:g} free:"
                f" give one machine {demand[resource] - most[resource]:g} more, or the task less."
            )
        needs = " and ".join(f"{amount:g} {name}" for amount, name in zip(demand, problem.resources, strict=True))
        raise _infeasible(f"{task} needs {needs} and no single machine has all of it free: give one machine more.")


def _check_packing(problem: PlacementProblem) -> None:
    demands, class_of = classes_of(problem.demands[problem.movable])
    wanted = np.bincount(class_of, minlength=len(demands))
    most = most_of_commonest(demands, wanted, problem.free)
    if most >= wanted.max(initial=0):
        return
    common = int(wanted.argmax())
    kinds = Counter(problem.kinds[unit] for unit in problem.movable[class_of == common])
    rest = Counter(problem.kinds[unit] for unit in problem.movable[class_of != common])
    sums = ", ".join(
        f"{name} {needed:g} of {has:g}"
        for name, needed, has in zip(
            problem.resources, problem.demands.sum(axis=0), problem.capacities.sum(axis=0), strict=True
        )
    )
    if most < 0:
        raise _infeasible(
            f"The sums fit ({sums}), but no packing puts {_listed(rest)} on the machines:"
            " give machines more of what is nearly used up, or ask for fewer tasks."
        )
    lack = int(wanted[common]) - most
    demand = " and ".join(
        f"{amount:g} {name}" for amount, name in zip(demands[common], problem.resources, strict=True) if amount > 0
    )
    beside = f" beside {_listed(rest)}" if rest else ""
    raise _infeasible(
        f"The sums fit ({sums}), but no packing does: {most} of {_listed(kinds)} fit on the machines{beside}; give"
        f" machines room for {lack} more of {demand} each, or ask for {lack} fewer."
    )


def _listed(counts: Counter[str]) -> str:
    words = [_counted(count, kind) for kind, count in counts.items()]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"


def _counted(count: int, kind: str) -> str:
    return f"{count} {kind}" if count == 1 else f"{count} {kind}s"


def placement_problem(
    load: Workload,
    network: Network,
    capacities: Mapping[str, Sequence[float] | Array],
    pinned: Mapping[str, str] | None = None,
    speeds: Sequence[float] | Array | None = None,
) -> PlacementProblem:
    """The problem of one job or of several merged ones; checked to have a solution.

    `capacities` gives each resource's amount on every machine in the network's order. `pinned` names the machine of a
    task; without it the k-th graph store of a job stays on the k-th machine. `speeds` of machines are 1 where not
    given.
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
    """One unit for each independent task, with all tasks that stay beside it; numbered by their first task."""
    return np.unique(load.beside, return_inverse=True)[1].reshape(-1).astype(np.int32)
