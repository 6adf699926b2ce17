"""Traces of coflows on one big switch, under general coflow schedulers.

They have an engine of their own: most policies here order coflows anew by what remains of them, which the common
engine's ranks cannot express, and at the public trace's size `fair` is five times as fast as on the common engine
(docs/measurements/simulation.md has the figures).

`trace` reads, draws and writes shuffles in the public benchmark's form; `coflows` is the input of a simulation, and
`simulation` has the policies, runs it and computes its figures and their lower bounds. `fair` has `fair` and
`coflowsim-fair`; `ordered` has the four policies that serve coflows in an order. `progress` is what kernels share.
"""

from typing import TYPE_CHECKING

from penstock.registry import Registry, lazy_names

if TYPE_CHECKING:
    from penstock.simulate.traces.coflows import PortRates, TraceCoflows
    from penstock.simulate.traces.simulation import TraceOutcome, TracePolicy
    from penstock.simulate.traces.trace import CoflowTrace

__all__ = ["TRACE_POLICIES", "CoflowTrace", "TraceOutcome", "TracePolicy", "simulate_trace"]

TRACE_POLICIES: "Registry[TracePolicy]" = Registry(
    "policy for traces",
    "penstock.trace_policies",
    {
        "fair": "penstock.simulate.traces.simulation:FAIR",
        "fifo": "penstock.simulate.traces.simulation:FIFO",
        "sebf": "penstock.simulate.traces.simulation:SEBF",
        "sincronia": "penstock.simulate.traces.simulation:SINCRONIA",
        "coflowsim-fair": "penstock.simulate.traces.simulation:COFLOWSIM_FAIR",
        "coflowsim-fifo": "penstock.simulate.traces.simulation:COFLOWSIM_FIFO",
    },
    "penstock.simulate.traces.simulation:TracePolicy",
)


def simulate_trace(
    trace: "CoflowTrace | TraceCoflows", policy: str, rate_bytes_s: "float | PortRates", changes: bool = False
) -> "TraceOutcome":
    """Simulate all coflows of a trace on a switch that only its ports limit.

    A rate holds for both sides of every port. With `changes` the outcome also tells every flow's rate over time.
    """
    from penstock.simulate.traces.simulation import simulate_under

    return simulate_under(trace, policy, TRACE_POLICIES[policy], rate_bytes_s, changes)


# Imported on first use: help lists the policies without loading kernels.
__getattr__, __dir__ = lazy_names(__name__)
