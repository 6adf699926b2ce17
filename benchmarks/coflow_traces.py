"""What general coflow schedulers make of a trace: completion times under every policy, against fair sharing.

Without `--file`, a trace of the public one's size and shape is made. Give the public trace itself
(FB2010-1Hr-150-0.txt of the coflow benchmark) with `--file`.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.simulate.traces import TRACE_POLICIES, TraceOutcome, simulate_trace
from penstock.simulate.traces.simulation import mean_cct_bound
from penstock.simulate.traces.trace import made_trace, read_trace
from products_graph import show


def main(
    file: Annotated[Path | None, typer.Option(help="A trace in the text of the public coflow benchmark.")] = None,
    gigabits: Annotated[float, typer.Option(help="Rate of every port in Gb/s.")] = 1.0,
    policy: Annotated[list[str] | None, typer.Option(help="A policy beside fair; may be given again.")] = None,
    ports: int = 150,
    coflows: int = 526,
    seconds: Annotated[float, typer.Option(help="Over how long coflows of a made trace arrive.")] = 3600.0,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Simulate the trace once under each policy."""
    trace = made_trace(ports, coflows, seconds, seed) if file is None else read_trace(file)
    rate = gigabits * 1e9 / 8
    # A tiny run first, so that compiling does not count.
    names = ["fair", *(name for name in policy or TRACE_POLICIES if name != "fair")]
    for name in names:
        simulate_trace(made_trace(4, 4, 1.0), name, rate)
    outcomes = [simulate_trace(trace, name, rate) for name in names]
    bound = mean_cct_bound(trace.coflows, rate)
    show("coflow traces", [_row(outcome, outcomes[0], trace.coflows.flows, bound) for outcome in outcomes], json)


def _row(outcome: TraceOutcome, fair: TraceOutcome, flows: int, bound: float) -> dict[str, Any]:
    return {
        "policy": outcome.policy,
        "coflows": len(outcome.names),
        "flows": flows,
        "mean_cct_s": outcome.mean_cct_s,
        "p95_cct_s": outcome.p95_cct_s,
        "fair_over_it_mean": fair.mean_cct_s / outcome.mean_cct_s,
        "fair_over_it_p95": fair.p95_cct_s / outcome.p95_cct_s,
        "over_bound": outcome.mean_cct_s / bound,
        "makespan_s": outcome.makespan_s,
        "use": float(outcome.ingress_use.mean()),
        "events": outcome.events,
        "seconds": outcome.seconds,
    }


if __name__ == "__main__":
    typer.run(main)
