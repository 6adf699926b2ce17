"""The lists of one relation of a partitioned graph: each row is drawn by the part that owns its vertex."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.data import EdgeSet
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit
from penstock.partition.owners import Book, split_by_owner
from penstock.sampling.exclusion import NOTHING, Exclusion
from penstock.sampling.lists import DrawnNeighbours, Lists, ListSource, Readers
from penstock.sampling.neighbours import ALL
from penstock.sampling.parts.owner import PartLists, Seen
from penstock.sampling.parts.requests import (
    DrawRequest,
    DrawSettings,
    TotalsRequest,
    counts_received,
    floats_received,
    malformed,
    numbers_received,
)
from penstock.sampling.temporal import Clock
from penstock.wire.channel import Channel, PendingCall
from penstock.wire.message import Message

# Rows grouped by the part that owns them, and the owners' answers merged in the order of the rows.


class OwnedRows(NamedTuple):
    """The rows, ascending, whose vertices one part owns."""

    rows: Array
    vertices: Array


class PartAnswer(NamedTuple):
    """What one part drew for its group: the number of sources of every row, and the sources, row after row."""

    counts: Array
    sources: Array
    weights: Array | None = None
    positions: Array | None = None
    """The edges' numbers in the partitioned graph, where asked for."""


def group_by_owner(vertices: Array, bounds: Array) -> dict[int, OwnedRows]:
    """For every part, the rows whose vertices it owns; `bounds` are the partition book's."""
    split, groups = split_by_owner(vertices, bounds), {}
    for part in np.flatnonzero(np.diff(split.starts)).tolist():
        _, places = split.of(part)
        groups[part] = OwnedRows(places, vertices[places])
    return groups


def stitch_draws(
    groups: Mapping[int, OwnedRows],
    pieces: Mapping[int, PartAnswer],
    count: int,
    dtype: np.dtype[np.signedinteger],
    weighted: bool,
    positioned: bool = False,
) -> DrawnNeighbours:
    """The merged draws of `count` rows, with weights where `weighted` and positions where `positioned`."""
    indptr = np.zeros(count + 1, np.int64)
    for part, group in groups.items():
        indptr[group.rows + 1] = pieces[part].counts
    np.cumsum(indptr, out=indptr)
    sources = np.empty(indptr[-1], dtype)
    kinds = [piece.weights.dtype for piece in pieces.values() if piece.weights is not None]
    weights = np.empty(indptr[-1], kinds[0] if kinds else np.float32) if weighted else None
    positions = np.empty(indptr[-1], np.int64) if positioned else None
    for part, (rows, _) in groups.items():
        piece = pieces[part]
        place_lists(rows, indptr, piece.sources, sources)
        if weights is not None:
            assert piece.weights is not None
            place_lists(rows, indptr, piece.weights, weights)
        if positions is not None:
            assert piece.positions is not None
            place_lists(rows, indptr, piece.positions, positions)
    return DrawnNeighbours(indptr, sources, positions, weights)


def stitch_rows(groups: Mapping[int, OwnedRows], pieces: Mapping[int, Array], count: int) -> Array:
    """One float32 for each row, in the order of the request."""
    values = np.empty(count, np.float32)
    for part, group in groups.items():
        values[group.rows] = pieces[part]
    return values


@njit(nogil=True, cache=True, writes=("out",))
def place_lists(rows: Array, indptr: Array, values: Array, out: Array) -> None:
    """Copy concatenated lists to the positions of their rows in the output."""
    used = 0
    for k in range(len(rows)):
        begin, end = indptr[rows[k]], indptr[rows[k] + 1]
        for place in range(begin, end):
            out[place] = values[used]
            used += 1


# Draws by the times of vertices, which a list's owner does not have for other parts' vertices: whole lists are sent to
# the requester, who reads the times of the vertices in them and draws as an owner would.

_ANY = np.uint64(0)
"""Whole lists involve no random draw, so any key serves."""
_WEIGHT = "weight"


def check_readers(readers: Readers) -> None:
    """Refuse what sampling by time over parts does not support."""
    if len(readers.limits) and readers.exclusion is not NOTHING:
        raise PenstockError(
            "A cut graph cannot be sampled by time with edges excluded: leave out `time` or `exclude`.",
            code="unsupported-combination",
        )


