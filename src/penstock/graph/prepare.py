"""Graphs changed before training, as for some published results: `penstock data prepare`."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import NodeSet
from penstock.graph.files import check_target
from penstock.graph.graph import Graph

_BLOCK = 1 << 16
"""Rows that are scaled at once."""


def prepare(
    graph: Graph,
    out: Path,
    *,
    scale_features: bool = False,
    largest_component: bool = False,
    features: str = "x",
    label: str = "y",
    force: bool = False,
) -> Graph:
    """Write a changed copy of a graph to a folder, and return the graph mapped from there.

    `scale_features` divides each vertex's row of `features` by its sum, unless that is 0. `largest_component` removes
    the `label` and the splits of all vertices outside the largest connected component; edges and vertices stay.
    """
    check_target(out, force)
    nodes, done = dict(graph.nodes), {"scale_features": scale_features, "largest_component": largest_component}
    if largest_component:
        mask = component_mask(graph)
        nodes = {name: within(each, mask, label) for name, each in nodes.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".prepare-", dir=out.parent) as place:
        if scale_features:
            nodes = dict(_scaled(nodes, features, Path(place)))
        origin: dict[str, Any] = {**graph.origin, "prepared": [name for name, wanted in done.items() if wanted]}
        return Graph(nodes, graph.edges, graph.name, None, origin).save(out, force)


def component_mask(graph: Graph) -> Array:
    """Whether each vertex of a graph with one type is in its largest connected component."""
    if not graph.is_homogeneous:
        raise PenstockError(
            "The largest component is found in graphs with one node type and one edge type: leave out"
            " largest_component.",
            code="unsupported-combination",
        )
    # SciPy takes a while to import, and few commands need it.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    shape = (graph.num_nodes, graph.num_nodes)
    lists = csr_array((np.ones(len(graph.indices), np.int8), graph.indices, graph.indptr), shape=shape)
    _, component = connected_components(lists, directed=False)
    mask: Array = component == np.bincount(component).argmax()
    return mask


def within(nodes: NodeSet, mask: Array, label: str) -> NodeSet:
    """The nodes with vertices outside the mask unlabelled and in no split."""
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


def _scaled(nodes: dict[str, NodeSet], features: str, place: Path) -> Iterator[tuple[str, NodeSet]]:
    """Node types with rows that sum to 1. They are written to a file meanwhile, as features may not fit memory."""
    # Sums are torch's, so that they round as those of a run that scales what it gathers.
    import torch

    if not any(features in each.fields for each in nodes.values()):
        raise PenstockError(
            f"No vertices have features {features!r} to scale: name them with --features.", code="field-missing"
        )
    for number, (name, each) in enumerate(nodes.items()):
        if features not in each.fields:
            yield name, each
            continue
        rows = each.fields[features]
        if rows.ndim != 2:
            raise PenstockError(f"Features {features!r} of {name!r} are no rows of numbers.", code="shape-mismatch")
        scaled = np.memmap(place / str(number), np.float32, "w+", shape=rows.shape)
        for first in range(0, len(rows), _BLOCK):
            block = torch.from_numpy(np.array(rows[first : first + _BLOCK], np.float32))
            scaled[first : first + _BLOCK] = divide_by_sum(block).numpy()
        yield name, replace(each, fields={**each.fields, features: scaled})


def divide_by_sum(x: Any) -> Any:
    """Rows of a tensor by their sums, in place; rows of zeros stay."""
    total = x.sum(1, keepdim=True)
    return x.div_(total.masked_fill_(total == 0, 1.0))
