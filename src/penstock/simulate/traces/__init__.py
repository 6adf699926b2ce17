"""Traces of coflows on one big switch, under general coflow schedulers.

They have an engine of their own: most policies here order coflows anew by what remains of them, which the common
engine's ranks cannot express, and at the public trace's size `fair` is five times as fast as on the common engine
(docs/measurements/simulation.md has the figures).

`trace` is the public benchmark's shuffles, read, drawn and written; `coflows` is what is simulated, `simulation` does
it and has the outcome and lower bounds. Its table has the policies: `fair` and `coflowsim-fair`, and in an order
`fifo`, `coflowsim-fifo`, `sebf` and `sincronia` (by `bssi`). `ordered` holds the events of these four; `progress` is
shared by the kernels.
"""

from penstock.simulate.traces.coflows import PortRates, TraceCoflows, coflows_from, join_flows
from penstock.simulate.traces.simulation import (
    TRACE_POLICIES,
    TraceOutcome,
    TracePolicy,
    bottlenecks,
    makespan_bound,
    mean_cct_bound,
    simulate_trace,
    trace_policy_named,
)
from penstock.simulate.traces.trace import MEGABYTE, CoflowTrace, made_trace, read_trace, write_trace

__all__ = [
    "MEGABYTE",
    "TRACE_POLICIES",
    "CoflowTrace",
    "PortRates",
    "TraceCoflows",
    "TraceOutcome",
    "TracePolicy",
    "bottlenecks",
    "coflows_from",
    "join_flows",
    "made_trace",
    "makespan_bound",
    "mean_cct_bound",
    "read_trace",
    "simulate_trace",
    "trace_policy_named",
    "write_trace",
]
