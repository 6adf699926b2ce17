"""The ways of sharing that policies choose from, and the dispatch to them.

Kernels that take functions cannot be cached between processes, so a way is given by a number.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.inline_kernels import inner
from penstock.simulate.heaps import NONE, set_leaf
from penstock.simulate.sharing.groups import clear_group, enter, take_first, touch
from penstock.simulate.sharing.priority import group_of_rank, open_ranks, share_by_rank
from penstock.simulate.sharing.proportional import share_by_weight, shift_load
from penstock.simulate.sharing.queues import join_queue, leave_queue, share_in_order

PROPORTIONAL, PRIORITY, BY_ARRIVAL, BY_TIME_LEFT = range(4)
SAME = 1e-12  # relative: ends closer than this are one event


@inner
def open_groups(
    family: int,
    groups: Array,
    tree: Array,
    links: Array,
    paths: Array,
    spare: Array,
    rows: Array,
    closed: Array,
    numbers: Array,
) -> None:
    """Reset the arrays of an earlier run."""
    tree[:] = np.inf
    numbers[:] = 0
    for link in range(links.shape[0]):
        spare[0, link] = links[link].capacity
        links[link].active = 0
        links[link].load = 0.0
        links[link].crossing = 0
        links[link].dirty = 0
    for path in range(paths.shape[0]):
        paths[path].groups = NONE
        paths[path].member = NONE
        paths[path].filling = NONE
        if family != PRIORITY:
            clear_group(groups, path, path, 0, path, 0.0)
    if family == PRIORITY:
        open_ranks(groups, rows, closed, numbers)


@inner
def let_in(
    family: int,
    groups: Array,
    flows: Array,
    links: Array,
    paths: Array,
    path_links: Array,
    link_crossings: Array,
    places: Array,
    path_copies: Array,
    order: Array,
    touched: Array,
    dirty: Array,
    instance: int,
    path: int,
    weight: float,
    size: float,
    rank: int,
    copies: int,
    now: float,
    changes: Array,
    numbers: Array,
) -> int:
    """Start a flow, and those it represents; returns the serial of the group whose speed it has."""
    if family == PROPORTIONAL:
        enter(groups, flows, path, instance, size, copies, now)
        shift_load(links, paths, path_links, link_crossings, places, path_copies, dirty, numbers, path, weight, copies)
        return path
    if family == PRIORITY:
        group = group_of_rank(groups, paths, numbers, path, rank, now)
        touch(groups, touched, numbers, group)
        enter(groups, flows, group, instance, size, copies, now)
        return int(groups[group].serial)
    join_queue(groups, flows, paths, order, instance, path, size, family == BY_TIME_LEFT, now, changes, numbers)
    return instance


@inner
def let_out(
    family: int,
    groups: Array,
    flows: Array,
    tree: Array,
    flow_copies: Array,
    touched: Array,
    group: int,
    now: float,
    ended: Array,
    numbers: Array,
) -> int:
    """End the first flows of a group: their instances go to `ended`; returns how many there are."""
    set_leaf(tree, group, np.inf)
    if family >= BY_ARRIVAL:
        ended[0] = groups[group].root
        leave_queue(groups, flows, group)
        return 1
    if family == PRIORITY:
        touch(groups, touched, numbers, group)
    clock = flows[groups[group].root].key
    groups[group].clock = clock
    groups[group].since = now
    many = 0
    while groups[group].root != NONE and flows[groups[group].root].key <= clock * (1 + SAME):
        ended[many] = groups[group].root
        many += 1
        take_first(groups, flows, flow_copies, group)
    return many


@inner
def share_links(
    family: int,
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    crossing_paths: Array,
    link_crossings: Array,
    places: Array,
    path_copies: Array,
    paths: Array,
    path_links: Array,
    order: Array,
    touched: Array,
    spare: Array,
    rows: Array,
    closed: Array,
    dirty: Array,
    ceiling: float,
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """Compute new rates after flows came or went."""
    if family == PROPORTIONAL:
        share_by_weight(
            groups, flows, tree, links, crossing_paths, link_crossings, places, paths, path_links, dirty, ceiling, now,
            changes, numbers,
        )  # fmt: skip
    elif family == PRIORITY:
        share_by_rank(
            groups, flows, tree, links, crossing_paths, link_crossings, places, path_copies, paths, path_links, order,
            touched, spare, rows, closed, dirty, now, changes, numbers,
        )  # fmt: skip
    else:
        share_in_order(
            groups, flows, tree, links, paths, path_links, path_copies, order, spare, family == BY_TIME_LEFT, now,
            changes, numbers,
        )  # fmt: skip
