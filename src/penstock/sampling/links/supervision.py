"""Training edges divided once into those that are predicted and those that carry messages.

A mini-batch leaves out its own edges alone. Training on the whole graph has one batch, so a share of the edges is
chosen by hash before training: these are supervised, and neither they nor their reverses carry messages.
"""

from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.graph.hashing import key_of
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit
from penstock.sampling.links.edge_split import pair_bits, without_edges
from penstock.sampling.links.known import is_edge
from penstock.sampling.links.reverse import Reverse


class Supervision(NamedTuple):
    """Which edges are predicted, and what the others make."""

    positions: Array
    """Of the supervised edges in the lists of the whole graph, ascending."""
    messages: Graph
    """The graph without the supervised pairs: their parallel edges and their reverses are gone, too."""


def supervise(
    graph: Graph, edge_type: EdgeType, training: Array, share: float, seed: int, reverse: Reverse
) -> Supervision:
    """Choose a share of the `training` positions by a hash of (seed, pair); of a symmetric relation a pair and its
    reverse are chosen together. `reverse` is the relation's, resolved."""
    edges = graph.edges[edge_type]
    bits = pair_bits(edges, key_of(seed, "supervised edges"), reverse == "same", False, False)
    chosen = np.sort(np.asarray(training, np.int64))
    chosen = chosen[(bits[chosen] >> np.uint64(11)) * 2.0**-53 < share]
    if not len(chosen):
        raise PenstockError(
            f"None of the {len(training):,} training edges of {edge_key(edge_type)} is supervised: raise `supervision`"
            f" ({share:g}).",
            code="missing-data",
        )
    supervised = np.zeros(edges.count, np.bool_)
    supervised[chosen] = True
    apart = without_edges(edges, supervised, {})
    lists = {edge_type: edges}
    if isinstance(reverse, tuple):
        lists[reverse] = graph.edges[reverse]
    new = dict(graph.edges)
    for kind, each in lists.items():
        keep = np.ones(each.count, np.bool_)
        if kind == edge_type:
            _leave_out(each.indptr, each.indices, apart.indptr, apart.indices, False, keep)
        if kind == reverse or reverse == "same":
            _leave_out(each.indptr, each.indices, apart.indptr, apart.indices, True, keep)
        new[kind] = without_edges(each, keep, each.held_out)
    return Supervision(chosen, Graph(graph.nodes, new, graph.name, origin=graph.origin))


@njit(nogil=True, cache=True)
def _leave_out(indptr: Array, indices: Array, of_indptr: Array, of_indices: Array, turned: bool, keep: Array) -> None:
    """Mark the edges that are in other lists, or whose reverse is if `turned`, as not to be kept."""
    nothing = np.empty(0, np.int64)
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            source, target = (row, indices[k]) if turned else (indices[k], row)
            if is_edge(of_indptr, of_indices, nothing, 0, source, target):
                keep[k] = False
