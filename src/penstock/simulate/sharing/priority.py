"""Strict priority by rank, and among flows of one rank max-min fairness.

Flows of one path and one rank have one rate and form a group. Ranks are served in order, each from what the ranks
before it left. A group gets more until a link of its path is full, so of the groups of one path only the first in rank
gets anything: only it is listed in `order`. An event that leaves the listed groups and their numbers of flows unchanged
changes no rate; any other changes none of the ranks before the first that it touched.
"""

from penstock.graph.arrays import Array
from penstock.kernels import inner
from penstock.simulate.sharing.groups import (
    OPEN,
    activate,
    change_speed,
    clear_group,
    deactivate,
    fill_rank,
    set_speed,
    take_all,
)
from penstock.simulate.state import ACTIVE, FREE, NONE, ROWS, SERIALS, TOUCHED


@inner
def open_ranks(groups: Array, rows: Array, closed: Array, numbers: Array) -> None:
    """All groups on the free list, no rank served."""
    for group in range(groups.shape[0]):
        groups[group].after = group + 1
    groups[groups.shape[0] - 1].after = NONE
    numbers[FREE] = 0
    numbers[ROWS], rows[0, 1] = 1, 0
    closed[:] = OPEN


@inner
def group_of_rank(groups: Array, paths: Array, numbers: Array, path: int, rank: int, now: float) -> int:
    """The group of a path and rank, made where there is none; a path's groups are in order of rank."""
    before, after = NONE, int(paths[path].groups)
    while after != NONE and groups[after].rank < rank:
        before, after = after, int(groups[after].after)
    if after != NONE and groups[after].rank == rank:
        return int(after)
    group = numbers[FREE]
    numbers[FREE] = groups[group].after
    clear_group(groups, group, path, rank, numbers[SERIALS], now)
    numbers[SERIALS] += 1
    groups[group].after = after
    if before == NONE:
        paths[path].groups = group
    else:
        groups[before].after = group
    return int(group)


@inner
def share_by_rank(
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
    now: float,
    changes: Array,
    numbers: Array,
) -> None:
    """Set new speeds for the listed groups from the first touched rank on.

    Row r of `spare` is what r ranks leave of the links; `rows` has the last of them and where it ends in `order`. The
    last row is for all ranks without a row of their own. `closed` is the rank that filled a link.
    """
    from_rank = _list_touched(
        groups, flows, tree, links, link_crossings, places, paths, path_links, order, touched, now, changes, numbers
    )
    if from_rank == OPEN:
        return
    row, last = numbers[ROWS] - 1, spare.shape[0] - 1
    while row > 0 and rows[row, 0] >= from_rank:
        row -= 1
    k, work = rows[row, 1], row
    if k < numbers[ACTIVE]:
        from_rank = min(from_rank, groups[order[k]].rank)
    for link in range(links.shape[0]):
        closed[link] = closed[link] if closed[link] < from_rank else OPEN
    while k < numbers[ACTIVE]:
        first, rank = k, groups[order[k]].rank
        while k < numbers[ACTIVE] and groups[order[k]].rank == rank:
            k += 1
        if work < last:
            for link in range(spare.shape[1]):
                spare[work + 1, link] = spare[work, link]
            work += 1
        if work < last:
            row = work
            rows[row, 0], rows[row, 1] = rank, k
        if k == first + 1:
            group = order[first]
            groups[group].shared = groups[group].count
            rate = take_all(links, paths, path_links, path_copies, spare[work], groups[group].path)
            change_speed(groups, flows, tree, group, rate / groups[group].count, now, changes, numbers)
        else:
            fill_rank(
                groups, flows, tree, links, crossing_paths, link_crossings, path_copies, paths, path_links, order,
                first, k, spare[work], closed, dirty, now, changes, numbers,
            )  # fmt: skip
    numbers[ROWS] = row + 1


@inner
def _list_touched(
    groups: Array,
    flows: Array,
    tree: Array,
    links: Array,
    link_crossings: Array,
    places: Array,
    paths: Array,
    path_links: Array,
    order: Array,
    touched: Array,
    now: float,
    changes: Array,
    numbers: Array,
) -> int:
    """Update the list with the groups that flows came to or left; returns the first rank whose rates may change."""
    from_rank, unlisted, heads = OPEN, 0, 0
    for k in range(numbers[TOUCHED]):
        group = touched[k]
        if groups[group].count == 0:
            path = groups[group].path
            set_speed(groups, flows, tree, group, 0.0, now, changes, numbers)
            if paths[path].member == group:
                from_rank = min(from_rank, groups[group].rank)
                paths[path].member = NONE
                deactivate(links, paths, path_links, link_crossings, places, path)
                unlisted += 1
            _free_group(groups, paths, numbers, group)
    for k in range(numbers[TOUCHED]):
        group = touched[k]
        path = groups[group].path
        head, listed = paths[path].groups, paths[path].member
        if head != listed:
            if listed == NONE:
                activate(links, paths, path_links, link_crossings, places, path)
            else:
                unlisted += 1
                set_speed(groups, flows, tree, listed, 0.0, now, changes, numbers)
            # A path with a listed group, or with a group that has flows, has a head.
            paths[path].member = head
            touched[heads] = head  # never ahead of what is read
            heads += 1
            from_rank = min(from_rank, groups[head].rank)
        elif head == group and groups[group].count != groups[group].shared:
            from_rank = min(from_rank, groups[group].rank)
        elif groups[group].count > 0:
            set_speed(groups, flows, tree, group, groups[group].speed, now, changes, numbers)
    numbers[TOUCHED] = 0
    if unlisted > 0:
        _drop_unlisted(groups, paths, order, numbers)
    if heads > 0:
        _merge_heads(groups, order, touched, heads, numbers)
    return int(from_rank)


@inner
def _drop_unlisted(groups: Array, paths: Array, order: Array, numbers: Array) -> None:
    """Remove groups from the list that are no longer their path's first."""
    kept = 0
    for k in range(numbers[ACTIVE]):
        group = order[k]
        order[kept] = group
        kept += paths[groups[group].path].member == group
    numbers[ACTIVE] = kept


@inner
def _merge_heads(groups: Array, order: Array, heads: Array, count: int, numbers: Array) -> None:
    """Insert new heads by rank, after those of the same rank."""
    active = numbers[ACTIVE]
    _sort_by_rank(groups, heads, order, active, count)
    here, new = active - 1, count - 1
    while new >= 0:
        if here >= 0 and groups[order[here]].rank > groups[heads[new]].rank:
            order[here + new + 1] = order[here]
            here -= 1
        else:
            order[here + new + 1] = heads[new]
            new -= 1
    numbers[ACTIVE] = active + count


@inner
def _sort_by_rank(groups: Array, heads: Array, room: Array, offset: int, count: int) -> None:
    """Sort heads[:count] stably by rank: a merge sort in room[offset:]."""
    width = 1
    while width < count:
        for first in range(0, count, 2 * width):
            middle, last = min(first + width, count), min(first + 2 * width, count)
            if middle == last or groups[heads[middle - 1]].rank <= groups[heads[middle]].rank:
                continue
            for k in range(first, middle):
                room[offset + k] = heads[k]
            left, right, k = first, middle, first
            while left < middle:
                if right < last and groups[heads[right]].rank < groups[room[offset + left]].rank:
                    heads[k] = heads[right]
                    right += 1
                else:
                    heads[k] = room[offset + left]
                    left += 1
                k += 1
        width *= 2


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
