"""`leo`, the source's rule: the path with the least k * toll + base, where k counts slow completions in a row."""

import numpy as np

from penstock.graph.inline_kernels import inner
from penstock.paths.route_table import Routes
from penstock.paths.rules.selector_state import SelectorState

_K = 0
"""Column of `paths`: completions slower than the base time since the last that was not."""
_ROUNDING = 1e-9
"""A share of the base time: sums of the same times in another order differ by less."""


@inner
def choose(routes: Routes, state: SelectorState, kind: int) -> int:
    """The path of a request type with the least cost; the first of several."""
    best, least = -1, np.inf
    for path in range(routes.type_first[kind], routes.type_first[kind + 1]):
        cost = state.paths[path, _K] * routes.toll[path] + routes.base[path]
        if cost < least:
            best, least = path, cost
    return best


@inner
def observe(routes: Routes, state: SelectorState, path: int, at_hosts: float) -> None:
    """A completion slower than the base time counts one up, another resets the count."""
    if at_hosts > routes.base[path] * (1.0 + _ROUNDING):
        state.paths[path, _K] += 1.0
    else:
        state.paths[path, _K] = 0.0
