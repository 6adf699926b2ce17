"""The table of policies that share a switch among coflows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.interruption import call_interruptibly
from penstock.simulate.traces.coflows import TraceCoflows, lines_of
from penstock.simulate.traces.fair import pairs_of, run_fair
from penstock.simulate.traces.ordered import FIFO, FIFO_MADD, SEBF, SINCRONIA, run_ordered
from penstock.simulate.traces.progress import progress_of

# Coflows, rates of all sides (bytes/s), room for changes -> completions (seconds), numbers and changes.
Run = Callable[[TraceCoflows, Array, int], tuple[Array, Array, Array]]


@dataclass(frozen=True)
class TracePolicy:
    """Who sends when, by name."""

    name: str
    summary: str
    run: Run


def trace_policy_named(name: str) -> TracePolicy:
    """The policy of that name."""
    if name not in TRACE_POLICIES:
        raise PenstockError(
            f"No policy for traces is called {name!r}{nearest(name, TRACE_POLICIES)}", code="unknown-name"
        )
    return TRACE_POLICIES[name]


def _fair(redistribute: bool, coflows: TraceCoflows, capacities: Array, room: int) -> tuple[Array, Array, Array]:
    return run_fair(coflows.arrivals, _queue(coflows), pairs_of(coflows), capacities, room, redistribute)


def _ordered(policy: int, coflows: TraceCoflows, capacities: Array, room: int) -> tuple[Array, Array, Array]:
    lines = lines_of(coflows)
    progress = progress_of(coflows, lines, len(capacities), room)
    completions = coflows.arrivals.copy()
    queue = _queue(coflows)
    call_interruptibly(lambda: run_ordered(policy, coflows.arrivals, queue, lines, capacities, progress, completions))
    return completions, progress.numbers, progress.changes


def _queue(coflows: TraceCoflows) -> Array:
    return np.argsort(coflows.arrivals, kind="stable")


TRACE_POLICIES = {
    policy.name: policy
    for policy in (
        TracePolicy("fair", "max-min over all flows", partial(_fair, True)),
        TracePolicy("fifo", "coflows strictly by arrival, max-min inside", partial(_ordered, FIFO)),
        TracePolicy("sebf", "Varys: smallest bottleneck first, MADD, backfilling", partial(_ordered, SEBF)),
        TracePolicy("sincronia", "BSSI order, whole ports in turn", partial(_ordered, SINCRONIA)),
        TracePolicy("coflowsim-fair", "equal shares at each port, none redistributed", partial(_fair, False)),
        TracePolicy(
            "coflowsim-fifo", "coflows by arrival, MADD, equal shares, backfilling", partial(_ordered, FIFO_MADD)
        ),
    )
}
