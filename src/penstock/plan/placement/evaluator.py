"""The budget of a search, and the value of a placement: its critical path, DGTP's eq. 27, its simulated makespan.

All policies of a comparison share one evaluator: they see the same iterations under the same flow policy, and each
placement is simulated once.
"""

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.plan.placement.problem import PlacementProblem, Tables, Walk, over_use, tables_of, walk_from
from penstock.simulate.simulation import Simulator
from penstock.simulate.state import RatePolicy
from penstock.simulate.workload import Amounts, draw_amounts

_CHUNK = 250  # steps between two looks at the clock


@dataclass(frozen=True)
class Budget:
    """The number of steps (None: the policy's own); seconds, where given, may end a search earlier.

    `simulations` is how many placements a search may simulate beside those that it starts from (None: as many as it
    needs).
    """

    steps: int | None = None
    seconds: float | None = None
    simulations: int | None = None

    def __post_init__(self) -> None:
        for name, count in (("steps", self.steps), ("simulations", self.simulations)):
            if count is not None and count < 0:
                raise PenstockError(f"The search's {name} is {count}: give 0 or more.", code="value-out-of-range")
        if self.seconds is not None and not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise PenstockError(
                f"The search's seconds is {self.seconds:g}: give a number above 0.", code="value-out-of-range"
            )


class Found(NamedTuple):
    """The result of a policy."""

    units: Array  # int32 [U]: machine of every unit
    steps: int


class BudgetClock:
    """Steps taken and the rest of a budget."""

    def __init__(self, budget: Budget, default_steps: int) -> None:
        self.steps = 0
        self.most = budget.steps if budget.steps is not None else default_steps
        self.simulations = budget.simulations
        self._deadline = None if budget.seconds is None else time.monotonic() + budget.seconds

    @property
    def goes_on(self) -> bool:
        """Whether any of the budget is left."""
        return self.steps < self.most and (self._deadline is None or time.monotonic() < self._deadline)

    def up_to(self) -> int:
        """The step at which the next stretch ends: the last one, or sooner if there is a deadline."""
        return self.most if self._deadline is None else min(self.most, self.steps + _CHUNK)


@dataclass(frozen=True, eq=False)
class PlacedUnits:
    """A placement that respects every limit, and the effort of finding it."""

    policy: str
    machine_of: Array  # int32 [T]
    makespan: float  # simulated seconds of the evaluator's iterations
    steps: int
    simulated: int  # placements that were simulated for it
    seconds: float


# The longest path through all iterations of a placed workload, with the weights of DGTP's eq. 26. A task weighs its
# seconds; a flow between machines its bytes over the rate that it would get if all flows of one iteration were active
# at once: the least, over the links it crosses, of the link's rate by the number of flows on it. No run under `oes`
# takes longer (Theorem 3).


class Waits(NamedTuple):
    """What every item waits for, in topological order, and buffers for the ends of items."""

    order: Array  # int32 [items]
    starts: Array  # int32 [items + 1]
    before: Array  # int32
    lags: Array  # int32
    row_of_lag: Array  # int64 [longest lag + 1]: where in `ends` the items of so many iterations ago begin
    ends: Array  # float64: of the last iterations, in turn, and a row of zeros
    pair_seconds: Array  # float64 [M * M]: seconds a byte takes between two machines
    pace: Array  # float64 [items]: seconds an item takes for each of its seconds or bytes


def waits_of(problem: PlacementProblem) -> Waits:
    """The dependencies of a problem's workload by the item that waits."""
    load = problem.workload
    order = np.argsort(load.after, kind="stable")
    starts = np.zeros(load.items + 1, np.int32)
    np.cumsum(np.bincount(load.after, minlength=load.items), out=starts[1:])
    longest = int(load.lags.max(initial=0))
    return Waits(
        load.order.astype(np.int32),
        starts,
        load.before[order].astype(np.int32),
        load.lags[order].astype(np.int32),
        np.zeros(longest + 1, np.int64),
        np.zeros((longest + 2) * load.items),
        np.zeros(problem.machines**2),
        np.zeros(load.items),
    )


@njit(nogil=True, cache=True)
def critical_path(tables: Tables, walk: Walk, waits: Waits, seconds: Array, sizes: Array) -> float:
    """Seconds of the longest path; `seconds` is [iterations, tasks], `sizes` (bytes) [iterations, flows]."""
    _rate_pairs(tables, walk, waits.pair_seconds)
    _weigh(walk.tasks, tables.sources, tables.targets, tables.slowness, waits.pair_seconds, waits.pace)
    # Plain arrays from here on: Numba counts references of tuple members that are read in a loop.
    order, starts, before, lags = waits.order, waits.starts, waits.before, waits.lags
    row_of_lag, ends, pace = waits.row_of_lag, waits.ends, waits.pace
    tasks, longest = seconds.shape[1], 0.0
    for iteration in range(seconds.shape[0]):
        _turn_rows(iteration, order.shape[0], row_of_lag)
        row = row_of_lag[0]
        for item in order:
            start = 0.0
            for at in range(starts[item], starts[item + 1]):
                end = ends[row_of_lag[lags[at]] + before[at]]
                if end > start:
                    start = end
            amount = seconds[iteration, item] if item < tasks else sizes[iteration, item - tasks]
            start += amount * pace[item]
            ends[row + item] = start
            if start > longest:
                longest = start
    return longest


