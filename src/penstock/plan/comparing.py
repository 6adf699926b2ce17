"""Placements and flow policies side by side: each simulated over the same iterations, the best one kept."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.cost.profile import Profile
from penstock.graph.arrays import Array
from penstock.plan.document import Compared
from penstock.plan.machines import Machines
from penstock.plan.placement import Budget, Evaluator, Placed, PlacementProblem, place, placement_problem
from penstock.plan.training import Shape, training_workload
from penstock.progress import Progress
from penstock.simulate.amounts import Amounts, Quantiles, Spread, draw_amounts
from penstock.simulate.bound import chain_alone
from penstock.simulate.rates import Case
from penstock.simulate.simulation import Simulator
from penstock.simulate.timeline import Timeline

ITERATIONS = 32
"""Of the template, that are simulated: what comes before the pipeline is full is left out of the mean."""
_KINDS = {"draw": "sampler", "gather": "gather", "step": "worker"}
"""Tasks of the workload whose seconds vary as those of a profile's task do."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One placement under one flow policy."""

    placed: Placed
    flows: str
    timeline: Timeline
    iteration_s: float
    lower_bound_s: float
    turns: int
    """Iterations of the run in one of the timeline."""

    def row(self, batches: int) -> Compared:
        """As it is shown."""
        slowest = int(np.argmax(self.timeline.link_use)) if len(self.timeline.link_use) else 0
        size = float(self.timeline.link_bytes[slowest]) / self.timeline.iterations / self.turns
        return Compared(
            placement=self.placed.policy,
            flows=self.flows,
            iteration_s=self.iteration_s,
            epoch_s=self.iteration_s * batches,
            lower_bound_s=self.lower_bound_s,
            gap=self.iteration_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0,
            slowest_link=self.timeline.network.link_names[slowest],
            slowest_link_bytes=size,
        )


class Comparison:
    """One run on one cluster, looked at in many ways."""

    def __init__(self, profile: Profile, shape: Shape, machines: Machines, gpus: float = 0.0, seed: int = 0) -> None:
        """`gpus`: what a worker needs."""
        self.profile, self.shape, self.machines, self._gpus, self._seed = profile, shape, machines, gpus, seed
        self.load = training_workload(profile, shape, gpus)
        self.amounts = _amounts(self, seed)
        self.problem = self._problem(machines)

    def try_all(
        self, placements: Sequence[str], flows: Sequence[str], budget: Budget, progress: Progress
    ) -> list[Trial]:
        """Every placement under every flow policy; policies that search do so under each."""
        found = []
        with progress.step("comparing", len(placements) * len(flows), "plans"):
            for policy in flows:
                evaluator = Evaluator(self.problem, policy, self.amounts)
                for placement in placements:
                    found.append(self.trial(place(evaluator, placement, budget, self._seed), policy))
                    progress.advance(1)
        return found

    def trial(self, placed: Placed, flows: str) -> Trial:
        """A placement, simulated and measured."""
        speeds = np.array(self.machines.speeds)
        timeline = Simulator(self.load, self.problem.network, self.amounts, flows, speeds).timeline(placed.machine_of)
        turns = self.shape.unrolled
        seconds = pace(timeline) / turns
        return Trial(placed, flows, timeline, seconds, min(seconds, least_pace(timeline) / turns), turns)

    def on(self, machines: Machines) -> "Comparison":
        """The same run on other machines. Those that are more hold no part."""
        other = object.__new__(Comparison)
        other.__dict__.update(self.__dict__)
        other.machines, other.problem = machines, self._problem(machines)
        return other

    def _problem(self, machines: Machines) -> PlacementProblem:
        pinned = dict(zip(self.shape.stores, machines.names, strict=False))
        speeds = np.array(machines.speeds)
        # What is not limited holds all that there is.
        every = {name: float(held.sum()) for name, held in self.load.resources.items()}
        limits = {name: np.minimum(machines.capacities[name], every[name] + 1) for name in every}
        return placement_problem(self.load, machines.network(), limits, pinned, speeds)


def pace(timeline: Timeline) -> float:
    """Seconds an iteration once the pipeline is full."""
    ends: Array = np.maximum.accumulate(timeline.iteration_ends)
    first = len(ends) // 3
    if len(ends) - first < 2:
        return timeline.makespan / len(ends)
    return float(ends[-1] - ends[first]) / (len(ends) - 1 - first)


def least_pace(timeline: Timeline) -> float:
    """Seconds an iteration that no schedule of a placement can go below in the long run.

    The busiest link's bytes over its rate, or what one more iteration adds to the longest chain without contention.
    """
    loads = timeline.link_bytes / timeline.network.capacities / timeline.iterations
    whole, half = (chain_alone(case) for case in (timeline.case, _first_half(timeline.case)))
    added = (whole - half) / (timeline.iterations - timeline.iterations // 2)
    return max(float(loads.max(initial=0.0)), added)


def _first_half(case: Case) -> Case:
    half = len(case.amounts.seconds) // 2
    return case._replace(amounts=Amounts(case.amounts.seconds[:half], case.amounts.sizes[:half]))


def _amounts(run: Comparison, seed: int) -> Amounts:
    spreads: dict[str, Spread] = {}
    for kind, of in _KINDS.items():
        cost = run.profile.tasks.get(of)  # type: ignore[call-overload]
        if cost is not None and len(cost.seconds.shape) > 1:
            spreads[kind] = Quantiles(cost.seconds.shape)
    if len(run.profile.sizes) > 1:
        spreads.update(dict.fromkeys(("lists", "features", "blocks"), Quantiles(run.profile.sizes)))
    return draw_amounts(run.load, ITERATIONS, seed, spreads)
