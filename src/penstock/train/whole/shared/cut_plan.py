"""The bins of every layer on one worker, and the groups of rows that workers send each other; made before training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.train.whole.plan import Bin, bin_bounds
from penstock.train.whole.shared.interfaces import CutLists, ListExchange, Rows
from penstock.train.whole.shared.levels import LevelRows, order_of_arrival
from penstock.train.whole.shared.partial_sums import Places, ReadSums, SentSums, sum_readers, sums_by_bin, with_sums

# The groups of rows that workers send each other, one message each.


class HaloGroup(NamedTuple):
    """Halo rows that another worker sends in one message."""

    rank: int
    number: int
    rows: dict[str, slice]
    """Their positions in the level, by node type."""


class SentGroup(NamedTuple):
    """Rows, and sums of rows, that are sent to a reader in one message."""

    rank: int
    number: int
    rows: Rows
    """Rows of the level, ascending, by node type."""
    bins: dict[int, dict[str, slice]]
    """The bins that compute them, and which of `rows` each bin computes."""
    sums: dict[str, SentSums]
    """The sums that follow the rows, by node type."""

    @property
    def computed_by(self) -> set[int]:
        """The bins that compute what is sent."""
        return {*self.bins, *(place for sums in self.sums.values() for place in sums.returned)}

    def count(self, kind: str) -> int:
        """The number of rows and sums of a node type that are sent."""
        return len(self.rows[kind]) + (len(self.sums[kind].numbers) if kind in self.sums else 0)


# How gradients of halo rows return to their owners: after each bin, those that it was the last to add to. A row's
# gradient is complete after the bin that reads it last in the order of the backward pass. A worker sends one message
# for each of its bins and each owner. The owner waits for all gradients of a group that it sent, which may come in
# several messages.


class ReturnedGroup(NamedTuple):
    """Halo rows of one owner whose gradients are complete after a bin."""

    rank: int
    bin: int
    rows: Rows
    """Rows of the level, ascending, by node type; types without rows are left out."""


class AwaitedGroup(NamedTuple):
    """Gradients that a reader sends in one message."""

    rank: int
    bin: int
    """The reader's bin after which the gradients are complete."""
    parts: dict[str, list[tuple[int, Array]]]
    """By node type: the sent groups, by position in the level's list, and which of their rows these are."""


def plan_returns(
    lists: ListExchange, name: str, last_reader: Rows, received: list[HaloGroup], sent: list[SentGroup]
) -> tuple[list[ReturnedGroup], list[AwaitedGroup]]:
    """The gradients to return to owners and to expect from readers; `last_reader` completes a row's."""
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
    """The distinct bins of some parts, the last first."""
    return sorted(np.unique(np.concatenate([_NONE, *parts])).tolist(), reverse=True)


_NONE = np.empty(0, np.int64)


@dataclass(eq=False)
class CutBin(Bin):
    """A bin of a partitioned graph; its `names` are original numbers."""

    vertices: Rows = field(default_factory=dict)
    """The numbers of `inputs` in the partitioned graph."""


@dataclass(eq=False)
class CutLevel:
    """One level's rows on one worker: first those that it computes, then the halo, by rank and group."""

    vertices: Rows
    computed: dict[str, int]
    """How many of them this worker computes, by node type."""
    replicated: int = 0
    """How many of the computed rows belong to other workers' vertices."""
    received: list[HaloGroup] = field(default_factory=list)
    sent: list[SentGroup] = field(default_factory=list)
    returned: list[ReturnedGroup] = field(default_factory=list)
    """Gradients that this worker returns to the owners of its halo."""
    awaited: list[AwaitedGroup] = field(default_factory=list)
    """Gradients that readers return for the rows that this worker sent."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of all rows by node type."""
        return _counts(self.vertices)


@dataclass(eq=False)
class CutPlan:
    """All levels and bins of one step on one worker."""

    levels: list[CutLevel]
    bins: list[list[CutBin]]
    """The bins of every layer."""
    backward_order: list[list[int]]
    """The order of each layer's bins in the backward pass: from the last, which reads what arrived last, or from the
    first, if gradients of other workers' rows are then complete sooner.
    """

    @property
    def layers(self) -> int:
        """The number of the model's layers."""
        return len(self.bins)

    @property
    def replicated_rows(self) -> int:
        """The number of other workers' rows that a step computes here."""
        return sum(level.replicated for level in self.levels)

    @property
    def received_sums(self) -> int:
        """How many of the received rows are sums of rows."""
        return sum(int((ids < 0).sum()) for level in self.levels for ids in level.vertices.values())

    @property
    def halo_rows(self) -> int:
        """The number of rows and sums that a step receives, and whose gradients it returns."""
        return sum(
            sum(rows.stop - rows.start for rows in group.rows.values())
            for level in self.levels
            for group in level.received
        )


