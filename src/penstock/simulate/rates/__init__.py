"""How flows share links: the policies, each of which chooses a way of sharing from `simulate/sharing`.

`POLICIES` lists them. `flow_policies` consider single flows, `coflow_policies` groups of them. A new policy is an entry
in one of them or in a file of its own, and one line here (docs/simulating.md).
"""

from typing import TYPE_CHECKING

from penstock.registry import Registry

if TYPE_CHECKING:
    from penstock.simulate.rate_policy import RatePolicy

_OF_FLOWS = {
    "oes": "penstock.simulate.rates.flow_policies:OES",
    "fair": "penstock.simulate.rates.flow_policies:FAIR",
    "fifo": "penstock.simulate.rates.flow_policies:FIFO",
    "mrtf": "penstock.simulate.rates.flow_policies:MRTF",
    "omcoflow": "penstock.simulate.rates.coflow_policies:OMCOFLOW",
    "iteration-first": "penstock.simulate.rates.flow_policies:ITERATION_FIRST",
    "critical-path": "penstock.simulate.rates.flow_policies:CRITICAL_PATH",
}
_OF_COFLOWS = {
    "fair": "penstock.simulate.rates.flow_policies:FAIR",
    "ep-over-dp": "penstock.simulate.rates.coflow_policies:EP_OVER_DP",
    "dp-first": "penstock.simulate.rates.coflow_policies:DP_FIRST",
    "pp-first": "penstock.simulate.rates.coflow_policies:PP_FIRST",
    "ep-first": "penstock.simulate.rates.coflow_policies:EP_FIRST",
    "bytescheduler": "penstock.simulate.rates.coflow_policies:BYTESCHEDULER",
    "hermod": "penstock.simulate.rates.coflow_policies:HERMOD",
    "slack": "penstock.simulate.rates.coflow_policies:SLACK",
}
FLOW_POLICIES = tuple(_OF_FLOWS)
"""Policies for flows of any kind."""
COFLOW_POLICIES = tuple(_OF_COFLOWS)
"""Policies that order coflows by their role in a model."""
POLICIES: "Registry[RatePolicy]" = Registry(
    "rate policy",
    "penstock.rate_policies",
    _OF_FLOWS | _OF_COFLOWS,
    "penstock.simulate.rate_policy:RatePolicy",
    renamed={"maxmin": "fair"},
)
