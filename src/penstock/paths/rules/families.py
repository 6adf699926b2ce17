"""The three questions that a selector answers, passed on to its rule: which path, what was taken, what it took."""

from penstock.graph.inline_kernels import inner
from penstock.paths.route_table import Routes
from penstock.paths.rules import fixed, greedy, ipipe, leo, leo_smooth
from penstock.paths.rules.selector_state import SelectorState

LEO, LEO_SMOOTH, GREEDY_END_TO_END, GREEDY_INTRA, IPIPE, RANDOM, SHARES, RECORDED = range(8)
"""Numbers of the rules."""


@inner
def choose(rule: int, routes: Routes, state: SelectorState, kind: int, request: int, now: float) -> int:
    """The path for a request of type `kind`, the `request`-th of all, at `now` (microseconds)."""
    if rule == LEO:
        return leo.choose(routes, state, kind)
    if rule == LEO_SMOOTH:
        return leo_smooth.choose(routes, state, kind, now)
    if rule == GREEDY_END_TO_END:
        return greedy.choose(routes, state, kind, routes.end_to_end)
    if rule == GREEDY_INTRA:
        return greedy.choose(routes, state, kind, routes.base)
    if rule == IPIPE:
        return ipipe.choose(routes, state, kind)
    if rule == RANDOM:
        return fixed.choose_at_random(routes, state, kind, request)
    if rule == SHARES:
        return fixed.choose_by_share(routes, state, kind)
    return int(state.choices[request])


@inner
def assign(rule: int, routes: Routes, state: SelectorState, path: int, slot: int, now: float) -> None:
    """A request takes this path, chosen or forced; `slot` is its place in the table of requests in progress."""
    if rule == LEO_SMOOTH:
        leo_smooth.assign(routes, state, path, slot, now)


@inner
def observe(
    rule: int,
    routes: Routes,
    state: SelectorState,
    kind: int,
    path: int,
    slot: int,
    end_to_end: float,
    at_hosts: float,
    apart: float,
    now: float,
) -> None:
    """A request completed: what it took in all, at both hosts, and on what its alternatives do not share."""
    if rule == LEO:
        leo.observe(routes, state, path, at_hosts)
    elif rule == LEO_SMOOTH:
        leo_smooth.observe(routes, state, path, slot, apart, now)
    elif rule == GREEDY_END_TO_END:
        greedy.observe(state, path, end_to_end)
    elif rule == GREEDY_INTRA:
        greedy.observe(state, path, at_hosts)
    elif rule == IPIPE:
        ipipe.observe(routes, state, kind, path, end_to_end)


@inner
def path_like(routes: Routes, kind: int, label: int) -> int:
    """The path of a request type that bears a label, or -1."""
    for path in range(routes.type_first[kind], routes.type_first[kind + 1]):
        if routes.label[path] == label:
            return path
    return -1
