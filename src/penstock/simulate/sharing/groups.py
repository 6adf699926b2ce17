"""Groups of flows in every way of sharing: their clocks and speeds, and links filled by the groups of one rank."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import inner
from penstock.simulate.state import CHANGES, DIRTY, NONE, TOUCHED, meld, set_leaf, without_root

# Operations on a group in every way of sharing: update its clock, set its speed, record the change. The paths with
# flows on a link are kept first in the link's list, so that sharing a link reads no idle path.


@inner
def clear_group(groups: Array, group: int, path: int, rank: int, serial: int, now: float) -> None:
    """Initialise a group without flows."""
    groups[group].clock = 0.0
    groups[group].since = now
    groups[group].speed = 0.0
    groups[group].rank = rank
    groups[group].serial = serial
    groups[group].root = NONE
    groups[group].count = 0
    groups[group].path = path
    groups[group].changed = 0
    groups[group].shared = 0


@inner
def enter(groups: Array, flows: Array, group: int, instance: int, size: float, copies: int, now: float) -> None:
    """Add a flow to a group: it ends when the group's clock has advanced by `size`; it represents `copies` flows."""
    if groups[group].count == 0:
        groups[group].clock = 0.0
    else:
        groups[group].clock += groups[group].speed * (now - groups[group].since)
    groups[group].since = now
    flows[instance].key = groups[group].clock + size
    flows[instance].child = NONE
    flows[instance].sibling = NONE
    groups[group].root = meld(groups[group].root, instance, flows)
    groups[group].count += copies
    groups[group].changed = 1


@inner
def take_first(groups: Array, flows: Array, flow_copies: Array, group: int) -> None:
    """Remove the flow that ends first, and those it represents, from its group."""
    first = groups[group].root
    groups[group].root = without_root(first, flows)
    groups[group].count -= flow_copies[first % flow_copies.shape[0]]
    groups[group].changed = 1


@inner
def touch(groups: Array, touched: Array, numbers: Array, group: int) -> None:
    """List a group whose flows are about to change."""
    if groups[group].changed == 0:
        groups[group].changed = 1
        touched[numbers[TOUCHED]] = group
        numbers[TOUCHED] += 1


@inner
def set_speed(
    groups: Array, flows: Array, tree: Array, group: int, speed: float, now: float, changes: Array, numbers: Array
) -> None:
    """Give the group's flows a new speed from now on, and set when the first of them ends."""
    if speed == groups[group].speed and groups[group].changed == 0:
        return
    groups[group].clock += groups[group].speed * (now - groups[group].since)
    groups[group].since = now
    if speed != groups[group].speed:
        log_speed(changes, numbers, groups[group].serial, speed, now)
    groups[group].speed = speed
    groups[group].changed = 0
    root = groups[group].root
    if root == NONE or speed <= 0:
        set_leaf(tree, group, np.inf)
    else:
        set_leaf(tree, group, now + max(0.0, flows[root].key - groups[group].clock) / speed)


@inner
def log_speed(changes: Array, numbers: Array, serial: int, speed: float, now: float) -> None:
    """Record a change of speed if asked for; beyond the room it is only counted."""
    if changes.shape[0] == 0:
        return
    k = numbers[CHANGES]
    if k < changes.shape[0]:
        changes[k].when = now
        changes[k].speed = speed
        changes[k].serial = serial
    numbers[CHANGES] = k + 1


@inner
def activate(links: Array, paths: Array, path_links: Array, link_crossings: Array, places: Array, path: int) -> None:
    """Add a path to the active ones of the links it crosses."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        _swap(link_crossings, places, at, links[link].first + links[link].active)
        links[link].active += 1


@inner
def deactivate(links: Array, paths: Array, path_links: Array, link_crossings: Array, places: Array, path: int) -> None:
    """Remove a path from the active ones of the links it crosses."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        links[link].active -= 1
        _swap(link_crossings, places, at, links[link].first + links[link].active)


