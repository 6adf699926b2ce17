"""What a policy made of a trace."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.graph.arrays import Array


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
        """Mean seconds to completion."""
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
