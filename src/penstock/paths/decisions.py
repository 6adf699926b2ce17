"""Decisions and completions, by selector and dependencies: one by one inside kernels, in chunks from Python."""

from penstock.graph.arrays import Array
from penstock.graph.inline_kernels import borrowed, inner
from penstock.kernels import njit
from penstock.paths.dependencies import InProgress, enter_request, forced_path, leave_request
from penstock.paths.route_table import Routes, borrowed_routes
from penstock.paths.rules.families import assign, choose, observe
from penstock.paths.rules.selector_state import SelectorState, borrowed_state


@inner
def decide(
    rule: int,
    routes: Routes,
    state: SelectorState,
    table: InProgress,
    kind: int,
    group: int,
    request: int,
    slot: int,
    now: float,
) -> tuple[int, bool]:
    """The path of a request, and whether it follows one in progress; it is in progress from now on."""
    path = forced_path(routes, table, kind, group)
    forced = path >= 0
    if not forced:
        path = choose(rule, routes, state, kind, request, now)
    assign(rule, routes, state, path, slot, now)
    enter_request(routes, table, kind, group, path)
    return path, forced


@inner
def complete(
    rule: int,
    routes: Routes,
    state: SelectorState,
    table: InProgress,
    kind: int,
    group: int,
    path: int,
    slot: int,
    end_to_end: float,
    at_hosts: float,
    apart: float,
    now: float,
) -> None:
    """A request is no longer in progress, and the selector hears what it took."""
    leave_request(routes, table, kind, group)
    observe(rule, routes, state, kind, path, slot, end_to_end, at_hosts, apart, now)


@njit(nogil=True, cache=True, error_model="numpy")
def decide_chunk(
    rule: int,
    routes: Routes,
    state: SelectorState,
    table: InProgress,
    kinds: Array,
    groups: Array,
    first: int,
    slots: Array,
    now: float,
    out: Array,
) -> None:
    """Decide for requests that come at once: `out[i]` is the path of request `first + i`, the first of its `slots`.

    Each decision knows of those before it, so a chunk is divided among paths as if its requests came one by one.
    """
    routes, state = borrowed_routes(routes), borrowed_state(state)
    table = InProgress(borrowed(table.requests), borrowed(table.writers), borrowed(table.label))
    for place in range(kinds.shape[0]):
        path, _ = decide(rule, routes, state, table, kinds[place], groups[place], first + place, slots[place], now)
        out[place] = path


@njit(nogil=True, cache=True, error_model="numpy")
def complete_chunk(
    rule: int,
    routes: Routes,
    state: SelectorState,
    table: InProgress,
    kinds: Array,
    groups: Array,
    paths: Array,
    slots: Array,
    took: Array,
    now: float,
) -> None:
    """Requests completed; `took` [requests, 3] is end to end, at both hosts, and apart, in microseconds."""
    routes, state = borrowed_routes(routes), borrowed_state(state)
    table = InProgress(borrowed(table.requests), borrowed(table.writers), borrowed(table.label))
    for place in range(kinds.shape[0]):
        complete(
            rule, routes, state, table, kinds[place], groups[place], paths[place], slots[place], took[place, 0],
            took[place, 1], took[place, 2], now,
        )  # fmt: skip
