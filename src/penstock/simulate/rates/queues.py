"""One flow after the other: flows in an order, each takes all that is left along its path.

Of the flows of one path only the first in order can get anything, for it fills a link of that path. So a path is a
queue, and the queues' heads are served in order. The order is looked at when something ends or starts, as rates are.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.heaps import NONE, meld, set_leaf, without_root
from penstock.simulate.inner import inner
from penstock.simulate.rates.groups import log_speed
from penstock.simulate.rates.filling import take_all
from penstock.simulate.state import ACTIVE


@inner
def join_queue(
    groups: Array,
    flows: Array,
    paths: Array,
    order: Array,
    instance: int,
    path: int,
    size: float,
    by_time_left: bool,
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """Let a flow in: behind all others, or by the bytes it has left."""
    serve_head(groups, flows, path, by_time_left, now)
    if paths[path].member == NONE:
        paths[path].member = path
        order[numbers[ACTIVE]] = path
        numbers[ACTIVE] += 1
    flows[instance].left = size
    flows[instance].key = size if by_time_left else now
    flows[instance].child = NONE
    flows[instance].sibling = NONE
    before = groups[path].root
    groups[path].root = meld(before, instance, flows)
    if groups[path].root != before and groups[path].speed > 0:
        log_speed(changes, numbers, before, 0.0, now)
        groups[path].speed = 0.0
    groups[path].count += 1


@inner
def leave_queue(groups: Array, flows: Array, path: int) -> None:
    """Take the head out; the next has no rate yet."""
    groups[path].root = without_root(groups[path].root, flows)
    groups[path].count -= 1
    groups[path].speed = 0.0


@inner
def serve_head(groups: Array, flows: Array, path: int, by_time_left: bool, now: float) -> None:
    """Bring the bytes left of the queue's head up to date."""
    if groups[path].speed > 0:
        root = groups[path].root
        flows[root].left = max(0.0, flows[root].left - groups[path].speed * (now - groups[path].since))
        if by_time_left:
            flows[root].key = flows[root].left
    groups[path].since = now


@inner
def share_in_order(
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    paths: Array,
    path_links: Array,
    order: Array,
    by_time_left: bool,
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """Order the heads, then let each take what is left."""
    _sort_heads(groups, flows, tree, paths, order, by_time_left, now, numbers)
    for link in range(links.shape[0]):
        links[link].load = links[link].capacity
    for k in range(numbers[ACTIVE]):
        path = order[k]
        rate = take_all(links, paths, path_links, path)
        if rate <= 0 and groups[path].speed <= 0:
            continue
        root = groups[path].root
        if rate != groups[path].speed:
            log_speed(changes, numbers, root, rate, now)
        groups[path].speed = rate
        set_leaf(tree, path, now + flows[root].left / rate if rate > 0 else np.inf)


@inner
def _sort_heads(
    groups: Array, flows: Array, tree: Array, paths: Array, order: Array, by_time_left: bool, now: float, numbers: Array
) -> None:
    """Insertion sort, for the order hardly changes between events; empty queues drop out. `clock` holds the keys."""
    kept = 0
    for k in range(numbers[ACTIVE]):
        path = order[k]
        if groups[path].count == 0:
            paths[path].member = NONE
            set_leaf(tree, path, np.inf)
            continue
        serve_head(groups, flows, path, by_time_left, now)
        root = groups[path].root
        key = flows[root].key / paths[path].full if by_time_left else flows[root].key
        groups[path].clock = key
        place = kept
        while place > 0:
            other = order[place - 1]
            if groups[other].clock < key or (groups[other].clock == key and groups[other].root < root):
                break
            order[place] = other
            place -= 1
        order[place] = path
        kept += 1
    numbers[ACTIVE] = kept
