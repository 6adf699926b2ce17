"""How flows share links: the policies, each of which chooses a way of sharing from `simulate/sharing`.

`POLICIES` lists them. A new policy is an entry in `policies` or in a file of its own, and one line here
(docs/simulating.md).
"""

from typing import TYPE_CHECKING

from penstock.registry import Registry

if TYPE_CHECKING:
    from penstock.simulate.state import RatePolicy

_OF_FLOWS = {
    "oes": "penstock.simulate.rates.policies:OES",
    "fair": "penstock.simulate.rates.policies:FAIR",
    "fifo": "penstock.simulate.rates.policies:FIFO",
    "mrtf": "penstock.simulate.rates.policies:MRTF",
    "omcoflow": "penstock.simulate.rates.policies:OMCOFLOW",
    "iteration-first": "penstock.simulate.rates.policies:ITERATION_FIRST",
    "critical-path": "penstock.simulate.rates.policies:CRITICAL_PATH",
}
_OF_COFLOWS = {
    "fair": "penstock.simulate.rates.policies:FAIR",
    "ep-over-dp": "penstock.simulate.rates.policies:EP_OVER_DP",
    "dp-first": "penstock.simulate.rates.policies:DP_FIRST",
    "pp-first": "penstock.simulate.rates.policies:PP_FIRST",
    "ep-first": "penstock.simulate.rates.policies:EP_FIRST",
    "bytescheduler": "penstock.simulate.rates.policies:BYTESCHEDULER",
    "hermod": "penstock.simulate.rates.policies:HERMOD",
    "slack": "penstock.simulate.rates.policies:SLACK",
}
FLOW_POLICIES = tuple(_OF_FLOWS)
"""Policies for flows of any kind."""
COFLOW_POLICIES = tuple(_OF_COFLOWS)
"""Policies that order coflows by their role in a model."""
POLICIES: "Registry[RatePolicy]" = Registry(
    "rate policy",
    "penstock.rate_policies",
    _OF_FLOWS | _OF_COFLOWS,
    "penstock.simulate.state:RatePolicy",
    renamed={"maxmin": "fair"},
)
