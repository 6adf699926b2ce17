"""What a placement is worth: its critical path, the cost of eq. 27, and its simulated makespan.

All policies of a comparison share one evaluator: they see the same iterations under the same flow policy, and what one
has simulated no other simulates again.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.plan.placement.criticalpath import critical_path, waits_of
from penstock.plan.placement.problem import PlacementProblem
from penstock.plan.placement.tables import over_use, tables_of, walk_from
from penstock.simulate.amounts import Amounts, draw_amounts
from penstock.simulate.rates import RatePolicy
from penstock.simulate.simulation import Simulator

ITERATIONS = 20
_ITEMS_ON_PATH, _LEAST_ON_PATH = 40_000, 2
"""Items of all iterations that one critical path goes through at most, and iterations at least."""
_ITEMS_AT_ONCE = 20_000_000
"""Items on critical paths that take some tenths of a second."""


class Walks:
    """What was found without a flow policy, worked out once for all who ask, on whatever thread."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What is kept under a key; made where nothing is yet."""
        with self._lock:
            if key not in self._found:
                self._found[key] = make()
            return self._found[key]


class Evaluator:
    """Judges placements of one problem under one flow policy over the iterations of `amounts` (the means, if None)."""

    def __init__(
        self,
        problem: PlacementProblem,
        flows: str | RatePolicy,
        amounts: Amounts | None = None,
        known: Sequence[Array] = (),
        walks: Walks | None = None,
    ) -> None:
        """`known` are feasible placements, machines of tasks: a search starts from them too, and never ends behind.

        `walks` keeps what a search found without a flow policy, for evaluators of the same problem and amounts.
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
        """Critical paths that a kernel may work out before it returns, so that Ctrl-C is heard."""
        return max(1, _ITEMS_AT_ONCE // (self.seconds.size + self.sizes.size))

    def critical_path(self, units: Array) -> float:
        """Seconds of the longest path with the weights of eq. 26."""
        return float(critical_path(self.tables, walk_from(self.tables, units), self.waits, self.seconds, self.sizes))

    def cost(self, units: Array) -> float:
        """The critical path times 1 plus the relative over-use of all resources (eq. 27), seconds."""
        return self.critical_path(units) * (1 + float(over_use(self.tables, walk_from(self.tables, units))))

    def bound(self, units: Array) -> float:
        """Seconds that no run of a placement goes below: the busiest link's, over all iterations."""
        walk = walk_from(self.tables, units)
        # Means are whole bytes here, half a byte off at most for each flow.
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
    """The iterations that critical paths go through: all, or of a large workload fewer, with mean amounts."""
    count = max(_LEAST_ON_PATH, _ITEMS_ON_PATH // (drawn.seconds.shape[1] + drawn.sizes.shape[1]))
    if count >= len(drawn.seconds):
        return drawn
    return Amounts(*(np.repeat(each.mean(axis=0, keepdims=True), count, axis=0) for each in drawn))
