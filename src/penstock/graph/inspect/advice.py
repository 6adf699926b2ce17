"""What will hurt training, one sentence each: what it is and what to do about it."""

import os
from collections.abc import Iterable, Iterator

import numpy as np

from penstock.graph.graph import Graph
from penstock.graph.inspect.label_advice import advise_on_labels
from penstock.graph.inspect.report import EdgeReport, Inspection, NodeReport
from penstock.graph.schema import EdgeType, edge_key
from penstock.quantities import counted

# A hub has this many times the mean in-degree, and at least this many edges.
_HUB_RATIO, _HUB_DEGREE = 1000, 10_000
_FEW_REVERSE = 0.1
_SCALE_RATIO = 1e3
_MOST_NAMES = 3


def advise(graph: Graph, found: Inspection) -> Iterator[str]:
    """Warnings in the order of an inspection: the whole, edges, features, labels and splits."""
    if graph.is_part:
        yield "This is a part of a cut graph: degrees, isolated vertices and splits are of this part alone."
    yield from _about_vertices(graph, found)
    yield from _about_edges(found)
    yield from _about_features(graph, found)
    yield from advise_on_labels(graph)


def _about_vertices(graph: Graph, found: Inspection) -> Iterator[str]:
    if found.isolated:
        yield (
            f"{_have(found.isolated, 'vertices', graph.num_nodes)} no edges at all:"
            " a model sees nothing there but features."
        )
    for name, nodes in found.nodes.items():
        silent = nodes.no_in_edges - nodes.isolated
        if silent and nodes.no_in_edges == nodes.count:
            yield f"No edges lead to {name!r} vertices, so they receive no messages: add reverse relations."
        elif silent:
            yield (
                f"{_have(silent, f'{name!r} vertices', nodes.count)} out- but no in-edges:"
                " no messages arrive there unless you add reverse edges."
            )
    degree = found.degree
    if degree.max >= _HUB_DEGREE and degree.max > _HUB_RATIO * degree.mean:
        yield (
            f"One vertex has {degree.max:,} in-edges, {degree.max / degree.mean:,.0f} times the mean:"
            " take samples of neighbours (a fan-out), not all of them."
        )


def _about_edges(found: Inspection) -> Iterator[str]:
    """One sentence for all edge types with the same trouble: a knowledge graph has hundreds."""
    looped = {kind: edges for kind, edges in found.edges.items() if edges.self_loops}
    if looped:
        loops = sum(edges.self_loops for edges in looped.values())
        yield (
            f"There are {loops:,} self loops in {_names(looped)}: leave them out of the tables unless they are meant."
        )
    parallel = {kind: edges for kind, edges in found.edges.items() if edges.duplicates}
    if parallel:
        extra = sum(edges.duplicates for edges in parallel.values())
        share = _share(extra, sum(edges.count for edges in parallel.values()))
        yield (
            f"There are {extra:,} parallel edges ({share}) in {_names(parallel)}: they weigh more than once,"
            " so deduplicate on import unless that is meant."
        )
    one_way = {kind: edges for kind, edges in found.edges.items() if _is_one_way(edges)}
    if one_way:
        back = sum(edges.reciprocal or 0 for edges in one_way.values())
        share = _share(back, sum(edges.count for edges in one_way.values()))
        yield (
            f"Few edges of {_names(one_way)} have a reverse ({share}):"
            " add reverse edges if both ends should learn from each other."
        )


def _is_one_way(edges: EdgeReport) -> bool:
    return edges.reciprocal is not None and edges.reciprocal < _FEW_REVERSE * edges.count


def _names(kinds: Iterable[EdgeType]) -> str:
    names = [edge_key(kind) for kind in kinds]
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more edge types" if rest > 0 else "")


def _about_features(graph: Graph, found: Inspection) -> Iterator[str]:
    without = [name for name, nodes in graph.nodes.items() if "x" not in nodes.fields]
    if len(without) == len(graph.nodes):
        yield "No vertices have features (x): models need learned embeddings, one for each vertex."
    elif without:
        names = ", ".join(repr(name) for name in without)
        yield f"Vertices of type {names} have no features (x): models need learned embeddings for them."
    for name, nodes in found.nodes.items():
        for key, report in nodes.fields.items():
            columns = report.columns
            if columns is not None and columns.not_finite:
                yield (
                    f"{name}/{key} has {columns.not_finite:,} values that are NaN or infinite:"
                    " replace them, one is enough to spoil a loss."
                )
        yield from _about_matrix(name, nodes)
    features = sum(nodes.fields["x"].nbytes for nodes in graph.nodes.values() if "x" in nodes.fields)
    memory = _physical_memory()
    if memory and features > memory:
        yield (
            f"The features take {features / 2**30:,.0f} GiB, this machine's memory {memory / 2**30:,.0f} GiB:"
            " they will be read from disk, so cut the graph or use a machine with more."
        )


def _about_matrix(name: str, nodes: NodeReport) -> Iterator[str]:
    if "x" not in nodes.fields or nodes.count == 0:
        return
    matrix = nodes.fields["x"]
    if matrix.dtype == "float64":
        yield f"{name}/x is float64: models compute in float32, so store it as that and halve the memory."
    if matrix.columns is None:
        return
    if matrix.columns.constant:
        total = int(np.prod(matrix.shape[1:], dtype=np.int64))
        yield f"{matrix.columns.constant:,} of {total:,} columns of {name}/x never change: drop them."
    stds = matrix.columns.stds
    if len(stds) and stds.max() > _SCALE_RATIO * stds.min():
        yield (
            f"Columns of {name}/x vary by {stds.min():.2g} to {stds.max():.2g} (standard deviation):"
            " standardise them, or the large ones drown the small."
        )


def _have(count: int, plural: str, total: int) -> str:
    """`1 vertex (0.1 %) has`, `12 vertices (1.2 %) have`."""
    return f"{counted(count, plural)} ({_share(count, total)}) {'has' if count == 1 else 'have'}"


def _share(part: int, whole: int) -> str:
    share = 100 * part / max(whole, 1)
    return f"{share:.1f} %" if share >= 0.1 or part == 0 else "less than 0.1 %"


def _physical_memory() -> int:
    """Bytes of this machine's memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
