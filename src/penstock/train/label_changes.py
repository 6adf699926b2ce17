"""Labels and splits as some published figures have them: in the largest component alone, or validation trained on."""

from dataclasses import replace

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import NodeSet
from penstock.graph.graph import Graph
from penstock.train.data_options import DataOptions

_CHANGES = ("largest_component", "train_on_validation")


def changed_labels(graph: Graph, options: DataOptions) -> Graph:
    """The graph with the labels and splits that the job asks for."""
    nodes = dict(graph.nodes)
    if options.largest_component:
        nodes = {name: _within(each, largest_component(graph), options.label) for name, each in nodes.items()}
    if options.train_on_validation:
        nodes = {name: _joined(each) for name, each in nodes.items()}
        if all(nodes[name] is graph.nodes[name] for name in nodes):
            raise PenstockError(
                "train_on_validation is for graphs with training and validation splits of their own, and the graph"
                " has none: leave it out.",
                code="split-missing",
            )
    if nodes == graph.nodes:
        return graph
    return Graph(nodes, graph.edges, graph.name, graph.path, graph.origin)


def check_uncut(options: DataOptions, path: str) -> None:
    """Refuse such changes for a graph that was cut before: its parts have their labels and splits already."""
    for field in _CHANGES:
        if getattr(options, field):
            raise PenstockError(
                f"{field} changes a graph before it is cut, and {path} is cut already: leave `partition` out of the"
                " cluster file.",
                code="unsupported-combination",
            )


def largest_component(graph: Graph) -> Array:
    """Whether each vertex of a graph with one type is in its largest connected component."""
    if not graph.is_homogeneous:
        raise PenstockError(
            "largest_component is for graphs with one node type and one edge type: leave it out.",
            code="unsupported-combination",
        )
    # Few jobs need SciPy, and it takes a while to import.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    shape = (graph.num_nodes, graph.num_nodes)
    lists = csr_array((np.ones(len(graph.indices), np.int8), graph.indices, graph.indptr), shape=shape)
    _, component = connected_components(lists, directed=False)
    mask: Array = component == np.bincount(component).argmax()
    return mask


def _within(nodes: NodeSet, mask: Array, label: str) -> NodeSet:
    """Vertices outside the mask without label, and in no split."""
    fields = dict(nodes.fields)
    if label in fields:
        labels = np.asarray(fields[label])
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise PenstockError(
                f"largest_component needs one class for each vertex, and {label!r} is {labels.dtype}"
                f" {labels.shape}: leave it out.",
                code="unsupported-combination",
            )
        fields[label] = np.where(mask, labels.astype(np.int64), -1)
    splits = {name: rows[mask[rows]] for name, rows in nodes.splits.items()}
    return replace(nodes, fields=fields, splits=splits)


def _joined(nodes: NodeSet) -> NodeSet:
    """Validation vertices among those for training; the same nodes where there are none."""
    if "train" not in nodes.splits or "val" not in nodes.splits:
        return nodes
    others = {name: rows for name, rows in nodes.splits.items() if name != "val"}
    return replace(nodes, splits={**others, "train": np.union1d(nodes.splits["train"], nodes.splits["val"])})
