"""A trace under a policy."""

from time import perf_counter

import numpy as np

from penstock.simulate.traces.bound import bottlenecks, makespan_bound
from penstock.simulate.traces.coflows import PortRates, TraceCoflows, rates_of
from penstock.simulate.traces.outcome import TraceOutcome
from penstock.simulate.traces.policies import trace_policy_named
from penstock.simulate.traces.progress import CHANGES
from penstock.simulate.traces.trace import Trace


def simulate_trace(
    trace: Trace | TraceCoflows, policy: str, rate_bytes_s: float | PortRates, changes: bool = False
) -> TraceOutcome:
    """Simulate all coflows of a trace on a switch that only its ports limit.

    A rate holds for both sides of every port. With `changes` the outcome also tells every flow's rate over time.
    """
    began = perf_counter()
    coflows = trace.coflows if isinstance(trace, Trace) else trace
    chosen, rates = trace_policy_named(policy), rates_of(rate_bytes_s, coflows.ports)
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
