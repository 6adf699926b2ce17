"""Neighbour sampling on heterogeneous graphs: a fan-out for every relation and hop."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as with_changes
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.integrity import check_graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.block import BatchKey, Block, MiniBatch
from penstock.sampling.draws import SCANNED
from penstock.sampling.entry import (
    DrawOptions,
    GraphSource,
    ReadableLists,
    SamplerEntry,
    SamplerSettings,
    fanouts_of_one,
    plain_fanouts,
)
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
    check_typed_seeds,
    check_way,
    numbered,
    rows_for,
    trees_of,
)
from penstock.sampling.neighbours import Fanout, NeighbourSampler, Relation, edge_type_among, fanouts_by_relation
from penstock.sampling.temporal import Clock, clocks_of

if TYPE_CHECKING:
    from penstock.sampling.device.program import DeviceProgram


class TypedNeighbourSampler:
    """Draws in-neighbours of every vertex known at a hop, from each relation that leads to its type.

    `fanouts[h]` is one number for all relations, or numbers by relation; those that are not named, or have 0, are not
    followed. Relations of a hop draw independently and read the vertices known at its start; new vertices are numbered
    relation by relation in stored order. `original` has an array for every node type that was renumbered. `time` names
    a field of edges, or after `node:` of neighbours; relations without it are not bound by time. The rest is as for
    `NeighbourSampler`. A block's `totals` are those of the rows of its destination type.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[Fanout],
        replace: bool = False,
        weight: str | None = None,
        original: Mapping[str, Array] | None = None,
        totals: bool = False,
        edges: bool = False,
        relabel: str = "auto",
        uniform: bool = False,
        time: str | None = None,
    ) -> None:
        if graph.is_part:
            raise PenstockError(
                f"Graph {graph.name!r} is a part of a cut graph: sample the whole graph.", code="whole-graph-needed"
            )
        check_graph(graph)
        hops, names = fanouts_by_relation(graph.edges, fanouts), original or {}
        check_way(relabel)
        clocks = {} if time is None else clocks_of(graph, time)
        how = replace, weight
        relations = {
            kind: Lists(graph.edges[kind], edge_key(kind), names.get(kind[2]), *how, clocks.get(kind), uniform)
            for kind in _followed(graph.edges, hops)
        }
        counts = {name: nodes.count for name, nodes in graph.nodes.items()}
        self._edge_types = list(graph.edges)
        self._set_up(Readable(counts, relations, original), hops, totals, edges, relabel, clocks)

    @classmethod
    def over(
        cls,
        readable: Readable,
        fanouts: Sequence[Fanout],
        totals: bool = False,
        relabel: str = "auto",
        edges: bool = False,
        clocks: Mapping[EdgeType, Clock] | None = None,
        disjoint: bool = False,
    ) -> Self:
        """A sampler over lists, wherever they are; these decide about weights and replacement.

        With `clocks`, seeds have times that the lists of those relations obey. With `disjoint`, or with clocks, every
        seed has a tree of its own, and may repeat.
        """
        check_way(relabel)
        hops = fanouts_by_relation(readable.relations, fanouts)
        followed = {kind: readable.relations[kind] for kind in _followed(readable.relations, hops)}
        sampler = cls.__new__(cls)
        sampler._edge_types = list(readable.relations)
        wanted = with_changes(readable, relations=followed)
        sampler._set_up(wanted, hops, totals, edges, relabel, clocks or {}, disjoint)
        return sampler

    def drawing_from(self, relations: Mapping[EdgeType, ListSource]) -> Self:
        """The same sampler over other lists of the same relations, sharing the mapping of vertices to rows."""
        other = copy.copy(self)
        other._lists = {kind: relations[kind] for kind in self._lists}
        other.totals = self.totals or any(lists.weighted for lists in other._lists.values())
        return other

    def _set_up(
        self,
        readable: Readable,
        hops: list[dict[EdgeType, int]],
        totals: bool,
        edges: bool,
        relabel: str,
        clocks: Mapping[EdgeType, Clock],
        disjoint: bool = False,
    ) -> None:
        self._disjoint, apart = disjoint, disjoint or bool(clocks)
        self._counts, self._lists, self._names = dict(readable.counts), dict(readable.relations), readable.names
        self.fanouts, self.edges, self._clocks = hops, edges, clocks
        self.totals = totals or any(lists.weighted for lists in self._lists.values())
        self._source_totals = totals
        counts, limit = self._counts, readable.direct_limit

        def rows() -> dict[str, Rows]:
            return {
                name: TreeRows(count) if apart else rows_for(count, relabel, limit) for name, count in counts.items()
            }

        self._rows: PerThread[dict[str, Rows]] = PerThread(rows)

    def sample(
        self,
        seeds: Mapping[str, Array],
        key: BatchKey,
        *,
        exclude: Mapping[Relation, Array | Exclusion] | None = None,
        times: Mapping[str, Array] | None = None,
        places: Mapping[str, Array] | None = None,
    ) -> MiniBatch:
        """The batch of some different seeds of each type; the same for the same key on any thread.

        `exclude` has, by relation, edges [2, m], sources above destinations, that no hop of this batch may draw.
        `times` has, by type, one time for each seed where the sampler obeys time; seeds may then repeat. `places` are
        then their positions, by type, in the batch of which these are a part, whose types are concatenated.
        """
        seeds = check_typed_seeds(seeds, self._counts)
        limits = self._limits(seeds, times)
        conditions = _Conditions(self._exclusions(exclude or {}), limits, _places(seeds, places), self._disjoint)
        rows = self._rows.get()
        try:
            _start(rows, seeds)
            blocks = [self._hop(rows, hop, key, conditions) for hop in range(len(self.fanouts))]
            if self.totals:
                self._fill_totals(rows, blocks, conditions)
            vertices = {name: found.vertices[: found.known].copy() for name, found in rows.items()}
            trees = trees_of(rows)
        finally:
            for used in rows.values():
                used.forget()
        return MiniBatch(seeds, vertices, blocks[::-1], key=key, names=self._names_of(vertices), trees=trees)

    def _names_of(self, vertices: Mapping[str, Array]) -> dict[str, Array] | None:
        """The original numbers of vertices by type, or None where no type was renumbered."""
        if self._names is None:
            return None
        return {name: self._names[name][these] if name in self._names else these for name, these in vertices.items()}

    def _limits(self, seeds: Mapping[str, Array], times: Mapping[str, Array] | None) -> dict[EdgeType, Array]:
        """By relation that is bound by time, the time of every seed, concatenated over types."""
        if not self._clocks:
            if times is None:
                return {}
            raise PenstockError(
                "This sampler was made without `time`: name the field of times when making it.",
                code="unsupported-combination",
            )
        missing = [name for name in seeds if times is None or name not in times]
        if times is None or missing:
            raise PenstockError(
                f"This sampler samples by time: pass `times` of {', '.join(map(repr, missing))}, one for every seed.",
                code="option-missing",
            )
        (clock, *_) = self._clocks.values()
        for name, these in seeds.items():
            clock.limits(times[name], len(these))  # refuses what cannot be times of these seeds
        every = np.concatenate([np.empty(0, np.int64), *(times[name] for name in seeds)])
        return {kind: clock.limits(every, len(every)) for kind, clock in self._clocks.items()}

    def _hop(self, rows: dict[str, Rows], hop: int, key: BatchKey, conditions: "_Conditions") -> Block:
        num_dst = {name: these.known for name, these in rows.items()}
        # All relations are started at once: lists held by other tasks are then drawn in parallel.
        drawing = {}
        for kind, fanout in self._in_order(self.fanouts[hop]):
            readers = conditions.readers(kind, rows[kind[2]], num_dst[kind[2]])
            drawing[kind] = self._lists[kind].start_draw(readers, key.hop(hop, edge_key(kind)), fanout, self.edges)
        relations: dict[EdgeType, Block] = {}
        for kind, drawn in drawing.items():
            block = _numbered(drawn(), rows[kind[0]], rows[kind[2]])
            if block.num_edges:
                relations[kind] = block
        num_src = {name: these.known for name, these in rows.items()}
        for (source, _, _), block in relations.items():
            block.num_src = num_src[source]
        return Block.of_relations(relations, num_src, num_dst)

    def _fill_totals(self, rows: dict[str, Rows], blocks: list[Block], conditions: "_Conditions") -> None:
        counting = {}
        for kind, lists in self._lists.items():
            there = [block for block in blocks if kind in block.relations]
            if there:
                # Estimators of weighted lists need totals of destination rows only.
                counted = there[-1].src_counts if self._source_totals else there[-1].dst_counts
                readers = conditions.readers(kind, rows[kind[2]], counted[kind[2]])
                counting[kind] = there, lists.start_totals(readers)
        for kind, (there, finish) in counting.items():
            totals = finish()
            for block in there:
                block.relations[kind].totals = totals[: block.src_counts[kind[2]]]

    def _in_order(self, fanouts: Mapping[EdgeType, int]) -> list[tuple[EdgeType, int]]:
        return [(kind, fanouts[kind]) for kind in self._lists if kind in fanouts]

    def _exclusions(self, exclude: Mapping[Relation, Array | Exclusion]) -> dict[EdgeType, Exclusion]:
        found = {}
        for relation, pairs in exclude.items():
            source, _, destination = kind = edge_type_among(self._edge_types, relation)
            found[kind] = exclusion_of(pairs, self._counts[source], self._counts[destination])
        return found


