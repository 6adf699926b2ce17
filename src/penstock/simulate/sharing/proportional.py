"""Proportional sharing: every link is divided by weight among its flows, and a flow gets the least of its links.

What a flow does not use of one link because another limits it is left unused. All flows of one path have one speed, so
a path is a group, and a flow that comes or goes changes the speed only of paths that share a link with it.
"""

from penstock.graph.arrays import Array
from penstock.graph.inline_kernels import inner
from penstock.simulate.heaps import NONE
from penstock.simulate.sharing.groups import activate, deactivate, set_speed
from penstock.simulate.state import DIRTY


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
