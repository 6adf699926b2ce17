"""One flow after the other: flows in an order, each takes all that is left along its path.

Of the flows of one path only the first in order can get anything, as it fills a link of that path. So a path is a
queue, and the queues' heads are served in order. The order is updated when something ends or starts, as rates are.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import inner
from penstock.simulate.sharing.groups import log_speed, take_all
from penstock.simulate.state import ACTIVE, NONE, meld, set_leaf, without_root


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
    """Add a flow: behind all others, or by its remaining bytes."""
    if paths[path].member == NONE:
        paths[path].member = path
        order[numbers[ACTIVE]] = path
        numbers[ACTIVE] += 1
    _serve_head(groups, flows, path, by_time_left, now)
    flows[instance].left = size
    flows[instance].key = size if by_time_left else now
    flows[instance].child = NONE
    flows[instance].sibling = NONE
    before = groups[path].root
    groups[path].root = meld(before, instance, flows)
    if groups[path].root != before:
        groups[path].changed = 1
        if groups[path].speed > 0:
            log_speed(changes, numbers, before, 0.0, now)
            groups[path].speed = 0.0
    groups[path].count += 1


@inner
def leave_queue(groups: Array, flows: Array, path: int) -> None:
    """Remove the head; the next one has no rate yet."""
    groups[path].root = without_root(groups[path].root, flows)
    groups[path].count -= 1
    groups[path].changed = 1
    groups[path].speed = 0.0


@inner
def share_in_order(
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    paths: Array,
    path_links: Array,
    path_copies: Array,
    order: Array,
    spare: Array,
    by_time_left: bool,
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """Order the flows, then let each in turn use the rate that is left."""
    changed = _sort_heads(groups, flows, tree, paths, order, by_time_left, now, numbers)
    if not changed:
        return
    left = spare[1]
    for link in range(len(left)):
        left[link] = spare[0, link]
    for k in range(numbers[ACTIVE]):
        path = order[k]
        rate = take_all(links, paths, path_links, path_copies, left, path)
        if rate == groups[path].speed:
            continue
        _serve_head(groups, flows, path, by_time_left, now)
        root = groups[path].root
        log_speed(changes, numbers, root, rate, now)
        groups[path].speed = rate
        set_leaf(tree, path, now + flows[root].left / rate if rate > 0 else np.inf)


@inner
def _sort_heads(
    groups: Array, flows: Array, tree: Array, paths: Array, order: Array, by_time_left: bool, now: float, numbers: Array
) -> bool:
    """Sort the heads; returns whether their order has changed. Insertion sort, as it hardly changes between events;
    empty queues drop out.

    `clock` holds the keys: bytes left over the path's rate, else when the head started. Only those of new heads and,
    where the time left counts, of heads in service can have changed.
    """
    kept, new = 0, False
    for k in range(numbers[ACTIVE]):
        path = order[k]
        if groups[path].changed == 1:
            new = True
            groups[path].changed = 0
            set_leaf(tree, path, np.inf)
            if groups[path].count == 0:
                paths[path].member = NONE
                continue
            groups[path].clock = _key(groups, flows, paths, path, by_time_left)
        elif by_time_left and groups[path].speed > 0:
            _serve_head(groups, flows, path, by_time_left, now)
            groups[path].clock = _key(groups, flows, paths, path, by_time_left)
        key, root, place = groups[path].clock, groups[path].root, kept
        while place > 0:
            other = order[place - 1]
            if groups[other].clock < key or (groups[other].clock == key and groups[other].root < root):
                break
            order[place] = other
            place -= 1
        new = new or place < kept
        order[place] = path
        kept += 1
    numbers[ACTIVE] = kept
    return new


@inner
def _key(groups: Array, flows: Array, paths: Array, path: int, by_time_left: bool) -> float:
    key = flows[groups[path].root].key
    return float(key / paths[path].full if by_time_left else key)


@inner
def _serve_head(groups: Array, flows: Array, path: int, by_time_left: bool, now: float) -> None:
    """Update the remaining bytes of the queue's head."""
    if groups[path].speed > 0:
        root = groups[path].root
        flows[root].left = max(0.0, flows[root].left - groups[path].speed * (now - groups[path].since))
        if by_time_left:
            flows[root].key = flows[root].left
    groups[path].since = now
