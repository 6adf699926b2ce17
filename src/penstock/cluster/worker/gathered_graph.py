"""A whole cut graph for one worker's GPU, in the original numbering.

Lists are read at once, rows while they are copied. A worker that has the graph there draws and learns as a machine with
one GPU does, batch for batch.
"""

from typing import Any

import numpy as np

from penstock.cluster.worker.cut_graph import CutGraph, Parts
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.data import NodeSet
from penstock.graph.graph import Graph
from penstock.store.source import RowSource


class PartedColumn:
    """A field of the vertices in the order before the cut, pulled from the parts a slice at a time.

    It has as much of an array's interface as copying it to a device needs.
    """

    base = None

    def __init__(self, source: RowSource, new_ids: Array) -> None:
        self._source, self._new_ids = source, new_ids
        self.dtype, self.shape = source.dtype, (len(new_ids), *source.row_shape())

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """Some rows, one after the other."""
        found: Array = self._source.read(self._new_ids[rows])
        return found

    @property
    def size(self) -> int:
        """Numbers in all rows."""
        return int(np.prod(self.shape))

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.size * self.itemsize


def list_bytes(graph: CutGraph) -> int:
    """Bytes that the lists of a graph of one node and edge type take, known before any of them is read."""
    (edges,), (nodes,) = graph.edges.values(), graph.nodes.values()
    return 8 * (nodes.count + 1) + edges.count * index_dtype(nodes.count).itemsize


def gathered_graph(parts: Parts, graph: CutGraph, fields: dict[str, str]) -> Graph:
    """The graph of one node and edge type with its lists, and its feature field as a `PartedColumn`."""
    (kind,) = graph.edges
    (node_type,) = graph.nodes
    partition = parts.partition
    count = partition.book.count(node_type)
    new_ids = partition.new_ids(np.arange(count), node_type)
    columns = {name: PartedColumn(parts.store.source(f"{node_type}/{name}"), new_ids) for name in fields.values()}
    lists = parts.reader.lists(kind)
    whole = Graph({node_type: NodeSet(count)}, {kind: lists}, graph.name)
    # After the checks of a graph in memory, which would read every row.
    fields_of: dict[str, Any] = whole.nodes[node_type].fields
    fields_of.update(columns)
    return whole
