"""Compares placements and flow policies: each is simulated over the same iterations, and the best one kept."""

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

import numpy as np

from penstock.graph.arrays import Array
from penstock.hardware.machines import Machines
from penstock.plan.bound import cluster_bound, placement_bound
from penstock.plan.document import Compared
from penstock.plan.placement import Budget, Evaluator, PlacedUnits, PlacementProblem, place, placement_problem
from penstock.plan.placement.evaluator import Walks
from penstock.plan.workloads import ExecutionWorkload
from penstock.progress import Progress
from penstock.simulate.levels import gap_of
from penstock.simulate.simulation import Simulator
from penstock.simulate.timeline import Timeline
from penstock.simulate.workload import Amounts, Spread, Workload, draw_amounts

# The iterations that a plan is simulated over: how many, and the amounts of each. Amounts repeat with a period. Within
# one period every task and flow has exactly its mean, so that the busiest link of a simulated run is as busy as that of
# a long run. Large clusters are simulated over fewer iterations, and each batch reads from some of the far parts at a
# time, in turn and correspondingly more from each: as many bytes, in fewer flows.

_PERIODS = 4
"""Periods over which a placement is measured."""
_LONG, _SHORT = 32, 8
"""Iterations of a period, and those of a large cluster."""
_MANY = 1_000
"""Flows per iteration from which a cluster counts as large."""
_READ = 16
"""The least number of far parts that a batch of a large cluster reads from."""
_NEAR = 2.0
"""A part from which a batch reads this many times the mean is near, and read in every iteration."""


@dataclass(frozen=True, eq=False)
class Iterations:
    """What is simulated for a workload."""

    searched: Amounts
    """One period, over which a search compares placements."""
    judged: Amounts
    """Several periods, over which the pace of a placement is measured."""
    turns: int
    """Iterations over which a batch's reads from all far parts are spread; 1: every batch reads from all."""

    @property
    def period(self) -> int:
        """Iterations after which amounts repeat."""
        return len(self.searched.seconds)


