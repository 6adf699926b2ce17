"""Placements and flow policies side by side: each simulated over the same iterations, the best one kept."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from penstock.graph.arrays import Array
from penstock.hardware.machines import Machines
from penstock.plan.bound import cluster_bound, placement_bound
from penstock.plan.document import Compared
from penstock.plan.iterations import draw_iterations
from penstock.plan.placement import Budget, Evaluator, PlacedUnits, PlacementProblem, place, placement_problem
from penstock.plan.placement.evaluator import Walks
from penstock.plan.threads import in_threads
from penstock.plan.workloads import ExecutionWorkload
from penstock.progress import Progress
from penstock.simulate.bound import gap_of
from penstock.simulate.simulation import Simulator
from penstock.simulate.timeline import Timeline

_SIMULATED = 3e8
"""Squares of flows, over all iterations of a period, that the simulations of one search may come to."""
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
    """Iterations of the run in one of the timeline."""

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
    """One run on one cluster, looked at in many ways."""

    def __init__(self, work: ExecutionWorkload, machines: Machines, seed: int = 0) -> None:
        self.work, self.load, self.machines, self._seed = work, work.load, machines, seed
        self.iterations = draw_iterations(work.load, seed, work.spreads, work.ahead, work.owners, work.period)
        self.problem = self._problem(machines)

    @property
    def simulations(self) -> int:
        """Placements that a search may simulate if nobody says: fewer the more flows there are."""
        sizes = self.iterations.searched.sizes
        work = np.count_nonzero(sizes) ** 2 / len(sizes)
        return int(max(_LEAST_SIMULATIONS, _SIMULATED // max(work, 1.0)))

    def try_all(
        self, placements: Sequence[str], flows: Sequence[str], budget: Budget, progress: Progress, threads: int = 1
    ) -> list[Trial]:
        """Every placement under every flow policy; policies that search do so under each."""
        if budget.simulations is None:
            budget = replace(budget, simulations=self.simulations)
        evaluators = self._evaluators(flows)
        with progress.step("searching", len(flows), "flow policies"):
            placed = in_threads(
                [partial(self._place_all, each, placements, budget, progress) for each in evaluators], threads
            )
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

    def _evaluators(self, flows: Sequence[str]) -> list[Evaluator]:
        walks = Walks()
        return [Evaluator(self.problem, policy, self.iterations.searched, walks=walks) for policy in flows]

    def _place_all(
        self, evaluator: Evaluator, placements: Sequence[str], budget: Budget, progress: Progress
    ) -> list[PlacedUnits]:
        found = [place(evaluator, placement, budget, self._seed) for placement in placements]
        progress.advance(1)
        return found

    def trial(self, placed: PlacedUnits, flows: str) -> Trial:
        """A placement, simulated and measured.

        What is measured on some iterations is an estimate of the long run, which never goes below the bound.
        """
        network, speeds = self.problem.network, np.array(self.machines.speeds)
        timeline = Simulator(self.load, network, self.iterations.judged, flows, speeds).timeline(placed.machine_of)
        turns = self.work.unrolled
        least = max(placement_bound(timeline.case, network.capacities) / turns, self.work.floor_s(self.machines))
        seconds = max(pace(timeline, self.work.ahead, self.iterations.period) / turns, least)
        return Trial(placed, flows, timeline, seconds, least, turns)

    def lower_bound(self) -> float:
        """Seconds that an iteration takes at least under every placement and flow policy."""
        least = cluster_bound(self.problem, self.iterations.searched) / self.work.unrolled
        return max(least, self.work.floor_s(self.machines))

    def on(self, machines: Machines) -> "Comparison":
        """The same run on other machines. Those that are more hold no part."""
        other = copy(self)
        other.machines, other.problem = machines, self._problem(machines)
        return other

    def _problem(self, machines: Machines) -> PlacementProblem:
        names = machines.names
        pinned = {task: names[number] for task, number in self.work.pinned.items() if number < len(names)}
        speeds = np.array(machines.speeds)
        # What is not limited holds all that there is.
        every = {name: float(held.sum()) for name, held in self.load.resources.items()}
        limits = {name: np.minimum(machines.capacities[name], every[name] + 1) for name in every}
        return placement_problem(self.load, machines.network(), limits, pinned, speeds)


def pace(timeline: Timeline, ahead: int, period: int = 1) -> float:
    """Seconds for each iteration of the template in the middle of a run, over whole periods of its amounts.

    Left out are the first third, in which the pipeline fills, and at the end as many iterations as it works `ahead`:
    towards the end nothing more is read ahead, and links have less to carry than they will in a longer run.
    """
    ends: Array = np.maximum.accumulate(timeline.iteration_ends)
    first, last = len(ends) // 3, len(ends) - 1 - ahead
    if last <= first:
        return timeline.makespan / len(ends)
    first = max(first, last - (last - first) // period * period) if last - first >= period else first
    return float(ends[last] - ends[first]) / (last - first)
