"""Widths of a model from the graph it is for."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import NodeSet
from penstock.graph.graph import Graph


def plain_widths(graph: Graph | int, out: int | None) -> tuple[int, int]:
    """Numbers a vertex in and out, of a graph with one node type and one relation, or as given."""
    if isinstance(graph, int):
        return graph, _given(out)
    if not graph.is_homogeneous:
        raise PenstockError(
            f"{graph.name!r} has several types or relations: use RGCN or build_model.", code="unsupported-combination"
        )
    nodes = next(iter(graph.nodes.values()))
    if "x" not in nodes.fields:
        raise PenstockError(
            f"{graph.name!r} has no features x: give the width of its embeddings instead of the graph.",
            code="field-missing",
        )
    return _width(nodes.x), label_width(nodes) if out is None else out


def input_widths(graph: Graph, embedding: int) -> dict[str, int]:
    """Numbers a vertex of each type; types without features have learnable embeddings."""
    return {name: _width(nodes.x) if "x" in nodes.fields else embedding for name, nodes in graph.nodes.items()}


def labelled_type(graph: Graph) -> str:
    """The only node type with labels."""
    names = [name for name, nodes in graph.nodes.items() if "y" in nodes.fields]
    if len(names) != 1:
        raise PenstockError(
            f"{len(names)} node types of {graph.name!r} have labels y: name the target type.", code="option-missing"
        )
    return names[0]


def label_width(nodes: NodeSet) -> int:
    """Classes of integer labels, columns of a label matrix, one for a real number."""
    if "y" not in nodes.fields:
        raise PenstockError("The vertices have no labels y: give the output width.", code="option-missing")
    y = nodes.y
    if y.ndim == 2 and y.shape[1] > 1:
        return int(y.shape[1])
    if np.issubdtype(y.dtype, np.floating):
        return 1
    return int(y.max(initial=0)) + 1


def _width(x: Array) -> int:
    return int(x.shape[1]) if x.ndim == 2 else 1


def _given(out: int | None) -> int:
    if out is None:
        raise PenstockError("The output width is not known: pass out, or a graph with labels.", code="option-missing")
    return out
