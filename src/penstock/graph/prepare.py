"""Graphs changed before training, as for some published results: `penstock data prepare`."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import NodeSet
from penstock.graph.folder import Graph
from penstock.graph.new_folders import check_target

_BLOCK = 1 << 16
"""Rows that are scaled at once."""


def prepare(
    graph: Graph,
    out: Path,
    *,
    scale_features: bool = False,
    largest_component: bool = False,
    train_on_validation: bool = False,
    features: str = "x",
    label: str = "y",
    force: bool = False,
) -> Graph:
    """Write a changed copy of a graph to a folder, and return the graph mapped from there.

    `scale_features` divides each vertex's row of `features` by its sum, unless that is 0. `largest_component` removes
    the `label` and the splits of all vertices outside the largest connected component; edges and vertices stay.
    `train_on_validation` moves the validation vertices to the training split, so that nothing is validated.
    """
    check_target(out, force)
    nodes: Mapping[str, NodeSet] = graph.nodes
    done = {
        "scale_features": scale_features,
        "largest_component": largest_component,
        "train_on_validation": train_on_validation,
    }
    if largest_component:
        mask = component_mask(graph)
        nodes = {name: within(each, mask, label) for name, each in nodes.items()}
    if train_on_validation:
        nodes = joined_splits(nodes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".prepare-", dir=out.parent) as place:
        if scale_features:
            nodes = dict(_scaled(nodes, features, Path(place)))
        origin: dict[str, Any] = {**graph.origin, "prepared": [name for name, wanted in done.items() if wanted]}
        return Graph(nodes, graph.edges, graph.name, None, origin).save(out, force)


def component_mask(graph: Graph) -> Array:
    """Whether each vertex of a graph with one type is in its largest connected component."""
    graph.require_one_relation("The largest component", "leave out largest_component")
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


def joined_splits(nodes: Mapping[str, NodeSet]) -> dict[str, NodeSet]:
    """The node types with validation vertices moved to the training split; a graph without both splits is refused."""
    found = dict(nodes)
    for name, each in nodes.items():
        splits = dict(each.splits)
        if "train" in splits and "val" in splits:
            splits["train"] = np.union1d(splits["train"], splits.pop("val"))
            found[name] = replace(each, splits=splits)
    if found == nodes:
        raise PenstockError(
            "train_on_validation is for graphs with training and validation splits of their own, and the graph has"
            " none: leave it out.",
            code="split-missing",
        )
    return found


def _scaled(nodes: Mapping[str, NodeSet], features: str, place: Path) -> Iterator[tuple[str, NodeSet]]:
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
