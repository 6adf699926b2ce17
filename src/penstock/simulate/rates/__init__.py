"""How flows share links: one file for each policy, which chooses a way of sharing from `simulate/sharing`.

`POLICIES` is the table of contents. A new policy is one file and one line here (docs/simulate.md).
"""

from penstock.errors import PenstockError, nearest
from penstock.simulate.rate_policy import Case, RatePolicy, terms_of
from penstock.simulate.rates.bytescheduler import BYTESCHEDULER
from penstock.simulate.rates.critical_path import CRITICAL_PATH
from penstock.simulate.rates.ep_over_dp import EP_OVER_DP
from penstock.simulate.rates.fair import FAIR
from penstock.simulate.rates.fifo import FIFO
from penstock.simulate.rates.hermod import HERMOD
from penstock.simulate.rates.iteration_first import ITERATION_FIRST
from penstock.simulate.rates.mrtf import MRTF
from penstock.simulate.rates.oes import OES
from penstock.simulate.rates.omcoflow import OMCOFLOW
from penstock.simulate.rates.slack import SLACK
from penstock.simulate.rates.type_first import DP_FIRST, EP_FIRST, PP_FIRST

FLOW_POLICIES = {policy.name: policy for policy in (OES, FAIR, FIFO, MRTF, OMCOFLOW, ITERATION_FIRST, CRITICAL_PATH)}
"""For flows of any kind."""
COFLOW_POLICIES = {
    policy.name: policy for policy in (FAIR, EP_OVER_DP, DP_FIRST, PP_FIRST, EP_FIRST, BYTESCHEDULER, HERMOD, SLACK)
}
"""Orders of coflows by what they are to a model."""
POLICIES = FLOW_POLICIES | COFLOW_POLICIES
_RENAMED = {"maxmin": "fair"}
"""Names that older plans and scripts may hold, and what they are called now."""

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