def make_cut_plan(
    cut: CutLists, lists: ListExchange, name: str, rows: Sequence[LevelRows], bins: Sequence[int], by_bin: bool
) -> CutPlan:
    """Make the plan; `bins` for every layer. `by_bin`: rows are sent bin by bin, else a level's at once."""
    layers = len(rows) - 1
    levels, bounds = [CutLevel(dict(rows[0].computed), _counts(rows[0].computed))], list[Rows]()
    for number in range(layers):
        level = rows[number + 1]
        if levels[number].received:
            level = _by_arrival(cut, number, level, levels[number], rows[number].sums)
        bounds.append(_bounds(cut, level, bins[number]))
        levels.append(_level(cut, lists, f"{name}/{number + 1}", level, bounds[-1], by_bin, number + 1 == layers))
    made, orders = [], list[list[int]]()
    for number in range(layers):
        places = {kind: Places(ids) for kind, ids in levels[number].vertices.items()}
        parts = [
            {kind: _slice(ends, place) for kind, ends in bounds[number].items()}
            for place in range(_number_of_bins(bounds[number]))
        ]
        made.append([_bin(cut, number, levels[number + 1], part, places, rows[number].sums) for part in parts])
        orders.append(list(reversed(range(len(parts)))))
        if number:
            below = levels[number]
            if by_bin:
                orders[-1] = _soonest_order(below, made[-1])
            # Without `by_bin`, all gradients return after the last bin.
            last = _last_readers(below, made[-1] if by_bin else [], orders[-1])
            found = plan_returns(lists, f"{name}/{number}/returns", last, below.received, below.sent)
            below.returned, below.awaited = found
    return CutPlan(levels, made, orders)


def _soonest_order(level: CutLevel, bins: Sequence[CutBin]) -> list[int]:
    """The order, from the last bin or from the first, in which gradients of halo rows are complete after fewer bins.

    In the last layer, rows that read much of the halo come last; in others they come first, with the rows that others
    read.
    """
    backward, forward = list(reversed(range(len(bins)))), list(range(len(bins)))
    waits = []
    for order in (backward, forward):
        turn = np.empty(len(bins), np.int64)
        turn[order] = np.arange(len(bins))
        last = _last_readers(level, bins, order)
        waits.append(sum(int(turn[last[kind][level.computed[kind] :]].sum()) for kind in last) if bins else 0)
    return forward if waits[1] < waits[0] else backward


def _last_readers(level: CutLevel, bins: Sequence[CutBin], order: Sequence[int]) -> Rows:
    """For every row of a level, the last bin in the order that adds to its gradient; a row that no bin reads has the
    order's last bin.
    """
    end = order[-1] if order else 0
    found = {kind: np.full(len(ids), end, np.int64) for kind, ids in level.vertices.items()}
    for place in order if bins else ():
        for kind, rows in bins[place].inputs.items():
            assert rows is not None
            found[kind][rows] = place
    return found


def _by_arrival(
    cut: CutLists, number: int, level: LevelRows, below: CutLevel, sums: Mapping[str, ReadSums]
) -> LevelRows:
    """A level's rows in the order in which the halo rows that they read arrive; those that others read stay first."""
    vertices, order = {}, {kind: np.argsort(ids[below.computed[kind] :]) for kind, ids in below.vertices.items()}
    arrivals = {kind: np.zeros(len(each), np.int64) for kind, each in order.items()}
    for kind, ids in below.vertices.items():
        start = below.computed[kind]
        for group in below.received:
            if kind in group.rows:
                some = group.rows[kind]
                arrivals[kind][some.start - start : some.stop - start] = group.number
        vertices[kind], arrivals[kind] = ids[start:][order[kind]], arrivals[kind][order[kind]]
    of_sums: dict[str, list[tuple[Array, Array]]] = {}
    for kind, read in sums.items():
        for target, (places, readers) in sum_readers(cut, read, vertices[kind]).items():
            of_sums.setdefault(target, []).append((readers, arrivals[kind][places]))
    first = {
        kind: len(
            np.unique(
                _joined([*(each[kind] for each in level.asked), *(each[kind].sources for each in level.asked_sums)])
            )
        )
        for kind in cut.types
    }
    found = order_of_arrival(cut, number, level.computed, vertices, arrivals, first, of_sums)
    computed, loads = ({kind: of[kind][found[kind]] for kind in cut.types} for of in (level.computed, level.loads))
    return replace(level, computed=computed, loads=loads)


def _counts(vertices: Rows) -> dict[str, int]:
    return {kind: len(ids) for kind, ids in vertices.items()}


def _bounds(cut: CutLists, level: LevelRows, bins: int) -> Rows:
    """The bounds of bins by node type; bins without any row are left out."""
    found = {kind: bin_bounds(level.loads[kind], bins) for kind in cut.types}
    sizes = sum(np.diff(each) for each in found.values())
    kept = np.flatnonzero(sizes)
    return {kind: np.concatenate([each[:1], each[1:][kept]]) for kind, each in found.items()}


