"""How flows share links: a file per policy, and a file per way of sharing that policies choose from.

`POLICIES` is the table of contents. Ways of sharing: `proportional` (by weight), `priority` (strict by rank, max-min
inside by `filling`), `queues` (one flow after the other); `families` tells them apart. A new policy is a file and a
line here.
"""

from penstock.errors import PenstockError, nearest
from penstock.simulate.rates.critical_path import CRITICAL_PATH
from penstock.simulate.rates.fifo import FIFO
from penstock.simulate.rates.iteration_first import ITERATION_FIRST
from penstock.simulate.rates.maxmin import MAXMIN
from penstock.simulate.rates.mrtf import MRTF
from penstock.simulate.rates.oes import OES
from penstock.simulate.rates.omcoflow import OMCOFLOW
from penstock.simulate.rates.policy import Case, RatePolicy, terms_of

POLICIES = {policy.name: policy for policy in (OES, MAXMIN, FIFO, MRTF, OMCOFLOW, ITERATION_FIRST, CRITICAL_PATH)}

__all__ = ["POLICIES", "Case", "RatePolicy", "policy_named", "terms_of"]


def policy_named(name: str) -> RatePolicy:
    """The policy of that name."""
    if name not in POLICIES:
        raise PenstockError(f"No rate policy is called {name!r}{nearest(name, POLICIES)}")
    return POLICIES[name]
