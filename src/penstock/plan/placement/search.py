"""`search`: several annealing chains from several constructions, evaluated by simulation under the flow policy in use.

Chains walk by the score of `annealing`, which costs a microsecond; the best feasible placement of every stretch of a
chain is simulated. From time to time the weaker half of the chains restarts from the best simulated one. The rest of
the budget is spent on small changes of the best. A placement that cannot beat the best, because its busiest link alone
takes longer, is not simulated. Problems with few placements are searched completely. The result is never worse than any
construction or known placement, since all are compared with it.
"""

from itertools import product

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of
from penstock.plan.placement.annealing import Cooling, anneal, nearby, room_for_proposal, score
from penstock.plan.placement.constructions import (
    colocated_placement,
    even_placement,
    initial_placement,
    least_busy_placement,
)
from penstock.plan.placement.evaluator import Budget, BudgetClock, Evaluator, Found
from penstock.plan.placement.problem import PlacementProblem, Tables, settle, walk_from

STEPS = 100_000
_FEW = 4096  # placements: simulate all of them
_CHAINS = 8  # at most, and at least two
_CHAIN_STEPS = 4000  # fewer chains where a chain would get fewer steps than these
_ROUNDS = 12
_RESTART = 4  # rounds after which weak chains start again
_ANNEALED = 0.8  # of the steps; the rest polishes
_POLISHED = 60  # small changes that are offered, at most
_LOOSE = 1.05  # a small change may score so much worse than the best and still be simulated
_HOT, _COLD, _PRICE = 0.05, 0.0005, 2.0


def search(problem: PlacementProblem, evaluator: Evaluator, budget: Budget, seed: int) -> Found:
    """The best simulated placement found."""
    spending = BudgetClock(budget, STEPS)
    best = Best(evaluator)
    starts = constructions(problem, seed) + evaluator.starts
    starts.sort(key=best.offer)
    best.simulations = budget.simulations
    if len(problem.movable) and spending.goes_on:
        if problem.machines ** min(len(problem.movable), 64) <= _FEW:
            _search_all(problem, best, spending)
        else:
            _run_chains(evaluator.tables, starts, best, spending, seed)
            _polish(evaluator.tables, best, spending, seed)
    return Found(best.units, spending.steps)


def constructions(problem: PlacementProblem, seed: int) -> list[Array]:
    """The placements that chains start from."""
    ways = least_busy_placement, colocated_placement, even_placement, initial_placement
    return [construct(problem, seed) for construct in ways]


class Best:
    """The best of the placements that were simulated."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.makespan = np.inf
        self.simulations: int | None = None  # how many may be simulated yet, if that is limited
        self.units: Array = np.zeros(0, np.int32)
        self._evaluator = evaluator

    def offer(self, units: Array) -> float:
        """Keep a feasible placement if it is better; returns its makespan, or a bound that shows it is not."""
        bound = self._evaluator.bound(units)
        if bound >= self.makespan or self.simulations == 0:
            return bound
        before = self._evaluator.simulated
        makespan = self._evaluator.makespan(units)
        if self.simulations is not None:
            self.simulations -= self._evaluator.simulated - before
        if makespan < self.makespan:
            self.makespan, self.units = makespan, units.copy()
        return makespan


def _search_all(problem: PlacementProblem, best: Best, spending: BudgetClock) -> None:
    for machines in product(range(problem.machines), repeat=len(problem.movable)):
        units = problem.home.copy()
        units[problem.movable] = machines
        if not problem.over_use(units).any():
            best.offer(units)
        spending.steps += 1
        if not spending.goes_on:
            return


def _run_chains(tables: Tables, starts: list[Array], best: Best, spending: BudgetClock, seed: int) -> None:
    steps = int(spending.most * _ANNEALED)
    chains = min(max(steps // _CHAIN_STEPS, 2), _CHAINS)
    walks = [walk_from(tables, starts[chain % len(starts)]) for chain in range(chains)]
    latest = np.full(chains, np.inf)
    stretch = max(steps // (chains * _ROUNDS), 1)
    cooling = Cooling(_HOT, _COLD, stretch * _ROUNDS, _PRICE)
    proposal = room_for_proposal(tables)
    found = np.empty_like(best.units)
    for number in range(_ROUNDS):
        handed_in: list[tuple[float, int, Array]] = []
        for chain, walk in enumerate(walks):
            if not spending.goes_on:
                break
            key = key_of(seed, "search/{}", chain)
            first = number * stretch
            if (scored := anneal(tables, walk, key, first, first + stretch, cooling, proposal, found)) < np.inf:
                handed_in.append((scored, chain, found.copy()))
            spending.steps += stretch
        # Where simulations are limited every round has its share, and the best scores go first.
        share = None if best.simulations is None else best.simulations // (_ROUNDS - number)
        for _, chain, units in sorted(handed_in, key=lambda each: each[:2])[:share]:
            latest[chain] = best.offer(units)
        if number % _RESTART == _RESTART - 1:
            for chain in np.argsort(latest, kind="stable")[len(walks) // 2 :]:
                walks[chain].units[:] = best.units
                settle(tables, walks[chain])


def _polish(tables: Tables, best: Best, spending: BudgetClock, seed: int) -> None:
    """Simulate small changes of the best; a better one becomes the best at once."""
    key = key_of(seed, "search/polish")
    proposal = room_for_proposal(tables)
    found = np.empty_like(best.units)
    walk = walk_from(tables, best.units)
    most = _LOOSE * score(tables, walk)
    for _ in range(_POLISHED):
        if not spending.goes_on:
            return
        last = spending.up_to()
        step = nearby(tables, walk, key, spending.steps, last, most, proposal, found)
        spending.steps = last if step < 0 else step + 1
        before = best.makespan
        if step >= 0 and best.offer(found) < before:
            walk.units[:] = best.units
            settle(tables, walk)
            most = _LOOSE * score(tables, walk)
