"""The policies that share a switch among coflows, a trace simulated under one, its outcome, and lower bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.processes import call_interruptibly
from penstock.simulate.traces import ordered
from penstock.simulate.traces.coflows import PortRates, TraceCoflows, line_bytes, lines_of, rates_of
from penstock.simulate.traces.fair import pairs_of, run_fair
from penstock.simulate.traces.ordered import bssi
from penstock.simulate.traces.progress import CHANGES, progress_of
from penstock.simulate.traces.trace import CoflowTrace

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


# Simulates a trace under a policy, and computes completion times and lower bounds that hold for every policy.


@dataclass(frozen=True, eq=False)
class TraceOutcome:
    """A simulated trace of C coflows over some ports."""

    policy: str
    names: Array  # int64 [C]: what the trace calls its coflows
    arrivals: Array  # float64 [C]: seconds
    completions: Array  # float64 [C]: seconds
    bounds: Array  # float64 [C]: seconds that the coflow's busiest side of a port needs for it alone
    makespan_bound_s: float  # seconds from the first arrival below which no policy completes all coflows
    ingress_use: Array  # float64 [ports]: share of its rate that was used from the first arrival to the last completion
    egress_use: Array  # float64 [ports]
    events: int  # moments at which coflows arrived or flows ended
    seconds: float  # what the simulation took
    changes: Array  # CHANGE: every flow's rate whenever it was set; empty unless asked for

    @property
    def ccts(self) -> Array:
        """Seconds from the arrival of every coflow to its completion."""
        return np.asarray(self.completions - self.arrivals)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first arrival to the last completion."""
        return float(self.completions.max() - self.arrivals.min())

    @property
    def mean_cct_s(self) -> float:
        """Mean seconds from a coflow's arrival to its completion."""
        return float(self.ccts.mean())

    @property
    def p95_cct_s(self) -> float:
        """Seconds to completion that 95 % of coflows do not exceed."""
        return float(np.percentile(self.ccts, 95))

    @property
    def mean_slowdown(self) -> float:
        """Mean of completion time over the coflow's bound, of coflows with bytes; 1 where there are none."""
        sent = self.bounds > 0
        return float((self.ccts[sent] / self.bounds[sent]).mean()) if sent.any() else 1.0

    def rows(self) -> list[dict[str, Any]]:
        """Every coflow, in the order of the trace: its name, arrival, completion and bound in seconds."""
        columns = {
            "coflow": self.names,
            "arrival_s": self.arrivals,
            "completion_s": self.completions,
            "cct_s": self.ccts,
            "alone_s": self.bounds,
        }
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]

    def summary(self) -> dict[str, Any]:
        """The numbers for a table or JSON."""
        return {
            "policy": self.policy,
            "coflows": {"count": len(self.names), "mean_cct_s": self.mean_cct_s, "p95_cct_s": self.p95_cct_s},
            "mean_slowdown": self.mean_slowdown,
            "makespan_s": self.makespan_s,
            "events": self.events,
            "seconds": self.seconds,
            "use": {"ingress": float(self.ingress_use.mean()), "egress": float(self.egress_use.mean())},
        }


def simulate_under(
    trace: CoflowTrace | TraceCoflows,
    policy: str,
    chosen: TracePolicy,
    rate_bytes_s: float | PortRates,
    changes: bool = False,
) -> TraceOutcome:
    """`simulate_trace` under a policy that is called `policy`."""
    began = perf_counter()
    coflows = trace.coflows if isinstance(trace, CoflowTrace) else trace
    rates = rates_of(rate_bytes_s, coflows.ports)
    room = 8 * coflows.flows + 1 if changes else 0
    while True:
        completions, numbers, found = chosen.run(coflows, rates, room)
        if numbers[CHANGES] <= room:
            break
        room = int(numbers[CHANGES])
    carried = np.concatenate(
        [np.bincount(side, coflows.sizes, coflows.ports) for side in (coflows.sources, coflows.targets)]
    )
    makespan = max(float(completions.max() - coflows.arrivals.min()), 1e-300)
    use = carried / (rates * makespan)
    return TraceOutcome(
        policy=policy,
        names=coflows.names,
        arrivals=coflows.arrivals,
        completions=completions,
        bounds=bottlenecks(coflows, rate_bytes_s),
        makespan_bound_s=makespan_bound(coflows, rate_bytes_s),
        ingress_use=use[: coflows.ports],
        egress_use=use[coflows.ports :],
        events=int(numbers[0]),
        seconds=perf_counter() - began,
        changes=found[: numbers[CHANGES]],
    )


def bottlenecks(coflows: TraceCoflows, rate_bytes_s: float | PortRates) -> Array:
    """Seconds that each coflow's busiest side of a port needs for it alone, float64 [C]."""
    rates, lines = rates_of(rate_bytes_s, coflows.ports), lines_of(coflows)
    seconds = line_bytes(lines, coflows.sizes) / rates[lines.sides]
    out = np.zeros(coflows.count)
    np.maximum.at(out, np.repeat(np.arange(coflows.count), np.diff(lines.first)), seconds)
    return out


def makespan_bound(coflows: TraceCoflows, rate_bytes_s: float | PortRates) -> float:
    """A lower bound on the seconds from the first arrival until all coflows are complete.

    For every side of a port and every arrival: what arrives from then on must cross that side, one byte after the
    other.
    """
    rates, lines = rates_of(rate_bytes_s, coflows.ports), lines_of(coflows)
    arrivals = np.repeat(coflows.arrivals, np.diff(lines.first))
    # By side, and on each from the last arrival to the first.
    order = np.lexsort((-arrivals, lines.sides))
    seconds = (line_bytes(lines, coflows.sizes) / rates[lines.sides])[order]
    summed = np.cumsum(seconds)
    begins = np.flatnonzero(np.diff(lines.sides[order], prepend=-1))
    before = np.repeat(summed[begins] - seconds[begins], np.diff(np.append(begins, len(order))))
    through = arrivals[order] + (summed - before)
    return float(max(through.max(initial=0.0), coflows.arrivals.max()) - coflows.arrivals.min())


def mean_cct_bound(coflows: TraceCoflows, rate_bytes_s: float | PortRates) -> float:
    """A lower bound on the mean completion time, in seconds.

    It is the mean of the coflows' own bounds or, if all arrive at once and that is more, the value of the dual solution
    that ordering by BSSI finds. Sincronia's mean is at most 4 times the latter where all ports are alike: its order at
    most doubles the bound, and a flow waits for both of its sides.
    """
    alone = float(bottlenecks(coflows, rate_bytes_s).mean())
    if np.ptp(coflows.arrivals) > 0:
        return alone
    rates, lines = rates_of(rate_bytes_s, coflows.ports), lines_of(coflows)
    together = bssi(np.arange(coflows.count), lines, line_bytes(lines, coflows.sizes), rates)[1]
    return max(alone, together / coflows.count)
