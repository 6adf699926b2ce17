"""`greedy-end-to-end` and `greedy-intra`: the path whose last completed request took least."""

import numpy as np

from penstock.graph.inline_kernels import inner
from penstock.paths.route_table import Routes
from penstock.paths.rules.selector_state import SelectorState

_LAST, _KNOWN = 0, 1
"""Columns of `paths`: what the last completed request took, and whether there was one."""


@inner
def choose(routes: Routes, state: SelectorState, kind: int, profiled: np.ndarray) -> int:
    """The path of a request type with the least time; before the first completion `profiled` stands for it."""
    best, least = -1, np.inf
    for path in range(routes.type_first[kind], routes.type_first[kind + 1]):
        cost = state.paths[path, _LAST] if state.paths[path, _KNOWN] > 0.0 else profiled[path]
        if cost < least:
            best, least = path, cost
    return best


@inner
def observe(state: SelectorState, path: int, took: float) -> None:
    """Remember what a completed request took."""
    state.paths[path, _LAST], state.paths[path, _KNOWN] = took, 1.0
