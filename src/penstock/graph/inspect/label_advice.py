"""What is wrong with labels and splits, one sentence each."""

from collections.abc import Iterator, Mapping

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
        yield from shared_vertices(name, nodes.splits)
        if "y" in nodes.fields:
            yield from _about_classes(name, nodes)
            yield from unlearned_classes(name, nodes.fields["y"], nodes.splits)


def shared_vertices(name: str, splits: Mapping[str, Array]) -> Iterator[str]:
    """Splits that share vertices, so that scores say nothing."""
    keys = list(splits)
    for i, key in enumerate(keys):
        for other in keys[i + 1 :]:
            both = len(np.intersect1d(splits[key], splits[other], assume_unique=True))
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
    counts = np.unique(train[train >= 0], return_counts=True)[1]
    if len(counts) > 1 and counts.max() > _IMBALANCE * counts.min():
        yield (
            f"In train a class of {name!r} has {counts.max():,} vertices and another {counts.min():,}:"
            " weigh the loss or judge by macro averages."
        )


def unlearned_classes(name: str, labels: Array, splits: Mapping[str, Array]) -> Iterator[str]:
    """Classes that are judged and never trained on, and numbers of classes that no vertex has."""
    if "train" not in splits or labels.ndim != 1 or labels.dtype.kind not in "iu":
        return
    classes = np.unique(labels[splits["train"]])
    for key in ("val", "test"):
        rows = labels[splits[key]] if key in splits else labels[:0]
        missing = np.setdiff1d(rows[rows >= 0], classes)
        if len(missing):
            yield (
                f"Classes of {name!r} in {key} that never occur in train cannot be learned"
                f" ({len(missing):,}: {_few_of(missing)}): split again or leave them out."
            )
    known = np.unique(labels[labels >= 0])
    if len(known) and (gaps := int(known[-1]) + 1 - len(known)):
        have = "has" if gaps == 1 else "have"
        yield (
            f"Labels of {name!r} go up to {known[-1]}, and {counted(gaps, 'classes')} below that {have} no vertex"
            f" ({_few_of(np.setdiff1d(np.arange(known[-1]), known))}): a model has outputs for them all the same, so"
            " number the classes without gaps."
        )


def _few_of(numbers: Array) -> str:
    return ", ".join(str(each) for each in numbers[:5]) + (", ..." if len(numbers) > 5 else "")


def _num_unlabelled(labels: Array) -> int:
    if labels.dtype.kind == "f":
        missing = np.isnan(labels)
    elif labels.dtype.kind == "i":
        missing = labels < 0
    else:
        return 0
    return int(np.count_nonzero(missing if labels.ndim == 1 else missing.all(axis=1)))
