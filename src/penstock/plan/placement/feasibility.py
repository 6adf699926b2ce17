"""Whether a placement exists; where none does, a sentence that names the resource and by how much it lacks."""

from collections import Counter

import numpy as np

from penstock.errors import PenstockError
from penstock.plan.placement.packing import classes_of, fits, most_of_commonest
from penstock.plan.placement.problem import PlacementProblem


def check_machines(problem: PlacementProblem) -> None:
    """Every machine has a speed above 0 and a finite amount, 0 or more, of every resource."""
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
    """Raise the sentence of the first thing in the way: pinned tasks, sums, a task too large, or the packing."""
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
        raise PenstockError(
            f"The tasks pinned to {problem.network.machines[machine]} need {used[machine, resource]:g}"
            f" {problem.resources[resource]} and it has {has:g}: add {used[machine, resource] - has:g},"
            " or pin some elsewhere.",
            code="infeasible",
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
    raise PenstockError(f"{who} and {cluster}: add {lack:g}, or {remedy}.", code="infeasible")


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
            raise PenstockError(
                f"{task} needs {demand[resource]:g} {name} and no machine has more than {most[resource]:g} free:"
                f" give one machine {demand[resource] - most[resource]:g} more, or the task less.",
                code="infeasible",
            )
        needs = " and ".join(f"{amount:g} {name}" for amount, name in zip(demand, problem.resources, strict=True))
        raise PenstockError(
            f"{task} needs {needs} and no single machine has all of it free: give one machine more.", code="infeasible"
        )


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
        raise PenstockError(
            f"The sums fit ({sums}), but no packing puts {_listed(rest)} on the machines:"
            " give machines more of what is nearly used up, or ask for fewer tasks.",
            code="infeasible",
        )
    lack = int(wanted[common]) - most
    demand = " and ".join(
        f"{amount:g} {name}" for amount, name in zip(demands[common], problem.resources, strict=True) if amount > 0
    )
    beside = f" beside {_listed(rest)}" if rest else ""
    raise PenstockError(
        f"The sums fit ({sums}), but no packing does: {most} of {_listed(kinds)} fit on the machines{beside}; give"
        f" machines room for {lack} more of {demand} each, or ask for {lack} fewer.",
        code="infeasible",
    )


def _listed(counts: Counter[str]) -> str:
    words = [_counted(count, kind) for kind, count in counts.items()]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"


def _counted(count: int, kind: str) -> str:
    return f"{count} {kind}" if count == 1 else f"{count} {kind}s"
