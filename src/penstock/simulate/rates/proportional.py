"""Sharing in proportion: every link is divided by weight among the flows on it, a flow gets the least of its links.

What a flow does not take of one link because another holds it back is left unused. All flows of one path have one
speed, so a path is a group, and a flow that comes or goes changes the speed only of paths that share a link with it.
"""

from penstock.graph.arrays import Array
from penstock.simulate.inner import inner
from penstock.simulate.rates.groups import set_speed
from penstock.simulate.state import DIRTY


@inner
def shift_load(
    links: Array, paths: Array, path_links: Array, dirty: Array, numbers: Array, path: int, weight: float, flows: int
) -> None:
    """Add so many flows (1 or -1) and their weight to every link of a path."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        links[link].crossing += flows
        # An idle link carries nothing: rounding of earlier weights ends here.
        links[link].load = links[link].load + weight if links[link].crossing > 0 else 0.0
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
    link_paths: Array,
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
        for at in range(links[link].first, links[link].last):
            path = link_paths[at]
            if groups[path].count > 0 or groups[path].changed == 1:
                speed = 0.0
                if groups[path].count > 0:
                    speed = ceiling
                    for each in range(paths[path].first, paths[path].last):
                        crossed = path_links[each]
                        if links[crossed].load > 0:
                            speed = min(speed, links[crossed].capacity / links[crossed].load)
                set_speed(groups, flows, tree, path, speed, now, changes, numbers)
    numbers[DIRTY] = 0