class _Conditions(NamedTuple):
    """What a batch may not draw: by relation, excluded edges, and the times of all seeds; and the seeds' positions.

    `disjoint`: rows of one vertex in different trees draw independently, even if no time binds them.
    """

    exclusions: dict[EdgeType, Exclusion]
    limits: dict[EdgeType, Array]
    places: Array | None
    disjoint: bool = False

    def readers(self, kind: EdgeType, rows: Rows, count: int) -> Readers:
        """The first rows of a type, as readers of a relation's lists."""
        vertices, exclusion = rows.vertices[:count], self.exclusions.get(kind, NOTHING)
        if kind not in self.limits and not self.disjoint:
            return Readers(vertices, exclusion=exclusion)
        assert isinstance(rows, TreeRows)
        trees = rows.trees[:count]
        limits = self.limits[kind][trees] if kind in self.limits else NO_LIMITS
        return Readers(vertices, trees if self.places is None else self.places[trees], limits, exclusion)


def _places(seeds: Mapping[str, Array], places: Mapping[str, Array] | None) -> Array | None:
    """The positions of all seeds, concatenated over types."""
    if places is None:
        return None
    for name, these in seeds.items():
        if name not in places or len(places[name]) != len(these):
            raise PenstockError(
                f"There are {len(places.get(name, ()))} places for {len(these)} seeds of type {name!r}: give one for"
                " each seed.",
                code="shape-mismatch",
            )
    return np.concatenate([np.empty(0, np.int64), *(places[name] for name in seeds)])


