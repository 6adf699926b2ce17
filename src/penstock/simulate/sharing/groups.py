"""What every way of sharing does with a group: bring its clock up to date, set its speed, write the change down.

The paths with flows on a link are kept first in the link's list, so that sharing a link looks at no idle path.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.inline_kernels import inner
from penstock.simulate.heaps import NONE, meld, set_leaf, without_root
from penstock.simulate.state import CHANGES, TOUCHED


@inner
def clear_group(groups: Array, group: int, path: int, rank: int, serial: int, now: float) -> None:
    """A group without flows, from now on."""
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
    """Let a flow into a group: it ends when the group's clock has moved on by `size`; it stands for so many."""
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
    """Take the flow that ends first, and those it stands for, out of its group."""
    first = groups[group].root
    groups[group].root = without_root(first, flows)
    groups[group].count -= flow_copies[first % flow_copies.shape[0]]
    groups[group].changed = 1


@inner
def touch(groups: Array, touched: Array, numbers: Array, group: int) -> None:
    """List a group whose flows are about to come or go."""
    if groups[group].changed == 0:
        groups[group].changed = 1
        touched[numbers[TOUCHED]] = group
        numbers[TOUCHED] += 1


@inner
def set_speed(
    groups: Array, flows: Array, tree: Array, group: int, speed: float, now: float, changes: Array, numbers: Array
) -> None:
    """Give the group's flows a new speed from now on, and say when the first of them ends."""
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
    """Write a change of speed down where that is asked for; past the end of the room it is only counted."""
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
    """Take a path out of the active ones of the links it crosses."""
    for at in range(paths[path].first, paths[path].last):
        link = path_links[at]
        links[link].active -= 1
        _swap(link_crossings, places, at, links[link].first + links[link].active)


@inner
def _swap(link_crossings: Array, places: Array, at: int, place: int) -> None:
    """Put a crossing at a place of its link's list, and what stood there where it stood."""
    other, left = link_crossings[place], places[at]
    link_crossings[place], places[at] = at, place
    link_crossings[left], places[other] = other, left
