"""What a selector knows while it decides: one shape of state for all of them, so that one kernel serves all."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.inline_kernels import borrowed, inner
from penstock.paths.route_table import Routes


class SelectorState(NamedTuple):
    """Arrays that a selector's functions read and write. What a column holds is said where it is used."""

    paths: Array  # float64 [paths, 4]
    free: Array  # float64 [resources]: when its queue will be empty, in microseconds
    expected: Array  # float64 [requests that may be in progress]: what a request in progress was expected to take
    weights: Array  # float64 [paths]: shares of a fixed division
    choices: Array  # int32 [requests]: a path for each request, decided before
    key: Array  # uint64 [1]: of random choices
    settings: Array  # float64 [4]: tolerance, weight of a new measurement, microseconds in which one is half forgotten,
    # and of a queue's length what a request delays those behind it by, all together


TOLERANCE, NEWEST, HALF_LIFE, BEHIND = 0, 1, 2, 3
"""Places in `settings`."""
_ALL_BEHIND = 1.0
"""Work of s in a queue of w delays each request that arrives while w drains by s; at a resource that is fully used
these are w / s."""


def new_state(routes: Routes, requests: int, key: np.uint64) -> SelectorState:
    """A state in which nothing has been measured; up to `requests` requests may be in progress at once."""
    paths = len(routes.base)
    settings = np.array([0.05, 0.125, 20.0 * float(routes.end_to_end.max()), _ALL_BEHIND])
    return SelectorState(
        np.zeros((paths, 4)),
        np.zeros(len(routes.capacity)),
        np.zeros(requests),
        np.zeros(paths),
        np.zeros(0, np.int32),
        np.array([key], np.uint64),
        settings,
    )


@inner
def borrowed_state(state: SelectorState) -> SelectorState:
    """The same arrays without an owner, for kernels (see `graph/inline_kernels.py`)."""
    return SelectorState(
        borrowed(state.paths), borrowed(state.free), borrowed(state.expected), borrowed(state.weights),
        borrowed(state.choices), borrowed(state.key), borrowed(state.settings),
    )  # fmt: skip
