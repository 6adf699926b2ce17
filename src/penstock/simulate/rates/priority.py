"""Strict priority by rank, and among flows of one rank max-min fairness by progressive filling.

Flows of one path and one rank have one rate and form a group. Ranks are served in order, each from what the ranks
before it left. Within a rank the link that gives its flows least is found, its flows get that and are done, and so on
until every flow has met a full link.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.heaps import NONE
from penstock.simulate.inner import inner
from penstock.simulate.rates.groups import clear_group, set_speed
from penstock.simulate.state import ACTIVE, FREE, SERIALS

_FEW = 12
FULL = 1e-9  # of a link's capacity: what rounding leaves of a full link


@inner
def open_ranks(groups: Array, numbers: Array) -> None:
    """All groups on the free list."""
    for group in range(groups.shape[0]):
        groups[group].after = group + 1
    groups[groups.shape[0] - 1].after = NONE
    numbers[FREE] = 0


@inner
def group_of_rank(groups: Array, paths: Array, order: Array, numbers: Array, path: int, rank: int, now: float) -> int:
    """The group of a path and rank, made where there is none."""
    group = int(paths[path].groups)
    while group != NONE:
        if groups[group].rank == rank:
            return int(group)
        group = int(groups[group].after)
    group = numbers[FREE]
    numbers[FREE] = groups[group].after
    clear_group(groups, group, path, rank, numbers[SERIALS], now)
    groups[group].after = paths[path].groups
    paths[path].groups = group
    numbers[SERIALS] += 1
    place = numbers[ACTIVE]
    while place > 0 and groups[order[place - 1]].rank > rank:
        order[place] = order[place - 1]
        place -= 1
    order[place] = group
    numbers[ACTIVE] += 1
    return int(group)


@inner
def share_by_rank(
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    link_paths: Array,
    paths: Array,
    path_links: Array,
    order: Array,
    dirty: Array,
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """New speeds for all groups, rank after rank; groups without flows are given back on the way."""
    for link in range(links.shape[0]):
        links[link].load = links[link].capacity
    active, read, write = numbers[ACTIVE], 0, 0
    while read < active:
        rank, first = groups[order[read]].rank, write
        while read < active and groups[order[read]].rank == rank:
            group = order[read]
            read += 1
            if groups[group].count == 0:
                set_speed(groups, flows, tree, group, 0.0, now, changes, numbers)
                _free_group(groups, paths, numbers, group)
            else:
                order[write] = group
                write += 1
        if write == first + 1:
            group = order[first]
            rate = take_all(links, paths, path_links, groups[group].path) / groups[group].count
            set_speed(groups, flows, tree, group, rate, now, changes, numbers)
        elif write > first:
            _fill_rank(
                groups, flows, tree, links, link_paths, paths, path_links, order[first:write], dirty, now, changes,
                numbers,
            )  # fmt: skip
    numbers[ACTIVE] = write


@inner
def _fill_rank(
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    link_paths: Array,
    paths: Array,
    path_links: Array,
    ranked: Array,
    dirty: Array,
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """Progressive filling of the groups `ranked`. `dirty` lists the links they cross."""
    crossed, open_groups = 0, 0
    for k in range(ranked.shape[0]):
        group = ranked[k]
        path = groups[group].path
        if _is_full(links, paths, path_links, path):
            set_speed(groups, flows, tree, group, 0.0, now, changes, numbers)
            continue
        open_groups += 1
        paths[path].member = group
        for at in range(paths[path].first, paths[path].last):
            link = path_links[at]
            if links[link].crossing == 0:
                dirty[crossed] = link
                crossed += 1
            links[link].crossing += groups[group].count
    while open_groups > 0:
        tightest, load, crossing, kept = NONE, np.inf, 1.0, 0
        for k in range(crossed):
            link = dirty[k]
            if links[link].crossing > 0:
                dirty[kept] = link
                kept += 1
                # load / crossing of this link against the least so far, without dividing
                if links[link].load * crossing < load * links[link].crossing:
                    tightest, load, crossing = int(link), links[link].load, float(links[link].crossing)
        crossed, least = kept, load / crossing
        few = ranked.shape[0] <= _FEW
        first, last = (0, ranked.shape[0]) if few else (links[tightest].first, links[tightest].last)
        for k in range(first, last):
            path = groups[ranked[k]].path if few else link_paths[k]
            group = paths[path].member
            if group != NONE and (not few or _crosses(paths, path_links, path, tightest)):
                paths[path].member = NONE
                _settle(links, paths, path_links, path, groups[group].count, least)
                set_speed(groups, flows, tree, group, least, now, changes, numbers)
                open_groups -= 1
        links[tightest].load = 0.0


@inner
def _settle(links: Array, paths: Array, path_links: Array, path: int, count: int, rate: float) -> None:
    """Take what `count` flows of a path get from its links."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        links[link].crossing -= count
        left = links[link].load - rate * count
        links[link].load = left if left > FULL * links[link].capacity else 0.0


@inner
def take_all(links: Array, paths: Array, path_links: Array, path: int) -> float:
    """Take all that is left along a path (bytes/s)."""
    least = np.inf
    for at in range(paths[path].first, paths[path].last):
        least = min(least, links[path_links[at]].load)
    if least > 0:
        for at in range(paths[path].first, paths[path].last):
            link = path_links[at]
            left = links[link].load - least
            links[link].load = left if left > FULL * links[link].capacity else 0.0
    return least


@inner
def _is_full(links: Array, paths: Array, path_links: Array, path: int) -> bool:
    full = False
    for at in range(paths[path].first, paths[path].last):
        full = full or links[path_links[at]].load <= 0
    return full


@inner
def _crosses(paths: Array, path_links: Array, path: int, link: int) -> bool:
    found = False
    for at in range(paths[path].first, paths[path].last):
        found = found or path_links[at] == link
    return found


@inner
def _free_group(groups: Array, paths: Array, numbers: Array, group: int) -> None:
    path = groups[group].path
    each = paths[path].groups
    if each == group:
        paths[path].groups = groups[group].after
    else:
        while groups[each].after != group:
            each = groups[each].after
        groups[each].after = groups[group].after
    groups[group].after = numbers[FREE]
    numbers[FREE] = group
