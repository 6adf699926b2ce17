"""`node:NAME`: one node only."""

from penstock.paths.rules.families import SHARES
from penstock.paths.rules.fixed import node_shares
from penstock.paths.selectors.selector import Prepared, Selector

ONE_NODE = Selector(
    "node",
    SHARES,
    "only paths over one node, where a request type has one",
    lambda case: Prepared(weights=node_shares(case.table, case.argument)),
    argument="NAME",
)
