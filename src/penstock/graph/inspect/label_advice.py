"""What is wrong with labels and splits, one sentence each."""

from collections.abc import Iterator

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.data import NodeSet
from penstock.graph.graph import Graph
from penstock.quantities import counted

# A class with this many times the vertices of another is called out.
_IMBALANCE = 100


def advise_on_labels(graph: Graph) -> Iterator[str]:
    """Warnings about labels, and about the splits that are trained and judged on."""
    labelled = [name for name, nodes in graph.nodes.items() if "y" in nodes.fields]
    if not labelled and not any(edges.held_out for edges in graph.edges.values()):
        yield "There are no labels (y) and no held-out edges: only training without supervision is possible."
    for name, nodes in graph.nodes.items():
        # Rows of a part's splits may be numbered within the whole graph.
        if nodes.count != nodes.total:
            continue
        if "y" in nodes.fields and not nodes.splits:
            yield f"{name!r} vertices have labels but no splits: make train, val and test splits first."
        yield from _about_splits(name, nodes)
        if "y" in nodes.fields:
            yield from _about_classes(name, nodes)


def _about_splits(name: str, nodes: NodeSet) -> Iterator[str]:
    keys = list(nodes.splits)
    for i, key in enumerate(keys):
        for other in keys[i + 1 :]:
            both = len(np.intersect1d(nodes.splits[key], nodes.splits[other], assume_unique=True))
            if both:
                yield (
                    f"{counted(both, f'{name!r} vertices')} {'is' if both == 1 else 'are'} in both {key} and {other}:"
                    " scores will be too good, so split again."
                )


def _about_classes(name: str, nodes: NodeSet) -> Iterator[str]:
    labels = nodes.fields["y"]
    if "train" not in nodes.splits:
        return
    train = labels[nodes.splits["train"]]
    unlabelled = _num_unlabelled(train)
    if unlabelled:
        yield (
            f"{unlabelled:,} of the {len(train):,} {name!r} vertices in train have no label:"
            " take them out, or losses must skip them."
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return
    classes, counts = np.unique(train[train >= 0], return_counts=True)
    for key in ("val", "test"):
        rows = labels[nodes.splits[key]] if key in nodes.splits else labels[:0]
        missing = np.setdiff1d(rows[rows >= 0], classes)
        if len(missing):
            shown = ", ".join(str(each) for each in missing[:5]) + (", ..." if len(missing) > 5 else "")
            yield (
                f"Classes of {name!r} in {key} that never occur in train cannot be learned"
                f" ({len(missing):,}: {shown}): split again or leave them out."
            )
    if len(counts) > 1 and counts.max() > _IMBALANCE * counts.min():
        yield (
            f"In train a class of {name!r} has {counts.max():,} vertices and another {counts.min():,}:"
            " weigh the loss or judge by macro averages."
        )


def _num_unlabelled(labels: Array) -> int:
    if labels.dtype.kind == "f":
        missing = np.isnan(labels)
    elif labels.dtype.kind == "i":
        missing = labels < 0
    else:
        return 0
    return int(np.count_nonzero(missing if labels.ndim == 1 else missing.all(axis=1)))
