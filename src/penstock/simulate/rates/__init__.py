"""How flows share links: the policies, each of which chooses a way of sharing from `simulate/sharing`.

`POLICIES` lists them. `flow_policies` consider single flows, `coflow_policies` groups of them. A new policy is an entry
in one of them or in a file of its own, and one line here (docs/simulating.md).
"""

from penstock.errors import PenstockError, nearest
from penstock.simulate.rate_policy import Case, RatePolicy, terms_of
from penstock.simulate.rates.coflow_policies import (
    BYTESCHEDULER,
    DP_FIRST,
    EP_FIRST,
    EP_OVER_DP,
    HERMOD,
    OMCOFLOW,
    PP_FIRST,
    SLACK,
)
from penstock.simulate.rates.flow_policies import CRITICAL_PATH, FAIR, FIFO, ITERATION_FIRST, MRTF, OES

FLOW_POLICIES = {policy.name: policy for policy in (OES, FAIR, FIFO, MRTF, OMCOFLOW, ITERATION_FIRST, CRITICAL_PATH)}
"""For flows of any kind."""
COFLOW_POLICIES = {
    policy.name: policy for policy in (FAIR, EP_OVER_DP, DP_FIRST, PP_FIRST, EP_FIRST, BYTESCHEDULER, HERMOD, SLACK)
}
"""Orders of coflows by their role in a model."""
POLICIES = FLOW_POLICIES | COFLOW_POLICIES
_RENAMED = {"maxmin": "fair"}
"""Names in older plans and scripts, and their present ones."""

__all__ = ["COFLOW_POLICIES", "FLOW_POLICIES", "POLICIES", "Case", "RatePolicy", "policy_named", "terms_of"]


def policy_named(name: str) -> RatePolicy:
    """The policy of that name."""
    if name in _RENAMED:
        raise PenstockError(
            f"The rate policy {name!r} is called {_RENAMED[name]!r} now: use that name.", code="unknown-name"
        )
    if name not in POLICIES:
        raise PenstockError(f"No rate policy is called {name!r}{nearest(name, POLICIES)}", code="unknown-name")
    return POLICIES[name]
