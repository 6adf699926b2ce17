"""Decisions and completions, by selector and dependencies: one by one inside kernels, in chunks from Python."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import borrowed, inner, njit
from penstock.paths.route_table import DEPENDENCIES, RouteArrays, borrowed_routes
from penstock.paths.rules import (
    LEO_SMOOTH_RULE,
    SelectorState,
    borrowed_state,
    choose,
    leo_smooth_assign,
    observe,
    path_like,
)

# Which path a request must take because of one in progress: a table of open requests by address or message.

_NONE, _MESSAGE = DEPENDENCIES.index("none"), DEPENDENCIES.index("message")


class InProgress(NamedTuple):
    """Requests in progress by group: an address or a message."""

    requests: Array  # int32 [groups]
    writers: Array  # int32 [groups]
    label: Array  # int32 [groups]: of the path that the last writer took, or the last request where nobody writes


def nothing_in_progress(groups: int) -> InProgress:
    """An empty table for so many groups."""
    return InProgress(np.zeros(groups, np.int32), np.zeros(groups, np.int32), np.zeros(groups, np.int32))


@inner
def decide(
    rule: int,
    routes: RouteArrays,
    state: SelectorState,
    table: InProgress,
    kind: int,
    group: int,
    request: int,
    slot: int,
    now: float,
) -> tuple[int, bool]:
    """The path of a request, and whether it follows one in progress; it is in progress from now on.

    It may choose where it depends on none, and where its type has no path of that name.
    """
    depends, writes, path = routes.depends[kind], routes.writes[kind], -1
    if depends != _NONE and table.requests[group] > 0 and (depends == _MESSAGE or writes or table.writers[group] > 0):
        path = path_like(routes, kind, table.label[group])
    forced = path >= 0
    if not forced:
        path = choose(rule, routes, state, kind, request, now)
    if rule == LEO_SMOOTH_RULE:
        leo_smooth_assign(routes, state, path, slot, now)
    if depends != _NONE:
        if writes or table.writers[group] == 0:
            table.label[group] = routes.label[path]
        table.requests[group] += 1
        table.writers[group] += 1 if writes else 0
    return path, forced


@inner
def complete(
    rule: int,
    routes: RouteArrays,
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
    """Remove a completed request, and give its times to the selector."""
    if routes.depends[kind] != _NONE:
        table.requests[group] -= 1
        table.writers[group] -= 1 if routes.writes[kind] else 0
    observe(rule, routes, state, kind, path, slot, end_to_end, at_hosts, apart, now)


@njit(nogil=True, cache=True, error_model="numpy")
def decide_chunk(
    rule: int,
    routes: RouteArrays,
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

    Each decision takes those before it into account, so a chunk is divided among paths as if its requests came one by
    one.
    """
    routes, state = borrowed_routes(routes), borrowed_state(state)
    table = InProgress(borrowed(table.requests), borrowed(table.writers), borrowed(table.label))
    for place in range(kinds.shape[0]):
        path, _ = decide(rule, routes, state, table, kinds[place], groups[place], first + place, slots[place], now)
        out[place] = path


@njit(nogil=True, cache=True, error_model="numpy")
def complete_chunk(
    rule: int,
    routes: RouteArrays,
    state: SelectorState,
    table: InProgress,
    kinds: Array,
    groups: Array,
    paths: Array,
    slots: Array,
    took: Array,
    now: float,
) -> None:
    """Record completions; `took` [requests, 3] is end to end, at both hosts, and on what alternatives do not share, in
    microseconds.
    """
    routes, state = borrowed_routes(routes), borrowed_state(state)
    table = InProgress(borrowed(table.requests), borrowed(table.writers), borrowed(table.label))
    for place in range(kinds.shape[0]):
        complete(
            rule, routes, state, table, kinds[place], groups[place], paths[place], slots[place], took[place, 0],
            took[place, 1], took[place, 2], now,
        )  # fmt: skip
