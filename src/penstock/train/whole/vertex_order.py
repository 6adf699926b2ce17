"""The order of vertices in which bins read few rows: that of a breadth-first search, where neighbours are together."""

from itertools import pairwise

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.partition.search_order import breadth_first
from penstock.partition.whole import merged_lists


def in_search_order(graph: Graph, order: dict[str, Array], counts: list[dict[str, int]]) -> dict[str, Array]:
    """The same vertices by node type, such that every level is a prefix still: what each level adds is in the order in
    which a search along the lists comes to it."""
    whole = merged_lists(graph)
    places = whole.by_type(breadth_first(whole.indptr, whole.indices, np.zeros(whole.count, np.int32)))
    found = {}
    for name, vertices in order.items():
        ends = sorted({0, len(vertices), *(level[name] for level in counts)})
        parts = [vertices[first:last] for first, last in pairwise(ends)]
        found[name] = np.concatenate([vertices[:0], *(some[np.argsort(places[name][some])] for some in parts)])
    return found
