"""The policies that share a switch among coflows; `traces.TRACE_POLICIES` has them by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from penstock.graph.arrays import Array
from penstock.processes import call_interruptibly
from penstock.simulate.traces import ordered
from penstock.simulate.traces.coflows import TraceCoflows, lines_of
from penstock.simulate.traces.fair import pairs_of, run_fair
from penstock.simulate.traces.progress import progress_of

# Coflows, rates of all sides (bytes/s), room for changes -> completions (seconds), numbers and changes.
Run = Callable[[TraceCoflows, Array, int], tuple[Array, Array, Array]]


@dataclass(frozen=True)
class TracePolicy:
    """Who sends when, by name."""

    name: str
    summary: str
    run: Run


def _fair(redistribute: bool, coflows: TraceCoflows, capacities: Array, room: int) -> tuple[Array, Array, Array]:
    return run_fair(coflows.arrivals, _queue(coflows), pairs_of(coflows), capacities, room, redistribute)


def _ordered(policy: int, coflows: TraceCoflows, capacities: Array, room: int) -> tuple[Array, Array, Array]:
    lines = lines_of(coflows)
    progress = progress_of(coflows, lines, len(capacities), room)
    completions = coflows.arrivals.copy()
    queue = _queue(coflows)
    call_interruptibly(
        lambda: ordered.run_ordered(policy, coflows.arrivals, queue, lines, capacities, progress, completions)
    )
    return completions, progress.numbers, progress.changes


def _queue(coflows: TraceCoflows) -> Array:
    return np.argsort(coflows.arrivals, kind="stable")


FAIR = TracePolicy("fair", "max-min over all flows", partial(_fair, True))
FIFO = TracePolicy("fifo", "coflows strictly by arrival, max-min inside", partial(_ordered, ordered.FIFO))
SEBF = TracePolicy("sebf", "Varys: smallest bottleneck first, MADD, backfilling", partial(_ordered, ordered.SEBF))
SINCRONIA = TracePolicy("sincronia", "BSSI order, whole ports in turn", partial(_ordered, ordered.SINCRONIA))
COFLOWSIM_FAIR = TracePolicy("coflowsim-fair", "equal shares at each port, none redistributed", partial(_fair, False))
COFLOWSIM_FIFO = TracePolicy(
    "coflowsim-fifo", "coflows by arrival, MADD, equal shares, backfilling", partial(_ordered, ordered.FIFO_MADD)
)
