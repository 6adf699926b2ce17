"""Ways to choose a path. A new one is an entry and its line in `penstock.paths.SELECTORS` (docs/paths.md).

The kernels that decide are in `paths/rules.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.paths.optimum import optimal_choices
from penstock.paths.request_kernel import clairvoyant_choices
from penstock.paths.request_sequence import Sequence
from penstock.paths.route_table import RouteTable
from penstock.paths.rules import (
    GREEDY_END_TO_END_RULE,
    GREEDY_INTRA_RULE,
    IPIPE_RULE,
    LEO_PER_PLACE_RULE,
    LEO_RULE,
    LEO_SMOOTH_RULE,
    RANDOM_RULE,
    RECORDED_RULE,
    SHARES_RULE,
    node_shares,
    quickest_shares,
)

# The entries of the registry of selectors.


@dataclass(frozen=True)
class SelectorInput:
    """What a selector may use before the first request."""

    table: RouteTable
    sequence: Sequence | None
    """The recorded requests; None where they are not known ahead, as in a service."""
    argument: str = ""
    horizon: int = 8
    """Requests that `rolling-horizon` decides together."""
    slow: Array = field(default_factory=lambda: np.zeros((0, 3)))
    """From, to and a factor on the services of each resource, in a simulation."""
    seed: int = 0
    """Of the simulation's jitter."""


@dataclass(frozen=True)
class Prepared:
    """What a selector has decided before the first request."""

    weights: Array = field(default_factory=lambda: np.zeros(0))
    """Shares of the paths, for rules that divide by shares."""
    choices: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    """A path for each request, for decisions that were made before."""


@dataclass(frozen=True)
class Selector:
    """A way to choose a path: the number of its rule, and its preparation."""

    name: str
    rule: int
    about: str
    prepare: Callable[[SelectorInput], Prepared] = lambda case: Prepared()
    argument: str = ""
    """What must follow a colon after the name; empty: nothing."""
    online: bool = True
    """Whether it can decide for requests that are not known ahead."""


GREEDY_END_TO_END = Selector(
    "greedy-end-to-end", GREEDY_END_TO_END_RULE, "the path whose last request took least from end to end"
)
GREEDY_INTRA = Selector("greedy-intra", GREEDY_INTRA_RULE, "the path whose last request took least at both hosts")
IPIPE = Selector("ipipe", IPIPE_RULE, "move to the next path while end-to-end times exceed the base time, and back")
LEO = Selector("leo", LEO_RULE, "least k * toll + base (LEO); k counts slow completions in a row, a fast one resets it")
LEO_PER_PLACE = Selector("leo-per-place", LEO_PER_PLACE_RULE, "as leo, with a toll divided by the places of each node")
LEO_SMOOTH = Selector(
    "leo-smooth",
    LEO_SMOOTH_RULE,
    "least expected end: queues of the requests in progress, shared by paths that share a link, and an average of what"
    " completions took beyond that",
)
ONE_NODE = Selector(
    "node",
    SHARES_RULE,
    "only paths over one node, where a request type has one",
    lambda case: Prepared(weights=node_shares(case.table, case.argument)),
    argument="NAME",
)


def _known(case: SelectorInput, selector: str) -> Sequence:
    if case.sequence is None:
        raise PenstockError(
            f"The selector {selector!r} needs requests that are known ahead: use it in a simulation.",
            code="unsupported-combination",
        )
    return case.sequence


CLAIRVOYANT = Selector(
    "clairvoyant",
    RECORDED_RULE,
    "the best choices that a search with the whole recorded sequence at hand finds; of short ones the best there are",
    lambda case: Prepared(choices=clairvoyant_choices(case.table, _known(case, "clairvoyant"), case.slow, case.seed)),
    online=False,
)

ROLLING_HORIZON = Selector(
    "rolling-horizon",
    RECORDED_RULE,
    "a mixed-integer program over the next requests of a recorded sequence",
    lambda case: Prepared(choices=optimal_choices(case.table, _known(case, "rolling-horizon"), case.horizon)),
    online=False,
)
RANDOM = Selector("random", RANDOM_RULE, "any path, by a hash of the request's number")
STATIC = Selector(
    "static",
    SHARES_RULE,
    "always the path with the least base time",
    lambda case: Prepared(weights=quickest_shares(case.table)),
)
