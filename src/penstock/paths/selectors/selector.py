"""What an entry of the registry of selectors says."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.graph.arrays import Array
from penstock.paths.request_sequence import Sequence
from penstock.paths.route_table import RouteTable


@dataclass(frozen=True)
class Case:
    """What a selector may look at before the first request."""

    table: RouteTable
    sequence: Sequence | None
    """The recorded requests; None where they are not known ahead, as in a service."""
    argument: str = ""
    horizon: int = 8
    """Requests that the optimum decides together."""


@dataclass(frozen=True)
class Prepared:
    """What a selector has decided before the first request."""

    weights: Array = field(default_factory=lambda: np.zeros(0))
    """Shares of the paths, for rules that divide by shares."""
    choices: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    """A path for each request, for decisions that were made before."""


@dataclass(frozen=True)
class Selector:
    """A way to choose a path: the number of its rule, and what it prepares."""

    name: str
    rule: int
    about: str
    prepare: Callable[[Case], Prepared] = lambda case: Prepared()
    argument: str = ""
    """What must follow a colon behind the name; empty: nothing."""
    online: bool = True
    """Whether it can decide for requests that are not known ahead."""