def _number_of_bins(bounds: Rows) -> int:
    return len(next(iter(bounds.values()))) - 1


def _slice(bounds: Array, place: int) -> slice:
    return slice(int(bounds[place]), int(bounds[place + 1]))


def _level(
    cut: CutLists, lists: ListExchange, name: str, level: LevelRows, bounds: Rows, by_bin: bool, last: bool
) -> CutLevel:
    computed = _counts(level.computed)
    if last:
        return CutLevel(dict(level.computed), computed)
    sent = [_sent_to(cut, level, bounds, rank, by_bin) for rank in range(lists.world)]
    # For every reader: the number of rows of each type in each group, and for each type the order of its rows.
    offered = [
        [
            np.array([[group.count(kind) for kind in cut.types] for group in groups], np.int64).reshape(-1),
            *(_joined([_sent_numbers(level, group, kind) for group in groups]) for kind in cut.types),
        ]
        for groups in sent
    ]
    received, halo = _received(cut, lists.exchange(f"{name}/order", offered), computed)
    vertices = {kind: np.concatenate([level.computed[kind], *halo[kind]]) for kind in cut.types}
    return CutLevel(vertices, computed, level.replicated, received, [group for groups in sent for group in groups])


def _sent_numbers(level: LevelRows, group: SentGroup, kind: str) -> Array:
    rows = level.computed[kind][group.rows[kind]]
    return np.concatenate([rows, group.sums[kind].numbers]) if kind in group.sums else rows


def _sent_to(cut: CutLists, level: LevelRows, bounds: Rows, rank: int, by_bin: bool) -> list[SentGroup]:
    """The groups that are sent to a worker: a sum is sent with the last of its rows."""
    places = {kind: Places(level.computed[kind]) for kind in cut.types}
    rows = {kind: np.sort(places[kind][level.asked[rank][kind]]) for kind in cut.types}
    ends = {kind: np.searchsorted(rows[kind], bounds[kind], "left") for kind in cut.types}
    count = _number_of_bins(bounds)
    parts = [{kind: _slice(ends[kind], place) for kind in cut.types} for place in range(count)]
    filled = [place for place, part in enumerate(parts) if any(some.stop > some.start for some in part.values())]
    sums: dict[int, dict[str, SentSums]] = {}
    for kind, wanted in level.asked_sums[rank].items():
        if len(wanted.numbers):
            for place, found in sums_by_bin(wanted, places[kind], bounds[kind], by_bin).items():
                sums.setdefault(place, {})[kind] = found
    if not filled and not sums:
        return []
    if not by_bin:
        return [SentGroup(rank, 0, rows, {place: parts[place] for place in filled}, sums.get(count - 1, {}))]
    return [
        SentGroup(
            rank,
            number,
            {kind: rows[kind][parts[place][kind]] for kind in cut.types},
            {place: {kind: slice(0, some.stop - some.start) for kind, some in parts[place].items()}},
            sums.get(place, {}),
        )
        for number, place in enumerate(sorted({*filled, *sums}))
    ]


def _received(
    cut: CutLists, told: list[list[Array]], computed: dict[str, int]
) -> tuple[list[HaloGroup], dict[str, list[Array]]]:
    """The groups that every other worker sends, and their vertices by type."""
    groups, halo, ends = [], {kind: list[Array]() for kind in cut.types}, dict(computed)
    for rank, (sizes, *vertices) in enumerate(told):
        for number, counts in enumerate(sizes.reshape(-1, len(cut.types)).tolist()):
            rows = {}
            for kind, count in zip(cut.types, counts, strict=True):
                rows[kind] = slice(ends[kind], ends[kind] + count)
                ends[kind] += count
            groups.append(
                HaloGroup(rank, number, {kind: some for kind, some in rows.items() if some.stop > some.start})
            )
        for kind, ids in zip(cut.types, vertices, strict=True):
            halo[kind].append(ids)
    return groups, halo


def _bin(
    cut: CutLists,
    number: int,
    above: CutLevel,
    rows: dict[str, slice],
    places: dict[str, Places],
    sums: Mapping[str, ReadSums],
) -> CutBin:
    rows = {kind: some for kind, some in rows.items() if some.stop > some.start}
    batch: Any = cut.sample(number, {kind: above.vertices[kind][some] for kind, some in rows.items()})
    block, read = batch.blocks[0], {kind: np.asarray(ids, np.int64) for kind, ids in batch.vertices.items()}
    if sums:
        block, read = with_sums(cut, sums, batch)
    read = {kind: ids for kind, ids in read.items() if len(ids)}
    inputs = {kind: places[kind][ids] for kind, ids in read.items()}
    # Sums are not dropped: boundary sampling has dropped some of their rows already.
    names = {kind: cut.names(kind, np.maximum(ids, 0)) for kind, ids in read.items()}
    return CutBin(rows, block, dict(inputs), names, read)


def _joined(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
