"""Links filled by the groups of one rank, from what the ranks before it left (a link's `load`).

The link that gives its flows least is found, its flows get that and are done, and so on until every flow has met a
full link: max-min fairness by progressive filling.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.heaps import NONE
from penstock.simulate.inner import inner
from penstock.simulate.rates.groups import set_speed

FULL = 1e-9  # of a link's capacity: what rounding leaves of a full link
_LIKE = 1e-13  # relative: speeds closer than this differ by rounding


@inner
def fill_rank(
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    link_paths: Array,
    paths: Array,
    path_links: Array,
    order: Array,
    first: int,
    last: int,
    dirty: Array,
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """Progressive filling of the groups order[first:last]. `dirty` lists the links they cross."""
    crossed, unsettled = 0, 0
    for k in range(first, last):
        group = order[k]
        path = groups[group].path
        if is_full(links, paths, path_links, path):
            set_speed(groups, flows, tree, group, 0.0, now, changes, numbers)
            continue
        unsettled += 1
        paths[path].filling = group
        for at in range(paths[path].first, paths[path].last):
            link = path_links[at]
            if links[link].crossing == 0:
                dirty[crossed] = link
                crossed += 1
            links[link].crossing += groups[group].count
    while unsettled > 0:
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
        for k in range(links[tightest].first, links[tightest].last):
            path = link_paths[k]
            group = paths[path].filling
            if group != NONE:
                paths[path].filling = NONE
                take(links, paths, path_links, path, groups[group].count, least)
                change_speed(groups, flows, tree, group, least, now, changes, numbers)
                unsettled -= 1
        links[tightest].load = 0.0


@inner
def change_speed(
    groups: Array, flows: Array, tree: Array, group: int, speed: float, now: float, changes: Array, numbers: Array
) -> None:
    """Give a group a speed; one that differs by rounding alone is left as it is, for a change has its price."""
    if abs(speed - groups[group].speed) <= _LIKE * speed:
        speed = groups[group].speed
    set_speed(groups, flows, tree, group, speed, now, changes, numbers)


@inner
def take(links: Array, paths: Array, path_links: Array, path: int, count: int, rate: float) -> None:
    """Take what `count` flows that are being filled get from the links of their path."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        links[link].crossing -= count
        left = links[link].load - rate * count
        links[link].load = left if left > FULL * links[link].capacity else 0.0


@inner
def take_again(links: Array, paths: Array, path_links: Array, path: int, rate: float) -> None:
    """Take from the links of a path what its flows had before, `rate` bytes/s in all."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        left = links[link].load - rate
        links[link].load = left if left > FULL * links[link].capacity else 0.0


@inner
def take_all(links: Array, paths: Array, path_links: Array, path: int) -> float:
    """Take all that is left along a path (bytes/s)."""
    least = np.inf
    for at in range(paths[path].first, paths[path].last):
        least = min(least, links[path_links[at]].load)
    if least > 0:
        take_again(links, paths, path_links, path, least)
    return least


@inner
def is_full(links: Array, paths: Array, path_links: Array, path: int) -> bool:
    """Whether a link of the path has nothing left."""
    full = False
    for at in range(paths[path].first, paths[path].last):
        full = full or links[path_links[at]].load <= 0
    return full