def draw_iterations(
    load: Workload,
    seed: int,
    spreads: Mapping[str, Spread],
    ahead: int,
    owners: str | None = None,
    own_period: int | None = None,
) -> Iterations:
    """The iterations of a workload whose pipeline works `ahead` of them.

    `owners` is the kind of tasks that hold what others read: on large clusters, reads from them are made in turns.
    `own_period` replaces the number of iterations after which amounts repeat.
    """
    large = load.flows > _MANY or own_period is not None
    period = own_period or (_SHORT if large else _LONG)
    turns = _turns_of(load, period, owners) if large and owners is not None else 1
    drawn = draw_amounts(load, period, seed, spreads)
    one = _balanced(_in_turns(drawn, load, turns, owners) if turns > 1 else drawn, load)
    # A third of the run fills the pipeline, the end drains it, and at least one period is left between. Whole periods
    # are measured, so that links carry their means there too.
    periods = -(-(period + ahead + 1) * 3 // (2 * period)) if large else _PERIODS
    rows = np.arange(periods * period) % period
    return Iterations(one, Amounts(one.seconds[rows], one.sizes[rows]), turns)


def _balanced(drawn: Amounts, load: Workload) -> Amounts:
    """The same with every item's mean over the iterations exactly the workload's."""
    return Amounts(_with_mean(drawn.seconds, load.task_seconds), _with_mean(drawn.sizes, load.flow_bytes))


def _with_mean(values: Array, mean: Array) -> Array:
    found = values.mean(axis=0)
    scale = np.divide(mean, found, out=np.ones_like(found), where=found > 0)
    # An item that drew only zeros becomes constant.
    return np.ascontiguousarray(np.where(found > 0, values * scale, mean))


def _turns_of(load: Workload, period: int, owners: str) -> int:
    """The number of iterations in which all far parts are read: a power of two, so that a period holds whole turns."""
    parts, turns = load.task_kinds.count(owners), 1
    while 2 * turns <= period and parts // (2 * turns) >= _READ:
        turns *= 2
    return turns


def _in_turns(amounts: Amounts, load: Workload, turns: int, owners: str | None) -> Amounts:
    """Every batch reads from each far part in one of so many iterations, so many times as much."""
    seconds, sizes = amounts.seconds.copy(), amounts.sizes.copy()
    iterations = np.arange(len(sizes))
    # Work that an owner does for one request: it is beside the owner, and sends.
    owned = np.array([kind == owners for kind in load.task_kinds])[load.beside]
    serving = owned & (load.beside != np.arange(load.tasks))
    for number, flows in _reads(load, owners):
        # Assign the largest first, so that every turn has about as many bytes; neighbouring tasks begin with different
        # parts.
        far = flows[load.flow_bytes[flows] <= _NEAR * load.flow_bytes[flows].mean()]
        ranked = far[np.argsort(-load.flow_bytes[far], kind="stable")]
        idle = (np.arange(len(ranked))[None, :] + number + iterations[:, None]) % turns != 0
        sizes[:, ranked] = np.where(idle, 0.0, turns * sizes[:, ranked])
        # A store's work on a request grows with its bytes.
        served = serving[load.sources[ranked]]
        senders = load.sources[ranked[served]]
        seconds[:, senders] = np.where(idle[:, served], 0.0, turns * seconds[:, senders])
    return Amounts(seconds, sizes)


def _reads(load: Workload, owners: str | None) -> list[tuple[int, Array]]:
    """The flows between all parts and one task, of one kind, and the task's number among those with such flows."""
    stores = np.array([kind == owners for kind in load.task_kinds])[load.beside]
    groups: dict[tuple[str, int], list[int]] = {}
    for flow, (source, target) in enumerate(zip(load.sources.tolist(), load.targets.tolist(), strict=True)):
        if stores[source] != stores[target]:
            other = target if stores[source] else source
            groups.setdefault((load.flow_kinds[flow], other), []).append(flow)
    seen: Counter[str] = Counter()
    found = []
    for (kind, _), flows in groups.items():
        found.append((seen[kind], np.array(flows)))
        seen[kind] += 1
    return found


# Independent pieces of work on several threads, which end soon after Ctrl-C. Simulations are kernels that release the
# interpreter lock, so threads suffice to use several cores. Kernels return to Python a few times per second; an
# exception that is set for a thread is raised there when they do.

Result = TypeVar("Result")


class _StoppedError(BaseException):
    """Raised in threads whose results are no longer needed."""


def in_threads(works: Sequence[Callable[[], Result]], threads: int) -> list[Result]:
    """The results of all pieces of work, in order. The first exception, Ctrl-C among them, stops all others."""
    if threads <= 1 or len(works) <= 1:
        return [work() for work in works]
    left: SimpleQueue[int] = SimpleQueue()
    for number in range(len(works)):
        left.put(number)
    done: SimpleQueue[tuple[int, Result | None, BaseException | None]] = SimpleQueue()

    def take() -> None:
        try:
            while True:
                number = left.get_nowait()
                try:
                    done.put((number, works[number](), None))
                except Exception as error:
                    done.put((number, None, error))
        except (Empty, _StoppedError):
            return

    # Daemons: an interrupted command does not wait for them.
    started = [threading.Thread(target=take, daemon=True) for _ in range(min(threads, len(works)))]
    results: dict[int, Result] = {}
    try:
        for thread in started:
            thread.start()
        while len(results) < len(works):
            number, result, error = done.get()
            if error is not None:
                raise error
            results[number] = result  # type: ignore[assignment]
    except BaseException:
        _stop(started)
        raise
    return [results[number] for number in range(len(works))]


def _stop(threads: Sequence[threading.Thread]) -> None:
    """Raise an exception in each thread as soon as it returns to Python."""
    for thread in threads:
        if thread.ident is not None and thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_StoppedError))


_SIMULATED = 3e8
"""The bound on the sum of squared flows, over all iterations of a period, that the simulations of
one search may reach.
"""
_LEAST_SIMULATIONS = 4


@dataclass(frozen=True, eq=False)
class Trial:
    """One placement under one flow policy."""

    placed: PlacedUnits
    flows: str
    timeline: Timeline
    iteration_s: float
    lower_bound_s: float
    turns: int
    """Iterations of the run in one iteration of the timeline."""

    def row(self, batches: int) -> Compared:
        """The trial as a row of the comparison."""
        slowest = int(np.argmax(self.timeline.link_use)) if len(self.timeline.link_use) else 0
        size = float(self.timeline.link_bytes[slowest]) / self.timeline.iterations / self.turns
        return Compared(
            placement=self.placed.policy,
            flows=self.flows,
            iteration_s=self.iteration_s,
            epoch_s=self.iteration_s * batches,
            lower_bound_s=self.lower_bound_s,
            gap=gap_of(self.iteration_s, self.lower_bound_s),
            slowest_link=self.timeline.network.link_names[slowest],
            slowest_link_bytes=size,
        )


