"""`static`: the quickest path of each request type."""

from penstock.paths.rules.families import SHARES
from penstock.paths.rules.fixed import quickest_shares
from penstock.paths.selectors.selector import Prepared, Selector

STATIC = Selector(
    "static",
    SHARES,
    "always the path with the least base time",
    lambda case: Prepared(weights=quickest_shares(case.table)),
)
