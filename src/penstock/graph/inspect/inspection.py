"""The inspection of a graph: every scan, then the advice."""

from pathlib import Path

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.graph import Graph
from penstock.graph.inspect.advice import advise
from penstock.graph.inspect.report import DegreeReport, EdgeReport, FieldReport, Inspection, NodeReport
from penstock.graph.inspect.scans import scan_columns, scan_edges
from penstock.graph.integrity import check_graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.progress import SILENT, Progress

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
    reports = {}
    with progress.step("Scanning edges", _edge_visits(graph), "edges"):
        for edge_type, edges in graph.edges.items():
            source, destination = graph.nodes[edge_type[0]], graph.nodes[edge_type[2]]
            scan = scan_edges(edges, source, destination, touched[edge_type[0]], edge_key(edge_type), progress)
            reports[edge_type] = EdgeReport(edges.count, scan.self_loops, scan.duplicates, scan.reciprocal)
    return reports


def _edge_visits(graph: Graph) -> int:
    """Edges that may have a reverse among their own type are looked at twice."""
    return sum(
        edges.count * (2 if source == destination else 1) for (source, _, destination), edges in graph.edges.items()
    )


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
