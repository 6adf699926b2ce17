"""An inspection of a graph before training: what it holds, its degree distribution, and what will hurt training.

`inspect_graph` reads fields and neighbour lists in blocks, without copying the graph, and returns an `Inspection`. Its
`warnings` are sentences on what will hurt training and what to do about it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.arrays import Array, release_pages
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.graph.integrity import check_graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit
from penstock.processes import map_blocks, ranges
from penstock.progress import SILENT, Progress

# What is wrong with labels and splits, one sentence each.

# Class imbalance from this factor on is reported.
_IMBALANCE = 100


def advise_on_labels(graph: Graph) -> Iterator[str]:
    """Warnings about labels, and about the splits used for training and evaluation."""
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
    """Warnings about splits that share vertices, which makes scores meaningless."""
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
    """Warnings about classes that are evaluated but never trained on, and about gaps in class numbers."""
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


# One pass over a field or over the lists of an edge type. In a field it finds non-finite values, constant columns and
# columns of very different scale; in lists it counts edges, and a second pass searches every edge's reverse.

_BLOCK_BYTES = 8 << 20
# A mapped field's pages are released about this often, so that a large file does not fill the memory.
_RELEASE_BYTES = 512 << 20


@dataclass
class ColumnScan:
    """What a field's columns look like; `stds` are of the columns that vary."""

    not_finite: int
    constant: int
    stds: Array


