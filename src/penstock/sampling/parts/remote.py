"""The lists of one relation of a cut graph: each row is drawn by the part that owns its vertex."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.schema import EdgeType, edge_key
from penstock.partition.owners import Book
from penstock.sampling.exclusion import Exclusion
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.sampling.lists import DrawnNeighbours, Readers
from penstock.sampling.parts.answers import Group, PartAnswer, group_by_owner, stitch_draws, stitch_rows
from penstock.sampling.parts.owner import PartLists, Seen
from penstock.sampling.parts.requests import (
    DrawRequest,
    HeldOutRuleForm,
    TotalsRequest,
    counts_received,
    floats_received,
    numbers_received,
)
from penstock.sampling.parts.vertex_times import check_readers
from penstock.wire.channel import Channel
from penstock.wire.message import Message
from penstock.wire.pending_call import PendingCall

Channels = Callable[[int], Channel]
"""The channel to the task that holds a part."""


class PartedLists:
    """Parts that are here are drawn from through their mappings, while the others' owners draw from theirs."""

    def __init__(
        self,
        kind: EdgeType,
        book: Book,
        local: Mapping[int, PartLists],
        channels: Channels,
        replace: bool = False,
        weight: str | None = None,
        absent: HeldOutRule | None = None,
        shared: bool = False,
        time: str | None = None,
        whole: bool = False,
        uniform: bool = False,
    ) -> None:
        """`local` draw as `replace`, `weight`, `absent`, `time` and `uniform` say too; of others the owners are asked.

        `shared`: rows share their draws, as LABOR has it. `whole`: lists are not drawn from but given as they are.
        """
        self.weighted, self.replace, self.uniform = weight is not None, replace, uniform and weight is not None
        self._relation, self._weight, self._local, self._channels = edge_key(kind), weight, local, channels
        self._shared, self._time, self._whole = shared, time, whole
        self._absent = None if absent is None else HeldOutRuleForm.of(absent)
        self._book, self._bounds = book, book.bounds(kind[2])
        self._num_sources = book.count(kind[0])

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Ask the owners that are elsewhere; those here draw when the answer is waited for.

        Positions are the edges' numbers in the cut graph, by which stores serve their fields.
        """
        first_edges = self._book.edge_bounds(self._relation) if edges else None
        groups = self._groups(readers)
        asked = {}
        for part, group in groups.items():
            if part not in self._local:
                body = DrawRequest(
                    part=part,
                    relation=self._relation,
                    weight=self._weight,
                    absent=self._absent,
                    time=self._time,
                    key=int(key),
                    fanout=fanout,
                    replace=self.replace,
                    shared=self._shared,
                    whole=self._whole,
                    positions=edges,
                    uniform=self.uniform,
                )
                asked[part] = self._ask("draw", part, group, body, readers)
        return partial(self._drawn, readers, groups, asked, key, fanout, first_edges)

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """Ask the owners that are elsewhere; those here count when the answer is waited for."""
        groups = self._groups(readers)
        asked = {}
        for part, group in groups.items():
            if part not in self._local:
                body = TotalsRequest(
                    part=part, relation=self._relation, weight=self._weight, absent=self._absent, time=self._time
                )
                asked[part] = self._ask("totals", part, group, body, readers)
        return partial(self._totals, readers, groups, asked)

    def _groups(self, readers: Readers) -> dict[int, Group]:
        check_readers(readers)
        if len(readers.limits) and self._time is None:
            raise PenstockError(
                "These lists were made without `time`: name the field of times.", code="unsupported-combination"
            )
        return group_by_owner(readers.vertices, self._bounds)

    def _ask(self, kind: str, part: int, group: Group, body: TotalsRequest, readers: Readers) -> PendingCall:
        excluded, seen = self._excluded(readers.exclusion, part, group.vertices), self._seen(readers, group)
        arrays = (group.vertices, *(seen or ()), *(() if excluded is None else (excluded,)))
        return self._channels(part).start(Message(kind, body.model_dump(), arrays))

    def _seen(self, readers: Readers, group: Group) -> Seen | None:
        """Trees and times of one owner's rows, where time counts."""
        return None if self._time is None else Seen(readers.trees[group.rows], readers.limits[group.rows])

    def _drawn(
        self,
        readers: Readers,
        groups: dict[int, Group],
        asked: dict[int, PendingCall],
        key: np.uint64,
        fanout: int,
        first_edges: Array | None,
    ) -> DrawnNeighbours:
        estimates = self._shared or (self.weighted and (self.uniform or fanout < 0 or not self.replace))
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
        self, part: int, group: Group, key: np.uint64, fanout: int, readers: Readers, first_edges: Array | None
    ) -> DrawnNeighbours:
        here = self._local[part]
        if self._shared:
            drawn = here.draw_shared(group.vertices, key, fanout)
        elif self._whole and self._weight is not None:
            drawn = here.whole(group.vertices, self._weight)
        else:
            excluded, seen = self._excluded(readers.exclusion, part, group.vertices), self._seen(readers, group)
            drawn = here.draw(group.vertices, key, fanout, excluded, seen, first_edges is not None)
        if first_edges is None or drawn.positions is None:
            return drawn._replace(positions=None)
        return drawn._replace(positions=drawn.positions + first_edges[part])

    def _totals(self, readers: Readers, groups: dict[int, Group], asked: dict[int, PendingCall]) -> Array:
        pieces = {}
        for part, group in groups.items():
            if part in self._local:
                excluded, seen = self._excluded(readers.exclusion, part, group.vertices), self._seen(readers, group)
                pieces[part] = self._local[part].totals(group.vertices, excluded, seen)
        for part, pending in asked.items():
            answer, who = pending.result(), f"The owner of part {part}"
            if len(answer.arrays) != 1:
                raise PenstockError(
                    f"{who} answered with {len(answer.arrays)} arrays: check that it runs the same release.",
                    code="malformed-message",
                )
            pieces[part] = floats_received(answer.arrays[0], len(groups[part].rows), who)
        return stitch_rows(groups, pieces, len(readers.vertices))

    def _received(
        self, pending: PendingCall, part: int, rows: int, estimates: bool, first_edges: Array | None
    ) -> PartAnswer:
        """An owner's answer. It goes to kernels that believe it, so nothing in it is believed here."""
        arrays, who = pending.result().arrays, f"The owner of part {part}"
        if len(arrays) != 2 + estimates + (first_edges is not None) or arrays[0].shape != (rows,):
            raise PenstockError(
                f"{who} answered with lists of other rows than those requested: check that it runs the same release.",
                code="malformed-message",
            )
        sources = numbers_received(arrays[1], self._num_sources, index_dtype(self._num_sources), who)
        counts = counts_received(arrays[0], len(sources), who)
        kind = np.float64 if self._whole else np.float32
        weights = floats_received(arrays[2], len(sources), who, kind) if estimates else None
        if first_edges is None:
            return PartAnswer(counts, sources, weights)
        count = int(first_edges[part + 1] - first_edges[part])
        positions = numbers_received(arrays[-1], count, index_dtype(count), who, len(sources))
        return PartAnswer(counts, sources, weights, positions + first_edges[part])

    def _excluded(self, exclusion: Exclusion, part: int, vertices: Array) -> Array | None:
        """Excluded edges [2, m] that lead to some of a part's vertices, in the cut graph's numbers; none: None."""
        if not exclusion:
            return None
        low, high = np.searchsorted(exclusion.destinations, self._bounds[part : part + 2])
        at = low + np.flatnonzero(np.isin(exclusion.destinations[low:high], vertices))
        if not len(at):
            return None
        first, lengths = exclusion.offsets[at], exclusion.offsets[at + 1] - exclusion.offsets[at]
        places = np.arange(lengths.sum()) + np.repeat(first - np.cumsum(lengths) + lengths, lengths)
        return np.stack([exclusion.sources[places], np.repeat(exclusion.destinations[at], lengths)])
