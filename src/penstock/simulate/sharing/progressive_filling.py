"""Links filled by the groups of one rank, from what the ranks before it left (`spare` [links], bytes/s).

The link that gives its flows least is found, its flows get that and are done, and so on until every flow has met a
full link: max-min fairness by progressive filling.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.inline_kernels import inner
from penstock.simulate.heaps import NONE
from penstock.simulate.sharing.groups import set_speed

FULL = 1e-9  # of a link's capacity: what rounding leaves of a full link
OPEN = np.iinfo(np.int64).max  # the link is not known to be full
_LIKE = 1e-13  # relative: speeds closer than this differ by rounding


@inner
def fill_rank(
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    crossing_paths: Array,
    link_crossings: Array,
    path_copies: Array,
    paths: Array,
    path_links: Array,
    order: Array,
    first: int,
    last: int,
    spare: Array,
    closed: Array,
    dirty: Array,
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """Progressive filling of the groups order[first:last]. `dirty` lists the links they cross."""
    crossed, unsettled, rank = 0, 0, groups[order[first]].rank
    for k in range(first, last):
        group = order[k]
        path = groups[group].path
        groups[group].shared = groups[group].count
        if _closed(paths, path_links, closed, path):
            set_speed(groups, flows, tree, group, 0.0, now, changes, numbers)
            continue
        unsettled += 1
        paths[path].filling = group
        for at in range(paths[path].first, paths[path].last):
            link = path_links[at]
            # Counts instead of branches here and below: no processor could guess these.
            dirty[crossed] = link
            crossed += links[link].crossing == 0
            links[link].crossing += groups[group].count * path_copies[at]
    while unsettled > 0:
        tightest, load, crossing, kept = NONE, np.inf, 1.0, 0
        for k in range(crossed):
            link = dirty[k]
            dirty[kept] = link
            kept += links[link].crossing > 0
            # spare / crossing of this link against the least so far, without dividing; never true of 0 flows
            if spare[link] * crossing < load * links[link].crossing:
                tightest, load, crossing = int(link), spare[link], float(links[link].crossing)
        crossed, least = kept, load / crossing
        closed[tightest] = rank
        for k in range(links[tightest].first, links[tightest].first + links[tightest].active):
            path = crossing_paths[link_crossings[k]]
            group = paths[path].filling
            if group != NONE:
                paths[path].filling = NONE
                _take_elsewhere(
                    links, paths, path_links, path_copies, spare, path, tightest, groups[group].count, least
                )
                change_speed(groups, flows, tree, group, least, now, changes, numbers)
                unsettled -= 1
        spare[tightest] = 0.0
        links[tightest].crossing = 0


@inner
def change_speed(
    groups: Array, flows: Array, tree: Array, group: int, speed: float, now: float, changes: Array, numbers: Array
) -> None:
    """Give a group a speed; one that differs by rounding alone is left as it is, for a change has its price."""
    if abs(speed - groups[group].speed) <= _LIKE * speed:
        speed = groups[group].speed
    set_speed(groups, flows, tree, group, speed, now, changes, numbers)


@inner
def take_all(links: Array, paths: Array, path_links: Array, path_copies: Array, spare: Array, path: int) -> float:
    """Take all that is left along a path, and along each that it stands for (bytes/s of one path)."""
    least = np.inf
    for at in range(paths[path].first, paths[path].last):
        least = min(least, spare[path_links[at]] / path_copies[at])
    if least > 0:
        for at in range(paths[path].first, paths[path].last):
            link = path_links[at]
            left = spare[link] - least * path_copies[at]
            spare[link] = left if left > FULL * links[link].capacity else 0.0
    return least


@inner
def _closed(paths: Array, path_links: Array, closed: Array, path: int) -> bool:
    """Whether an earlier rank filled a link of a path."""
    for at in range(paths[path].first, paths[path].last):  # noqa: SIM110 (a kernel has no any())
        if closed[path_links[at]] != OPEN:
            return True
    return False


@inner
def _take_elsewhere(
    links: Array,
    paths: Array,
    path_links: Array,
    path_copies: Array,
    spare: Array,
    path: int,
    tightest: int,
    count: int,
    rate: float,
) -> None:
    """Take what `count` flows of a path get from the links of that path, all but the tightest."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        if link != tightest:
            taken = count * path_copies[at]
            links[link].crossing -= taken
            left = spare[link] - rate * taken
            spare[link] = left if left > FULL * links[link].capacity else 0.0