@inner
def _swap(link_crossings: Array, places: Array, at: int, place: int) -> None:
    """Swap a crossing with the one at a position of its link's list."""
    other, left = link_crossings[place], places[at]
    link_crossings[place], places[at] = at, place
    link_crossings[left], places[other] = other, left


# Links filled by the groups of one rank, from what the ranks before it left (`spare` [links], bytes/s). The link that
# gives its flows least is found, its flows get that and are done, and so on until every flow crosses a full link:
# max-min fairness by progressive filling.

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
            # Counts instead of branches here and below, as these would be unpredictable.
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
                for at in range(paths[path].first, paths[path].last):
                    link = path_links[at]
                    if link != tightest:
                        taken = groups[group].count * path_copies[at]
                        links[link].crossing -= taken
                        left = spare[link] - least * taken
                        spare[link] = left if left > FULL * links[link].capacity else 0.0
                change_speed(groups, flows, tree, group, least, now, changes, numbers)
                unsettled -= 1
        spare[tightest] = 0.0
        links[tightest].crossing = 0


@inner
def change_speed(
    groups: Array, flows: Array, tree: Array, group: int, speed: float, now: float, changes: Array, numbers: Array
) -> None:
    """Give a group a speed; one that differs only by rounding is ignored, as a change is costly."""
    if abs(speed - groups[group].speed) <= _LIKE * speed:
        speed = groups[group].speed
    set_speed(groups, flows, tree, group, speed, now, changes, numbers)


@inner
def take_all(links: Array, paths: Array, path_links: Array, path_copies: Array, spare: Array, path: int) -> float:
    """Take all that is left along a path, and along each that it represents (bytes/s of one path)."""
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


# Proportional sharing: every link is divided by weight among its flows, and a flow gets the least of its links. What a
# flow does not use of one link because another limits it is left unused. All flows of one path have one speed, so a
# path is a group, and a flow that comes or goes changes the speed only of paths that share a link with it.


@inner
def shift_load(
    links: Array,
    paths: Array,
    path_links: Array,
    link_crossings: Array,
    places: Array,
    path_copies: Array,
    dirty: Array,
    numbers: Array,
    path: int,
    weight: float,
    flows: int,
) -> None:
    """Add so many flows of one weight to every link of a path; a negative number removes them."""
    if paths[path].member == NONE:
        paths[path].member = path
        activate(links, paths, path_links, link_crossings, places, path)
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        changed = flows * path_copies[at]
        links[link].crossing += changed
        # An idle link carries nothing: this removes the rounding of earlier weights.
        links[link].load = links[link].load + weight * changed if links[link].crossing > 0 else 0.0
        if links[link].dirty == 0:
            links[link].dirty = 1
            dirty[numbers[DIRTY]] = link
            numbers[DIRTY] += 1


@inner
def share_by_weight(
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    crossing_paths: Array,
    link_crossings: Array,
    places: Array,
    paths: Array,
    path_links: Array,
    dirty: Array,
    ceiling: float,
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """New speeds for the paths that cross a link whose load changed."""
    for k in range(numbers[DIRTY]):
        link = dirty[k]
        links[link].dirty = 0
        # From the last to the first: a path that is removed is replaced by one that was handled already.
        for place in range(links[link].first + links[link].active - 1, links[link].first - 1, -1):
            path = crossing_paths[link_crossings[place]]
            if groups[path].count == 0:
                set_speed(groups, flows, tree, path, 0.0, now, changes, numbers)
                paths[path].member = NONE
                deactivate(links, paths, path_links, link_crossings, places, path)
                continue
            speed = ceiling
            for each in range(paths[path].first, paths[path].last):
                crossed = path_links[each]
                if links[crossed].load > 0:
                    speed = min(speed, links[crossed].capacity / links[crossed].load)
            set_speed(groups, flows, tree, path, speed, now, changes, numbers)
    numbers[DIRTY] = 0