class VertexTimedLists:
    """Lists of one relation whose readers have limits; `lists` returns them whole, wherever they are."""

    def __init__(
        self,
        lists: ListSource,
        names: Array,
        times: Any,
        dtype: np.dtype[Any],
        replace: bool = False,
        uniform: bool = False,
    ) -> None:
        """`names` are the destinations' original numbers and `times` those of the sources, by new number; they are
        compared as `dtype`.

        Weighted lists come with the weights of all their edges, since draws depend on positions in whole lists.
        """
        self._lists, self._names, self._replace, self.weighted = lists, names, replace, lists.weighted
        self._uniform, self._times, self._dtype = uniform, times, dtype

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Request whole lists; draws are made when the result is waited for."""
        ready = self._start(readers, edges)

        def drawn() -> DrawnNeighbours:
            lists, here, numbers = ready()
            found = lists.draw(here, key, fanout, edges)
            return found if numbers is None else found._replace(positions=numbers[found.positions])

        return drawn

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """Request whole lists; admissible edges are counted when the result is waited for."""
        ready = self._start(readers, False)

        def totals() -> Array:
            lists, here, _ = ready()
            return lists.totals(here)

        return totals

    def _start(self, readers: Readers, edges: bool) -> Callable[[], tuple[Lists, Readers, Array | None]]:
        """Request each list once, however many trees its vertex is in."""
        check_readers(readers)
        vertices, places = np.unique(readers.vertices, return_inverse=True)
        asked = self._lists.start_draw(Readers(vertices), _ANY, ALL, edges)
        return partial(self._here, asked, vertices, readers._replace(vertices=places))

    def _here(
        self, asked: Callable[[], DrawnNeighbours], vertices: Array, readers: Readers
    ) -> tuple[Lists, Readers, Array | None]:
        """The lists that arrived, their readers, and the numbers of their edges where asked for."""
        found = asked()
        fields = {} if found.weights is None else {_WEIGHT: found.weights}
        whole, weight = EdgeSet(found.indptr, found.sources, fields), _WEIGHT if self.weighted else None
        # An edge is drawn by the time of its source as if that were its own.
        clock = Clock(self._times[found.sources].astype(self._dtype, copy=False), np.empty(0, self._dtype))
        lists = Lists(whole, "A cut graph", self._names[vertices], self._replace, weight, clock, self._uniform)
        return lists, readers, found.positions


Channels = Callable[[int], Channel]
"""The channel to the task that holds a part."""


class PartedLists:
    """Draws from local parts directly, while the owners of the others draw from theirs."""

    def __init__(
        self, kind: EdgeType, book: Book, local: Mapping[int, PartLists], channels: Channels, how: DrawSettings
    ) -> None:
        """`local` must draw as `how` says; requests pass that on to other owners."""
        self.weighted = how.weight is not None
        self._how = how._replace(uniform=how.uniform and self.weighted)
        self._relation, self._local, self._channels = edge_key(kind), local, channels
        self._book, self._bounds = book, book.bounds(kind[2])
        self._num_sources = book.count(kind[0])

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Request draws from the owners elsewhere; local parts draw when the result is waited for.

        Positions are the edges' numbers in the partitioned graph, by which stores serve their fields.
        """
        first_edges = self._book.edge_bounds(self._relation) if edges else None
        groups = self._groups(readers)
        draw, asked = {"key": int(key), "fanout": fanout, "positions": edges, **self._how.fields()}, {}
        for part, group in groups.items():
            if part not in self._local:
                body = DrawRequest(part=part, relation=self._relation, **draw)
                asked[part] = self._ask("draw", part, group, body, readers)
        return partial(self._drawn, readers, groups, asked, key, fanout, first_edges)

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """Request totals from the owners elsewhere; local parts count when the result is waited for."""
        groups = self._groups(readers)
        how, asked = {name: self._how.fields()[name] for name in ("weight", "absent", "time")}, {}
        for part, group in groups.items():
            if part not in self._local:
                body = TotalsRequest(part=part, relation=self._relation, **how)
                asked[part] = self._ask("totals", part, group, body, readers)
        return partial(self._totals, readers, groups, asked)

    def _groups(self, readers: Readers) -> dict[int, OwnedRows]:
        check_readers(readers)
        if len(readers.limits) and self._how.time is None:
            raise PenstockError(
                "These lists were made without `time`: name the field of times.", code="unsupported-combination"
            )
        return group_by_owner(readers.vertices, self._bounds)

    def _ask(self, kind: str, part: int, group: OwnedRows, body: TotalsRequest, readers: Readers) -> PendingCall:
        excluded, seen = self._excluded(readers.exclusion, part, group.vertices), self._seen(readers, group)
        arrays = (group.vertices, *(seen or ()), *(() if excluded is None else (excluded,)))
        return self._channels(part).start(Message(kind, body.model_dump(), arrays))

    def _seen(self, readers: Readers, group: OwnedRows) -> Seen | None:
        """Trees and times of one owner's rows, where time counts."""
        return None if self._how.time is None else Seen(readers.trees[group.rows], readers.limits[group.rows])

    def _drawn(
        self,
        readers: Readers,
        groups: dict[int, OwnedRows],
        asked: dict[int, PendingCall],
        key: np.uint64,
        fanout: int,
        first_edges: Array | None,
    ) -> DrawnNeighbours:
        how = self._how
        estimates = how.shared or (self.weighted and (how.uniform or fanout < 0 or not how.replace))
        pieces = {}
        for part, group in groups.items():
            if part in self._local:
                drawn = self._draw_here(part, group, key, fanout, readers, first_edges)
                if len(groups) == 1:
                    return drawn
                pieces[part] = PartAnswer(np.diff(drawn.indptr), drawn.sources, drawn.weights, drawn.positions)
        for part, pending in asked.items():
            pieces[part] = self._received(pending, part, len(groups[part].rows), estimates, first_edges)
        dtype, positioned = index_dtype(self._num_sources), first_edges is not None
        return stitch_draws(groups, pieces, len(readers.vertices), dtype, estimates, positioned)

    def _draw_here(
        self, part: int, group: OwnedRows, key: np.uint64, fanout: int, readers: Readers, first_edges: Array | None
    ) -> DrawnNeighbours:
        here, how = self._local[part], self._how
        if how.shared:
            drawn = here.draw_shared(group.vertices, key, fanout)
        elif how.whole and how.weight is not None:
            drawn = here.whole(group.vertices, how.weight)
        else:
            excluded, seen = self._excluded(readers.exclusion, part, group.vertices), self._seen(readers, group)
            drawn = here.draw(group.vertices, key, fanout, excluded, seen, first_edges is not None)
        if first_edges is None or drawn.positions is None:
            return drawn._replace(positions=None)
        return drawn._replace(positions=drawn.positions + first_edges[part])

    def _totals(self, readers: Readers, groups: dict[int, OwnedRows], asked: dict[int, PendingCall]) -> Array:
        pieces = {}
        for part, group in groups.items():
            if part in self._local:
                excluded, seen = self._excluded(readers.exclusion, part, group.vertices), self._seen(readers, group)
                pieces[part] = self._local[part].totals(group.vertices, excluded, seen)
        for part, pending in asked.items():
            answer, who = pending.result(), f"The owner of part {part}"
            if len(answer.arrays) != 1:
                raise malformed(who, f"answered with {len(answer.arrays)} arrays")
            pieces[part] = floats_received(answer.arrays[0], len(groups[part].rows), who)
        return stitch_rows(groups, pieces, len(readers.vertices))

    def _received(
        self, pending: PendingCall, part: int, rows: int, estimates: bool, first_edges: Array | None
    ) -> PartAnswer:
        """An owner's answer, validated completely, since kernels rely on it."""
        arrays, who = pending.result().arrays, f"The owner of part {part}"
        if len(arrays) != 2 + estimates + (first_edges is not None) or arrays[0].shape != (rows,):
            raise malformed(who, "answered with lists of other rows than those requested")
        sources = numbers_received(arrays[1], self._num_sources, index_dtype(self._num_sources), who)
        counts = counts_received(arrays[0], len(sources), who)
        kind = np.float64 if self._how.whole else np.float32
        weights = floats_received(arrays[2], len(sources), who, kind) if estimates else None
        if first_edges is None:
            return PartAnswer(counts, sources, weights)
        count = int(first_edges[part + 1] - first_edges[part])
        positions = numbers_received(arrays[-1], count, index_dtype(count), who, len(sources))
        return PartAnswer(counts, sources, weights, positions + first_edges[part])

    def _excluded(self, exclusion: Exclusion, part: int, vertices: Array) -> Array | None:
        """Excluded edges [2, m] that lead to some of a part's vertices, in the partitioned graph's numbers; None if
        there are none.
        """
        if exclusion is NOTHING:
            return None
        low, high = np.searchsorted(exclusion.destinations, self._bounds[part : part + 2])
        at = low + np.flatnonzero(np.isin(exclusion.destinations[low:high], vertices))
        if not len(at):
            return None
        first, lengths = exclusion.offsets[at], exclusion.offsets[at + 1] - exclusion.offsets[at]
        places = np.arange(lengths.sum()) + np.repeat(first - np.cumsum(lengths) + lengths, lengths)
        return np.stack([exclusion.sources[places], np.repeat(exclusion.destinations[at], lengths)])