def _start(rows: Mapping[str, Rows], seeds: Mapping[str, Array]) -> None:
    """Give the seeds of each type the first rows; each has a tree of its own where time counts."""
    first = 0
    for name, these in seeds.items():
        if isinstance(found := rows[name], TreeRows):
            found.start(these, first)
            first += len(these)
        else:
            found.start(these)


def _numbered(drawn: DrawnNeighbours, sources: Rows, readers: Rows) -> Block:
    """`lists.numbered` for one relation: where time counts, sources belong to the trees of their readers."""
    if not isinstance(sources, TreeRows):
        return numbered(drawn, sources)
    assert isinstance(readers, TreeRows)
    rows = sources.number_in(readers.trees, drawn.sources, drawn.indptr)
    return Block(drawn.indptr, rows, sources.known, drawn.weights, edges=drawn.positions)


def _followed(edge_types: Iterable[EdgeType], hops: list[dict[EdgeType, int]]) -> list[EdgeType]:
    """Relations that some hop follows, in stored order."""
    return [kind for kind in edge_types if any(kind in hop for hop in hops)]


def neighbour_sampler(
    lists: ReadableLists,
    fanouts: Sequence[Fanout],
    *,
    totals: bool = False,
    relabel: str = "auto",
    edges: bool = False,
    ages: bool = False,
    disjoint: bool = False,
) -> NeighbourSampler | TypedNeighbourSampler:
    """A neighbour sampler over lists, wherever they are: for one relation or several, as they have."""
    readable = lists.readable
    if readable.has_several:
        return TypedNeighbourSampler.over(readable, fanouts, totals, relabel, edges, lists.clocks, disjoint)
    plain = fanouts_of_one(fanouts)
    return NeighbourSampler.over(readable, plain, totals, relabel, lists.clock, edges, ages, disjoint)


def _build(source: GraphSource, settings: SamplerSettings) -> NeighbourSampler | TypedNeighbourSampler:
    fanouts: list[Fanout] = [
        dict(fanout.items()) if isinstance(fanout, dict) else fanout for fanout in settings.options.fanouts
    ]
    return neighbour_sampler(
        source.lists(settings.options),
        fanouts,
        totals=settings.totals,
        edges=settings.edges,
        ages=settings.ages,
        disjoint=settings.disjoint,
    )


def weighing(options: DrawOptions) -> tuple[bool, bool]:
    """Whether edges' weights decide draws, and whether they only scale messages."""
    return options.weight is not None, options.weight is None and options.edge_weight is not None


def _on_device(options: DrawOptions, sampler: object) -> "DeviceProgram":
    from penstock.sampling.device.program import DeviceProgram, neighbour_rules

    rules = neighbour_rules(plain_fanouts(options), options.replace, *weighing(options))
    return DeviceProgram(rules, totals=options.list_weight is not None)


NEIGHBOUR = SamplerEntry(
    "neighbour",
    _build,
    frozenset({"types", "weight", "edge_weight", "time", "replace", "exclude", "disjoint"}),
    per_layer="fanouts",
    prepares=False,
    measured=True,
    scales=True,
    has_explained_form=True,
    device=_on_device,
    is_redefined=lambda options: options.weight is not None or options.largest_fanout > SCANNED,
    device_types=True,
)