def scan_columns(values: Array, mapped: bool, progress: Progress) -> ColumnScan:
    """Scan a one- or two-dimensional numeric field in blocks. `mapped`: it is a file's, read-only."""
    if values.size == 0:
        return ColumnScan(0, 0, np.empty(0))
    table = values.reshape(len(values), -1)
    columns = table.shape[1]
    row_bytes = table.itemsize * columns
    rows = max(1, _BLOCK_BYTES // row_bytes)
    # Sums of differences to a typical row preserve small variations of large values.
    typical = np.nan_to_num(np.asarray(table[0], np.float64), nan=0.0, posinf=0.0, neginf=0.0)

    def work(start: int, stop: int) -> tuple[int, Array]:
        block = table[start:stop]
        if block.dtype not in (np.float32, np.float64):
            block = block.astype(np.float64 if block.itemsize == 8 else np.float32)
        sums = _empty(columns)
        bad = _scan(block, typical, sums)
        progress.advance(stop - start)
        return bad, sums

    total, not_finite, unreleased = _empty(columns), 0, 0
    for bad, sums in map_blocks(work, len(table), rows):
        not_finite += bad
        _merge(total, sums)
        unreleased += rows * row_bytes
        if mapped and unreleased > _RELEASE_BYTES:
            release_pages(values)
            unreleased = 0
    count, low, high, first, second = total
    varies = (count > 0) & (high > low)
    mean = first[varies] / count[varies]
    variance = second[varies] / count[varies] - mean**2
    constant = int(np.count_nonzero((count > 0) & (high == low)))
    return ColumnScan(not_finite, constant, np.sqrt(np.maximum(variance, 0)))


def _empty(columns: int) -> Array:
    """Per column: finite values, lowest, highest, sum and sum of squares of the differences."""
    total = np.zeros((5, columns))
    total[1], total[2] = np.inf, -np.inf
    return total


def _merge(total: Array, sums: Array) -> None:
    total[0] += sums[0]
    np.minimum(total[1], sums[1], out=total[1])
    np.maximum(total[2], sums[2], out=total[2])
    total[3:] += sums[3:]


@njit(nogil=True, cache=True, writes=("sums",))
def _scan(block: Array, typical: Array, sums: Array) -> int:
    bad = 0
    for row in range(block.shape[0]):
        for column in range(block.shape[1]):
            value = float(block[row, column])
            if np.isfinite(value):
                difference = value - typical[column]
                sums[0, column] += 1
                sums[1, column] = min(sums[1, column], value)
                sums[2, column] = max(sums[2, column], value)
                sums[3, column] += difference
                sums[4, column] += difference * difference
            else:
                bad += 1
    return bad


_BLOCK_ROWS = 1 << 16


@dataclass
class EdgeReport:
    """One edge type. `reciprocal` edges have their reverse too; None where that makes no sense or cannot be told."""

    count: int
    self_loops: int
    duplicates: int
    reciprocal: int | None

    @property
    def symmetric(self) -> bool | None:
        """Whether every edge has its reverse; checked edge by edge, not sampled."""
        return None if self.reciprocal is None else self.reciprocal == self.count


def scan_edges(
    edges: EdgeSet, source: NodeSet, destination: NodeSet, touched: Array, what: str, progress: Progress
) -> EdgeReport:
    """Count self loops and parallel edges, and mark in `touched` every vertex that is a source."""
    same_type = source is destination

    def work(start: int, stop: int) -> tuple[int, int, int, int]:
        counts = _scan_lists(edges.indptr, edges.indices, start, stop, destination.first, same_type, touched)
        progress.advance(int(edges.indptr[stop] - edges.indptr[start]))
        return counts

    found = list(map_blocks(work, destination.count, _BLOCK_ROWS))
    loops, duplicates, descents, bad = (sum(column) for column in zip(*found, strict=True)) if found else (0,) * 4
    if bad:
        raise PenstockError(
            f"{what} has {bad:,} lists or edges that point outside the graph: it is damaged; make it again.",
            code="damaged-file",
        )
    # Lists that are ordered by other numbers, as after partitioning, cannot be compared in one pass.
    comparable = same_type and destination.count == destination.total and descents == 0
    reciprocal = _count_reciprocal(edges, progress) if comparable else None
    return EdgeReport(edges.count, loops, duplicates, reciprocal)


def _count_reciprocal(edges: EdgeSet, progress: Progress) -> int:
    """Exact and linear: destinations ascend, so a cursor in each vertex's list only moves forward."""
    cursors = np.array(edges.indptr[:-1])
    found = 0
    for start, stop in ranges(len(cursors), _BLOCK_ROWS):
        found += _reciprocal(edges.indptr, edges.indices, start, stop, cursors)
        progress.advance(int(edges.indptr[stop] - edges.indptr[start]))
    return found


@njit(nogil=True, cache=True, writes=("touched",))
def _scan_lists(
    indptr: Array, indices: Array, start: int, stop: int, first: int, same_type: bool, touched: Array
) -> tuple[int, int, int, int]:
    loops = duplicates = descents = bad = 0
    for row in range(start, stop):
        begin, end = indptr[row], indptr[row + 1]
        if begin < 0 or end < begin or end > indices.shape[0]:
            bad += 1
            continue
        for k in range(begin, end):
            neighbour = indices[k]
            if neighbour < 0 or neighbour >= touched.shape[0]:
                bad += 1
                continue
            # Threads may write the same byte, always with the same value.
            touched[neighbour] = True
            loops += same_type and neighbour == first + row
            if k > begin:
                duplicates += neighbour == indices[k - 1]
                descents += neighbour < indices[k - 1]
    return loops, duplicates, descents, bad


@njit(nogil=True, cache=True, writes=("cursors",))
def _reciprocal(indptr: Array, indices: Array, start: int, stop: int, cursors: Array) -> int:
    found = 0
    for row in range(start, stop):
        for k in range(indptr[row], indptr[row + 1]):
            neighbour = indices[k]
            cursor, end = cursors[neighbour], indptr[neighbour + 1]
            while cursor < end and indices[cursor] < row:
                cursor += 1
            cursors[neighbour] = cursor
            found += cursor < end and indices[cursor] == row
    return found


# What an inspection finds.


@dataclass
class FieldReport:
    """One field; `columns` is there for numeric fields of vertices."""

    dtype: str
    shape: list[int]
    columns: ColumnScan | None = None


@dataclass
class NodeReport:
    """One node type. `no_in_edges` counts vertices that receive nothing, isolated ones included."""

    count: int
    fields: dict[str, FieldReport]
    splits: dict[str, int]
    isolated: int
    no_in_edges: int


@dataclass
class DegreeReport:
    """In-degrees over all edge types. `histogram[k]` counts the degrees of k bits: 0, 1, 2-3, 4-7, ..."""

    mean: float
    max: int
    percentiles: dict[int, int]
    histogram: list[int]


@dataclass
class Inspection:
    """Everything an inspection says of a graph."""

    name: str
    path: Path | None
    nodes: dict[str, NodeReport]
    edges: dict[EdgeType, EdgeReport]
    degree: DegreeReport
    nbytes: int
    bytes_on_disk: int | None
    warnings: list[str] = field(default_factory=list)

    @property
    def isolated(self) -> int:
        """The number of vertices without any edge."""
        return sum(nodes.isolated for nodes in self.nodes.values())


# What will hurt training, one sentence each: what it is and what to do about it.

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
    """One sentence for all edge types with the same problem: a knowledge graph has hundreds."""
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
    one_way = {
        kind: edges
        for kind, edges in found.edges.items()
        if edges.reciprocal is not None and edges.reciprocal < _FEW_REVERSE * edges.count
    }
    if one_way:
        back = sum(edges.reciprocal or 0 for edges in one_way.values())
        share = _share(back, sum(edges.count for edges in one_way.values()))
        yield (
            f"Few edges of {_names(one_way)} have a reverse ({share}):"
            " add reverse edges if both ends should learn from each other."
        )


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


# The inspection of a graph: every scan, then the advice.

PERCENTILES = (50, 90, 99)


def inspect_graph(graph: Graph, progress: Progress = SILENT) -> Inspection:
    """Scan a graph in blocks: time grows with its size, memory only with the number of its vertices."""
    check_graph(graph)
    touched = {name: np.zeros(nodes.total, np.bool_) for name, nodes in graph.nodes.items()}
    edges = _scan_all_edges(graph, touched, progress)
    degrees = {name: _in_degrees(graph, name) for name in graph.nodes}
    nodes = {}
    for name, stored in graph.nodes.items():
        silent = degrees[name] == 0
        isolated = np.count_nonzero(silent & ~touched[name][stored.first : stored.first + stored.count])
        nodes[name] = NodeReport(
            stored.count,
            _scan_fields(stored, name, graph.path is not None, progress),
            {key: len(rows) for key, rows in stored.splits.items()},
            int(isolated),
            int(np.count_nonzero(silent)),
        )
    found = Inspection(
        graph.name,
        graph.path,
        nodes,
        edges,
        _degree_report(degrees),
        graph.nbytes,
        _bytes_on_disk(graph.path),
    )
    found.warnings = list(advise(graph, found))
    return found


def _scan_all_edges(graph: Graph, touched: dict[str, Array], progress: Progress) -> dict[EdgeType, EdgeReport]:
    # Edges whose type may contain their reverses are visited twice.
    visits = sum(edges.count * (2 if kind[0] == kind[2] else 1) for kind, edges in graph.edges.items())
    reports = {}
    with progress.step("Scanning edges", visits, "edges"):
        for edge_type, edges in graph.edges.items():
            source, destination = graph.nodes[edge_type[0]], graph.nodes[edge_type[2]]
            what = edge_key(edge_type)
            reports[edge_type] = scan_edges(edges, source, destination, touched[edge_type[0]], what, progress)
    return reports


def _in_degrees(graph: Graph, node_type: str) -> Array:
    lists: list[EdgeSet] = [edges for kind, edges in graph.edges.items() if kind[2] == node_type]
    most = sum(edges.count for edges in lists)
    degrees = np.zeros(graph.nodes[node_type].count, np.int32 if most <= np.iinfo(np.int32).max else np.int64)
    for edges in lists:
        np.add(degrees, np.diff(edges.indptr), out=degrees, casting="unsafe")
    return degrees


def _scan_fields(nodes: NodeSet, name: str, mapped: bool, progress: Progress) -> dict[str, FieldReport]:
    reports = {}
    for key, values in nodes.fields.items():
        columns = None
        if values.dtype.kind == "f" or (key == "x" and values.dtype.kind in "iu"):
            with progress.step(f"Scanning {name}/{key}", len(values), "rows"):
                columns = scan_columns(values, mapped, progress)
        reports[key] = FieldReport(str(values.dtype), list(values.shape), columns)
    return reports


def _degree_report(by_type: dict[str, Array]) -> DegreeReport:
    degrees = next(iter(by_type.values())) if len(by_type) == 1 else np.concatenate(list(by_type.values()))
    if len(degrees) == 0:
        return DegreeReport(0.0, 0, dict.fromkeys(PERCENTILES, 0), [0])
    places = {share: min(len(degrees) - 1, len(degrees) * share // 100) for share in PERCENTILES}
    mean = float(degrees.mean(dtype=np.float64))
    histogram = _powers_of_two(degrees)
    degrees.partition(list(places.values()))
    return DegreeReport(
        mean, int(degrees.max()), {share: int(degrees[place]) for share, place in places.items()}, histogram
    )


def _powers_of_two(degrees: Array) -> list[int]:
    # frexp's exponent of d is the number of bits of d: 0 for 0, 1 for 1, 2 for 2 and 3, ...
    bits = np.zeros(65, np.int64)
    for start in range(0, len(degrees), 1 << 20):
        bits += np.bincount(np.frexp(degrees[start : start + (1 << 20)].astype(np.float64))[1], minlength=65)
    used: list[int] = bits[: int(np.flatnonzero(bits)[-1]) + 1].tolist()
    return used


def _bytes_on_disk(path: Path | None) -> int | None:
    return None if path is None else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
