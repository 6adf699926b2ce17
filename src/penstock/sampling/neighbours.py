"""Neighbour sampling: a fixed number of in-neighbours per vertex and hop."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.folder import Graph
from penstock.graph.integrity import check_graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.block import BatchKey, Block, MiniBatch
from penstock.sampling.exclusion import NOTHING, Exclusion, exclusion_of
from penstock.sampling.lists import (
    NO_LIMITS,
    DrawnNeighbours,
    Lists,
    ListSource,
    PerThread,
    Readable,
    Readers,
    Rows,
    TreeRows,
    check_seeds,
    check_way,
    numbered,
    rows_for,
    trees_of,
)
from penstock.sampling.temporal import Clock, clocks_of

ALL = -1
"""The fan-out that means every neighbour."""
Relation = EdgeType | str
"""An edge type, or its key `source__relation__destination`."""
Fanout = int | Mapping[Relation, int] | Mapping[str, int]
"""A hop's fan-out: one number for all relations, or numbers by relation; those that are not named are not followed."""


class NeighbourSampler:
    """Draws `fanouts[h]` in-neighbours of every vertex known at hop h, counted from the seeds.

    Draws are uniform, without repeats unless `replace`; a vertex with fewer neighbours gives all of them once. `weight`
    names an edge field to draw in proportion to; with `uniform` it only scales messages. `time` names an edge field, or
    after `node:` a field of the neighbours: what is later than a seed is never in its neighbourhood, and every seed has
    a tree of its own. `original[v]` is the number that v had before the graph was partitioned. Blocks come with
    `totals` of all rows where asked for, of destination rows where edges are weighted, with `edges` and, of samplers by
    time, `ages` where asked for. `relabel` is how vertices are mapped to rows: "direct", "hash", or chosen by the
    graph's size. `sample` may be called from several threads at once.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        replace: bool = False,
        weight: str | None = None,
        original: Array | None = None,
        totals: bool = False,
        edges: bool = False,
        time: str | None = None,
        relabel: str = "auto",
        uniform: bool = False,
        ages: bool = False,
    ) -> None:
        _check_graph(graph)
        check_fanouts(fanouts)
        check_graph(graph)
        ((node_type, nodes),), ((edge_type, edge_set),) = graph.nodes.items(), graph.edges.items()
        clock = None if time is None else next(iter(clocks_of(graph, time).values()))
        lists = Lists(edge_set, edge_key(edge_type), original, replace, weight, clock, uniform)
        names = None if original is None else {node_type: original}
        readable = Readable({node_type: nodes.count}, {edge_type: lists}, names)
        self._set_up(readable, fanouts, totals, edges, clock, relabel, ages)

    @classmethod
    def over(
        cls,
        readable: Readable,
        fanouts: Sequence[int],
        totals: bool = False,
        relabel: str = "auto",
        clock: Clock | None = None,
        edges: bool = False,
        ages: bool = False,
        disjoint: bool = False,
    ) -> Self:
        """A sampler over lists, wherever they are; these decide about weights and replacement.

        With a `clock`, which gives the type of times, seeds have times that the lists obey; `ages` need its times. With
        `disjoint`, or with a clock, every seed has a tree of its own, and may repeat.
        """
        readable.require_one_relation("NeighbourSampler", "use TypedNeighbourSampler")
        check_fanouts(fanouts)
        sampler = cls.__new__(cls)
        sampler._set_up(readable, fanouts, totals, edges, clock, relabel, ages, disjoint)
        return sampler

    def drawing_from(self, relations: Mapping[EdgeType, ListSource]) -> Self:
        """The same sampler over other lists of the same relation, sharing the mapping of vertices to rows."""
        other = copy.copy(self)
        (other._lists,) = relations.values()
        other.totals = self.totals or other._lists.weighted
        return other

    def _set_up(
        self,
        readable: Readable,
        fanouts: Sequence[int],
        totals: bool,
        edges: bool,
        clock: Clock | None,
        relabel: str,
        ages: bool = False,
        disjoint: bool = False,
    ) -> None:
        check_way(relabel)
        self._apart = apart = disjoint or clock is not None
        limit = readable.direct_limit
        ((self.node_type, count),), (lists,) = readable.counts.items(), readable.relations.values()
        self.fanouts, self.totals, self.edges = list(fanouts), totals or lists.weighted, edges
        self._source_totals, self._dtype = totals, index_dtype(count)
        self._count, self._lists, self._clock, self._ages = count, lists, clock, ages
        self._names = None if readable.names is None else readable.names[self.node_type]
        self._rows: PerThread[Rows] = PerThread(lambda: TreeRows(count) if apart else rows_for(count, relabel, limit))

    def sample(
        self,
        seeds: Array,
        key: BatchKey,
        *,
        exclude: Array | Exclusion | None = None,
        times: Array | None = None,
        places: Array | None = None,
    ) -> MiniBatch:
        """The batch of some different seeds; the same for the same key on any thread.

        `exclude` are edges [2, m], sources above destinations, that no hop of this batch may draw. `times` has one time
        per seed where the sampler obeys time; seeds may then repeat. `places` are then their positions in the batch of
        which these are a part: repeated seeds draw independently by position.
        """
        seeds = check_seeds(seeds, self._count, self.node_type, self._dtype)
        exclusion = NOTHING if exclude is None else exclusion_of(exclude, self._count, self._count)
        limits = self._limits(times, len(seeds))
        if limits is not None and places is not None and places.shape != limits.shape:
            raise PenstockError(
                f"There are {len(places)} places for {len(seeds)} seeds: give one for each seed.", code="shape-mismatch"
            )
        rows, blocks = self._rows.get(), list[Block]()
        rows.start(seeds)
        try:
            for hop, fanout in enumerate(self.fanouts):
                readers = _readers(rows, limits, exclusion, places)
                drawing = self._lists.start_draw(readers, key.hop(hop), fanout, self.edges or self._ages)
                if self.totals and not self._source_totals and hop == len(self.fanouts) - 1:
                    # Estimators of weighted lists need totals of the rows that have drawn: they are computed meanwhile.
                    counting = self._lists.start_totals(readers)
                drawn = drawing()
                ages = self._ages_of(drawn, readers)
                blocks.append(numbered(drawn if self.edges else drawn._replace(positions=None), rows))
                blocks[-1].ages = ages
            if self.totals:
                if self._source_totals:
                    counting = self._lists.start_totals(_readers(rows, limits, exclusion, places))
                totals = counting()
                for block in blocks:
                    block.totals = totals[: block.num_src]
            vertices = rows.vertices[: rows.known].copy()
            trees = trees_of({self.node_type: rows}) if self._apart else None
        finally:
            rows.forget()
        names = None if self._names is None else {self.node_type: self._names[vertices]}
        known = {self.node_type: seeds}, {self.node_type: vertices}
        return MiniBatch(*known, blocks[::-1], key=key, names=names, trees=trees)

    def _ages_of(self, drawn: DrawnNeighbours, readers: Readers) -> Array | None:
        """Ages, computed before the sources are numbered, which may overwrite them."""
        if not self._ages:
            return None
        assert self._clock is not None and drawn.positions is not None
        limits = np.repeat(readers.limits, np.diff(drawn.indptr))
        return self._clock.ages(limits, drawn.sources, drawn.positions)

    def _limits(self, times: Array | None, seeds: int) -> Array | None:
        if self._clock is not None:
            return self._clock.limits(times, seeds)
        if times is not None:
            raise PenstockError(
                "This sampler was made without `time`: name the field of times when making it.",
                code="unsupported-combination",
            )
        return None


def _readers(rows: Rows, limits: Array | None, exclusion: Exclusion = NOTHING, places: Array | None = None) -> Readers:
    """All rows known so far, as readers."""
    vertices = rows.vertices[: rows.known]
    if not isinstance(rows, TreeRows):
        return Readers(vertices, exclusion=exclusion)
    trees = rows.trees[: rows.known]
    own = NO_LIMITS if limits is None else limits[trees]
    return Readers(vertices, trees if places is None else places[trees], own, exclusion)


def check_fanouts(fanouts: Sequence[int]) -> None:
    if not fanouts or any(fanout == 0 or fanout < ALL for fanout in fanouts):
        raise PenstockError(
            f"Fan-outs are {list(fanouts)}: give positive numbers, or -1 for all neighbours.",
            code="value-out-of-range",
        )


def _check_graph(graph: Graph) -> None:
    graph.require_one_relation("NeighbourSampler", "use TypedNeighbourSampler")
    graph.require_edges()
    if graph.is_part:
        raise PenstockError(
            f"Graph {graph.name!r} is a part of a cut graph: sample the whole graph.", code="whole-graph-needed"
        )


# Relations as users name them, and the fan-outs of hops by relation.


def edge_type_named(graph: Graph, relation: Relation) -> EdgeType:
    """The edge type given by key or as a type."""
    return edge_type_among(list(graph.edges), relation)


def edge_type_among(edge_types: Sequence[EdgeType], relation: Relation) -> EdgeType:
    """The one of some edge types that is given by key or as a type."""
    for kind in edge_types:
        if relation in (kind, edge_key(kind)):
            return kind
    named = relation if isinstance(relation, str) else edge_key(relation)
    raise PenstockError(
        f"There is no relation {named!r}: the graph has {', '.join(map(edge_key, edge_types))}.", code="unknown-name"
    )


def fanouts_by_relation(edge_types: Iterable[EdgeType], fanouts: Sequence[Fanout]) -> list[dict[EdgeType, int]]:
    """Fan-outs of every hop by the relations that it follows."""
    edge_types = list(edge_types)
    if not fanouts:
        raise PenstockError("There are no fan-outs: give one for every hop.", code="option-missing")
    return [_by_relation(edge_types, fanout) for fanout in fanouts]


def _by_relation(edge_types: list[EdgeType], fanout: Fanout) -> dict[EdgeType, int]:
    """One hop's fan-outs of the relations that it follows."""
    if isinstance(fanout, Mapping):
        found = {edge_type_among(edge_types, relation): number for relation, number in fanout.items()}
    else:
        found = dict.fromkeys(edge_types, fanout)
    if any(number < ALL for number in found.values()) or not any(found.values()):
        raise PenstockError(
            f"The fan-out is {fanout}: give positive numbers, -1 for all neighbours, or 0 for relations that are not"
            " followed.",
            code="value-out-of-range",
        )
    return {kind: number for kind, number in found.items() if number}