@njit(nogil=True, cache=True)
def _turn_rows(iteration: int, items: int, row_of_lag: Array) -> None:
    """Set where the ends of earlier iterations are; those before the first are the zeros of the last row."""
    rows = row_of_lag.shape[0]
    for lag in range(rows):
        row_of_lag[lag] = items * ((iteration - lag) % rows if lag <= iteration else rows)


@njit(nogil=True, cache=True)
def _weigh(
    machine_of: Array, sources: Array, targets: Array, slowness: Array, pair_seconds: Array, pace: Array
) -> None:
    """Seconds that every item takes for each of its seconds or bytes."""
    tasks, machines = machine_of.shape[0], slowness.shape[0]
    for task in range(tasks):
        pace[task] = slowness[machine_of[task]]
    for flow in range(sources.shape[0]):
        pace[tasks + flow] = pair_seconds[machine_of[sources[flow]] * machines + machine_of[targets[flow]]]


@njit(nogil=True, cache=True)
def _rate_pairs(tables: Tables, walk: Walk, pair_seconds: Array) -> None:
    for pair in range(pair_seconds.shape[0]):
        slowest = 0.0
        for at in range(tables.path_starts[pair], tables.path_starts[pair + 1]):
            link = tables.path_links[at]
            slowest = max(slowest, walk.link_flows[link] / tables.link_rates[link])
        pair_seconds[pair] = slowest


ITERATIONS = 20
_ITEMS_ON_PATH, _LEAST_ON_PATH = 40_000, 2
"""The most items of all iterations on one critical path, and the least number of iterations."""
_ITEMS_AT_ONCE = 20_000_000
"""Items on critical paths that take some tenths of a second to compute."""


class Walks:
    """Results of walks that do not depend on the flow policy, computed once for all threads."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key; made on first use."""
        with self._lock:
            if key not in self._found:
                self._found[key] = make()
            return self._found[key]


class Evaluator:
    """Evaluates placements of a problem under one flow policy over the iterations of `amounts` (None: means)."""

    def __init__(
        self,
        problem: PlacementProblem,
        flows: str | RatePolicy,
        amounts: Amounts | None = None,
        known: Sequence[Array] = (),
        walks: Walks | None = None,
    ) -> None:
        """`known` are feasible placements, machines of tasks: a search starts from them too, and is never worse.

        `walks` keeps results that do not depend on the flow policy, for evaluators of the same problem and amounts.
        """
        self.problem = problem
        self.starts = [problem.units_at(each) for each in known]
        drawn = amounts or draw_amounts(problem.workload, ITERATIONS)
        self.walks = Walks() if walks is None else walks
        self.iterations = len(drawn.seconds)  # that are simulated
        self.seconds, self.sizes = _on_paths(drawn)
        self.tables = tables_of(problem, drawn.sizes.mean(axis=0))
        self.waits = waits_of(problem)
        self.simulated = 0  # placements, each once
        self._known: dict[bytes, float] = {}
        self._simulator = Simulator(problem.workload, problem.network, drawn, flows, problem.speeds)

    @property
    def patience(self) -> int:
        """Critical paths that a kernel may compute before it returns, so that Ctrl-C is handled."""
        return max(1, _ITEMS_AT_ONCE // (self.seconds.size + self.sizes.size))

    def critical_path(self, units: Array) -> float:
        """Seconds of the longest path with the weights of eq. 26."""
        return float(critical_path(self.tables, walk_from(self.tables, units), self.waits, self.seconds, self.sizes))

    def cost(self, units: Array) -> float:
        """The critical path times 1 plus the relative over-use of all resources (eq. 27), in seconds."""
        return self.critical_path(units) * (1 + float(over_use(self.tables, walk_from(self.tables, units))))

    def bound(self, units: Array) -> float:
        """A lower bound on a run of a placement, in seconds: the busiest link's over all iterations."""
        walk = walk_from(self.tables, units)
        # Mean bytes are rounded to integers here, by at most half a byte per flow.
        carried = np.maximum(walk.link_bytes - 0.5 * walk.link_flows, 0)
        return float(self.iterations * (carried / self.tables.link_rates).max())

    def makespan(self, units: Array) -> float:
        """Simulated seconds of all iterations."""
        key = np.asarray(units, np.int32).tobytes()
        if key not in self._known:
            self._known[key] = self._simulator.makespan(self.problem.machine_of(units))
            self.simulated += 1
        return self._known[key]


def _on_paths(drawn: Amounts) -> Amounts:
    """The iterations of critical paths: all, or for a large workload fewer, with mean amounts."""
    count = max(_LEAST_ON_PATH, _ITEMS_ON_PATH // (drawn.seconds.shape[1] + drawn.sizes.shape[1]))
    if count >= len(drawn.seconds):
        return drawn
    return Amounts(*(np.repeat(each.mean(axis=0, keepdims=True), count, axis=0) for each in drawn))