class Comparison:
    """One run on one cluster, compared under many placements and policies."""

    def __init__(self, work: ExecutionWorkload, machines: Machines, seed: int = 0) -> None:
        self.work, self.load, self.machines, self._seed = work, work.load, machines, seed
        self.iterations = draw_iterations(work.load, seed, work.spreads, work.ahead, work.owners, work.period)
        self.problem = self._problem(machines)

    @property
    def simulations(self) -> int:
        """The default number of placements that a search may simulate: fewer the more flows there are."""
        sizes = self.iterations.searched.sizes
        work = np.count_nonzero(sizes) ** 2 / len(sizes)
        return int(max(_LEAST_SIMULATIONS, _SIMULATED // max(work, 1.0)))

    def try_all(
        self, placements: Sequence[str], flows: Sequence[str], budget: Budget, progress: Progress, threads: int = 1
    ) -> list[Trial]:
        """Every placement under every flow policy; policies that search do so under each."""
        if budget.simulations is None:
            budget = replace(budget, simulations=self.simulations)
        walks = Walks()
        evaluators = [Evaluator(self.problem, policy, self.iterations.searched, walks=walks) for policy in flows]
        with progress.step("searching", len(flows), "flow policies"):

            def place_all(evaluator: Evaluator) -> list[PlacedUnits]:
                found = [place(evaluator, placement, budget, self._seed) for placement in placements]
                progress.advance(1)
                return found

            placed = in_threads([partial(place_all, each) for each in evaluators], threads)
        pairs = [(each, policy) for policy, row in zip(flows, placed, strict=True) for each in row]
        return self.trials(pairs, progress, threads)

    def trials(self, pairs: Sequence[tuple[PlacedUnits, str]], progress: Progress, threads: int = 1) -> list[Trial]:
        """Placements under flow policies, simulated and measured; equal ones once."""
        with progress.step("comparing", len(pairs), "plans"):
            keys = [(flows, placed.machine_of.tobytes()) for placed, flows in pairs]
            first = {key: number for number, key in reversed(list(enumerate(keys)))}

            def judge(number: int) -> Trial:
                found = self.trial(*pairs[number])
                progress.advance(keys.count(keys[number]))
                return found

            judged = in_threads([partial(judge, number) for number in first.values()], threads)
            by_key = dict(zip(first, judged, strict=True))
            return [replace(by_key[key], placed=placed) for key, (placed, _) in zip(keys, pairs, strict=True)]

    def trial(self, placed: PlacedUnits, flows: str) -> Trial:
        """A placement, simulated and measured.

        The measured pace of some iterations estimates that of a long run, which is never below the bound.
        """
        network, speeds = self.problem.network, np.array(self.machines.speeds)
        timeline = Simulator(self.load, network, self.iterations.judged, flows, speeds).timeline(placed.machine_of)
        turns = self.work.unrolled
        least = max(
            placement_bound(timeline.case, timeline.case.routes.links["capacity"]) / turns,
            self.work.floor_s(self.machines),
        )
        seconds = max(pace(timeline, self.work.ahead, self.iterations.period) / turns, least)
        return Trial(placed, flows, timeline, seconds, least, turns)

    def lower_bound(self) -> float:
        """A lower bound on the seconds of an iteration under every placement and flow policy."""
        least = cluster_bound(self.problem, self.iterations.searched) / self.work.unrolled
        return max(least, self.work.floor_s(self.machines))

    def on(self, machines: Machines) -> "Comparison":
        """The same run on other machines. Additional ones hold no part."""
        other = copy(self)
        other.machines, other.problem = machines, self._problem(machines)
        return other

    def _problem(self, machines: Machines) -> PlacementProblem:
        names = machines.names
        pinned = {task: names[number] for task, number in self.work.pinned.items() if number < len(names)}
        speeds = np.array(machines.speeds)
        # An unlimited resource holds everything.
        every = {name: float(held.sum()) for name, held in self.load.resources.items()}
        limits = {name: np.minimum(machines.capacities[name], every[name] + 1) for name in every}
        return placement_problem(self.load, machines.network(), limits, pinned, speeds)


def pace(timeline: Timeline, ahead: int, period: int = 1) -> float:
    """Seconds per iteration of the template in the middle of a run, over whole periods of its amounts.

    The first third, in which the pipeline fills, is left out, and as many iterations at the end as it works `ahead`:
    there nothing more is read ahead, and links carry less than in a longer run.
    """
    ends: Array = np.maximum.accumulate(timeline.iteration_ends)
    first, last = len(ends) // 3, len(ends) - 1 - ahead
    if last <= first:
        return timeline.makespan / len(ends)
    first = max(first, last - (last - first) // period * period) if last - first >= period else first
    return float(ends[last] - ends[first]) / (last - first)
