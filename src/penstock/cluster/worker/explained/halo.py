"""The remote vertices that a worker's own vertices read, and the mean rows of its own."""

import numpy as np

from penstock.cluster.worker.cut_graph import Parts
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws

_BLOCK = 1 << 16
"""Rows whose sum is made at a time."""


def halo_of(parts: Parts) -> dict[str, Array]:
    """By node type, the vertices of other machines' parts that lists of this machine's parts name; ascending."""
    found: dict[str, list[Array]] = {name: [] for name in parts.partition.book.node_types}
    for graph in parts.graphs.values():
        for (source, _, _), edges in graph.edges.items():
            found[source].append(np.unique(edges.indices))
    halo = {}
    for name, pieces in found.items():
        vertices = np.unique(np.concatenate([*pieces, np.empty(0, np.int32)]))
        for part in parts.graphs:
            first, last = parts.partition.book.range(part, name)
            vertices = vertices[(vertices < first) | (vertices >= last)]
        halo[name] = vertices
    return halo


def chosen_rows(halo: dict[str, Array], most: int, seed: int, version: int) -> dict[str, Array]:
    """At most `most` vertices of a halo, chosen by a hash of seed and version; all of them where they are no more."""
    total = sum(map(len, halo.values()))
    if total <= most:
        return halo
    lots = np.empty(total)
    unit_draws(key_of(seed, "explained rows {}", version), 0, lots)
    taken = np.zeros(total, np.bool_)
    taken[np.argsort(lots, kind="stable")[:most]] = True
    ends = np.cumsum([len(each) for each in halo.values()])[:-1]
    return {name: each[kept] for (name, each), kept in zip(halo.items(), np.split(taken, ends), strict=True)}


def mean_row(parts: Parts, field: str) -> Array:
    """The mean of a field's rows in this machine's parts, as float32; zeros where there are none."""
    total, count = np.float64(0), 0
    for graph in parts.graphs.values():
        node_type, _, name = field.partition("/")
        rows = graph.nodes[node_type].fields[name]
        for first in range(0, len(rows), _BLOCK):
            total = total + np.asarray(rows[first : first + _BLOCK], np.float64).sum(0)
        count += len(rows)
    width = next(iter(parts.graphs.values())).nodes[field.partition("/")[0]].fields[field.partition("/")[2]].shape[1]
    return (np.zeros(width) + total / max(1, count)).astype(np.float32)
