"""The part of every vertex before anything is written: from a partition folder, or by cutting the graph."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.partition.assignment import Cut, assign
from penstock.partition.folder import open_partition
from penstock.progress import SILENT


def parts_of(graph: Graph, folder: str | None, parts: int, method: str) -> Array:
    """int64: the part of every vertex, type after type: as the folder's partition has it, or as a run would cut it."""
    if folder is None:
        return cut_into(graph, parts, method)
    partition = open_partition(folder)
    if partition.parts != parts:
        raise PenstockError(
            f"{folder} has {partition.parts} parts and the cluster {parts} machines: a plan needs one part"
            " for each machine; cut the graph into as many parts.",
            code="mismatched-inputs",
        )
    found = []
    for name in graph.node_types:
        original = np.asarray(partition.original(name))
        part_of = np.empty(len(original), np.int64)
        part_of[original] = partition.book.owner(np.arange(len(original)), name)
        found.append(part_of)
    return np.concatenate(found)


def cut_into(graph: Graph, parts: int, method: str) -> Array:
    """The part of every vertex of a graph that is cut with the usual constraints."""
    if parts == 1:
        return np.zeros(graph.num_nodes, np.int64)
    return assign(graph, Cut(parts, method=method), progress=SILENT).assignment
