"""How gradients of halo rows go back to their owners: after each bin, those that it was the last to add to.

A row's gradient is complete after the bin that reads it last in the order of the backward pass. A worker sends one
message for each of its bins and each owner. The owner waits for all gradients of a group that it sent, which may come
in several messages.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.train.whole.shared.cut_groups import HaloGroup, SentGroup
from penstock.train.whole.shared.interfaces import Lists, Rows


class ReturnedGroup(NamedTuple):
    """Halo rows of one owner whose gradients are complete after a bin."""

    rank: int
    bin: int
    rows: Rows
    """Rows of the level, ascending, by node type; no type without rows."""


class AwaitedGroup(NamedTuple):
    """Gradients that a reader sends together."""

    rank: int
    bin: int
    """The reader's."""
    parts: dict[str, list[tuple[int, Array]]]
    """By node type, groups that were sent, by their place in the level's list, and which of their rows these are."""


def plan_returns(
    lists: Lists, name: str, last_reader: Rows, received: list[HaloGroup], sent: list[SentGroup]
) -> tuple[list[ReturnedGroup], list[AwaitedGroup]]:
    """What goes back to each owner, and what comes back from each reader.

    `last_reader` is for every row of the level the bin after which its gradient is complete.
    """
    kinds = list(last_reader)
    groups = [[each for each in received if each.rank == rank] for rank in range(lists.world)]
    offered = [
        [
            np.concatenate([_NONE, *(last_reader[kind][each.rows[kind]] for each in mine if kind in each.rows)])
            for kind in kinds
        ]
        for mine in groups
    ]
    told = lists.exchange(name, offered)
    returned = [each for rank, mine in enumerate(groups) for each in _returned(rank, mine, last_reader)]
    awaited = []
    for rank, readers in enumerate(told):
        mine = [(place, group) for place, group in enumerate(sent) if group.rank == rank]
        awaited += _awaited(rank, mine, dict(zip(kinds, readers, strict=True)))
    return returned, awaited


def _returned(rank: int, groups: list[HaloGroup], last_reader: Rows) -> list[ReturnedGroup]:
    rows = {
        kind: np.concatenate(
            [_NONE, *(np.arange(*each.rows[kind].indices(len(bins))) for each in groups if kind in each.rows)]
        )
        for kind, bins in last_reader.items()
    }
    found = []
    for number in _bins(last_reader[kind][some] for kind, some in rows.items()):
        here = {kind: some[last_reader[kind][some] == number] for kind, some in rows.items()}
        found.append(ReturnedGroup(rank, number, {kind: some for kind, some in here.items() if len(some)}))
    return found


def _awaited(rank: int, groups: list[tuple[int, SentGroup]], readers: Rows) -> list[AwaitedGroup]:
    found = [AwaitedGroup(rank, number, {}) for number in _bins(readers.values())]
    for kind, bins in readers.items():
        first = 0
        for place, group in groups:
            mine = bins[first : first + group.count(kind)]
            first += len(mine)
            for each in found:
                rows = np.flatnonzero(mine == each.bin)
                if len(rows):
                    each.parts.setdefault(kind, []).append((place, rows))
    return found


def _bins(parts: Iterable[Array]) -> list[int]:
    """Descending."""
    return sorted(np.unique(np.concatenate([_NONE, *parts])).tolist(), reverse=True)


_NONE = np.empty(0, np.int64)
