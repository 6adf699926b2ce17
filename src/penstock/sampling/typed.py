"""Neighbour sampling on heterogeneous graphs: a fan-out for every relation and hop."""

from collections.abc import Mapping, Sequence

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.block import Block, TypedBatch, TypedBlock
from penstock.sampling.exclusion import NOTHING, Exclusion, exclusion_of
from penstock.sampling.key import BatchKey
from penstock.sampling.lists import Lists, Readers, check_seeds
from penstock.sampling.neighbours import ALL
from penstock.sampling.relabel import PerThread, Rows, check_way, rows_for

Relation = EdgeType | str
"""An edge type, or its key `source__relation__destination`."""


class TypedNeighbourSampler:
    """Draws in-neighbours of every vertex known at a hop, from each relation that leads to its type.

    `fanouts[h]` is one number for all relations, or numbers by relation; those that are not named, or have 0, are not
    followed. Relations of a hop draw apart and read the vertices known at its start; new vertices are numbered relation
    by relation in stored order. `original` has an array for every node type that was renumbered. The rest is as for
    `NeighbourSampler`, without time. A block's `totals` run over the rows of its destination type.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int | Mapping[Relation, int]],
        replace: bool = False,
        weight: str | None = None,
        original: Mapping[str, Array] | None = None,
        totals: bool = False,
        edges: bool = False,
        relabel: str = "auto",
    ) -> None:
        if graph.is_part:
            raise PenstockError(f"Graph {graph.name!r} is a part of a larger one: sample the whole.")
        check_way(relabel)
        self.fanouts = [_by_relation(graph, fanout) for fanout in fanouts]
        if not self.fanouts:
            raise PenstockError("There are no fan-outs to sample: give one for every hop.")
        self.totals, self.edges = totals or weight is not None, edges
        self._graph, names = graph, original or {}
        self._counts = counts = {name: nodes.count for name, nodes in graph.nodes.items()}
        followed = [kind for kind in graph.edges if any(kind in hop for hop in self.fanouts)]
        self._lists = {
            kind: Lists(graph.edges[kind], edge_key(kind), names.get(kind[2]), replace, weight) for kind in followed
        }
        self._rows: PerThread[dict[str, Rows]] = PerThread(
            lambda: {name: rows_for(count, relabel) for name, count in counts.items()}
        )

    def sample(
        self, seeds: Mapping[str, Array], key: BatchKey, *, exclude: Mapping[Relation, Array] | None = None
    ) -> TypedBatch:
        """The batch of some different seeds of each type; the same for the same key on any thread.

        `exclude` has, by relation, edges [2, m], sources above destinations, that no hop of this batch may draw.
        """
        seeds = self._checked(seeds)
        exclusions = self._exclusions(exclude or {})
        rows = self._rows.get()
        try:
            for name, these in seeds.items():
                rows[name].start(these)
            blocks = [self._hop(rows, hop, key, exclusions) for hop in range(len(self.fanouts))]
            if self.totals:
                self._fill_totals(rows, blocks, exclusions)
            vertices = {name: found.vertices[: found.known].copy() for name, found in rows.items()}
        finally:
            for used in rows.values():
                used.forget()
        return TypedBatch(seeds, vertices, blocks[::-1], key=key)

    def _hop(self, rows: dict[str, Rows], hop: int, key: BatchKey, exclusions: dict[EdgeType, Exclusion]) -> TypedBlock:
        num_dst = {name: these.known for name, these in rows.items()}
        relations: dict[EdgeType, Block] = {}
        for kind, lists in self._lists.items():
            source, _, destination = kind
            if kind not in self.fanouts[hop]:
                continue
            vertices = rows[destination].vertices[: num_dst[destination]]
            readers = Readers(vertices, exclusion=exclusions.get(kind, NOTHING))
            relation_key = key.hop(hop, edge_key(kind))
            block = lists.block(readers, rows[source], relation_key, self.fanouts[hop][kind], self.edges)
            if block.num_edges:
                relations[kind] = block
        num_src = {name: these.known for name, these in rows.items()}
        for (source, _, _), block in relations.items():
            block.num_src = num_src[source]
        return TypedBlock(relations, num_src, num_dst)

    def _fill_totals(
        self, rows: dict[str, Rows], blocks: list[TypedBlock], exclusions: dict[EdgeType, Exclusion]
    ) -> None:
        for kind, lists in self._lists.items():
            there = [block for block in blocks if kind in block.relations]
            if not there:
                continue
            last = kind[2]
            vertices = rows[last].vertices[: there[-1].num_src[last]]
            totals = lists.totals(Readers(vertices, exclusion=exclusions.get(kind, NOTHING)))
            for block in there:
                block.relations[kind].totals = totals[: block.num_src[last]]

    def _checked(self, seeds: Mapping[str, Array]) -> dict[str, Array]:
        for name in seeds:
            if name not in self._counts:
                raise PenstockError(
                    f"There are no vertices of type {name!r} to start from: types {list(self._counts)}."
                )
        return {
            name: check_seeds(these, self._counts[name], name, index_dtype(self._counts[name]))
            for name, these in seeds.items()
        }

    def _exclusions(self, exclude: Mapping[Relation, Array]) -> dict[EdgeType, Exclusion]:
        found = {}
        for relation, pairs in exclude.items():
            source, _, destination = kind = edge_type_named(self._graph, relation)
            found[kind] = exclusion_of(pairs, self._counts[source], self._counts[destination])
        return found


def edge_type_named(graph: Graph, relation: Relation) -> EdgeType:
    """The edge type that a key or the type itself names."""
    for kind in graph.edges:
        if relation in (kind, edge_key(kind)):
            return kind
    named = relation if isinstance(relation, str) else edge_key(relation)
    raise PenstockError(f"There is no relation {named!r}: the graph has {', '.join(map(edge_key, graph.edges))}.")


def _by_relation(graph: Graph, fanout: int | Mapping[Relation, int]) -> dict[EdgeType, int]:
    """One hop's fan-outs of the relations that it follows."""
    if isinstance(fanout, Mapping):
        found = {edge_type_named(graph, relation): number for relation, number in fanout.items()}
    else:
        found = dict.fromkeys(graph.edges, fanout)
    if any(number < ALL for number in found.values()) or not any(found.values()):
        raise PenstockError(
            f"Fan-out {fanout} cannot be sampled: give positive numbers, -1 for all or, in part, 0 for none."
        )
    return {kind: number for kind, number in found.items() if number}
