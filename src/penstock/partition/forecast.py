"""What a cut will take before it starts: seconds, memory and edges cut by method, and the method that `auto` takes.

The figures are estimates: what the methods took of each list entry and vertex on two x86-64 cores, on graphs of up to
25 million entries.
"""

from dataclasses import dataclass

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.hashing import key_of, unit_draws
from penstock.memory import available_mb
from penstock.partition.methods.hypergraph import is_installed as has_mtkahypar
from penstock.partition.methods.kaminpar import is_installed as has_kaminpar
from penstock.partition.methods.metis import metis_library

AUTO = "auto"
"""The name that stands for the method that `chosen` takes."""

_IN_TURN = ("metis", "kaminpar", "stream")
_SPARE = 0.8
"""The share of free memory that a cut may be predicted to take."""


@dataclass(frozen=True)
class Experience:
    """What a method took on the graphs that were measured. Seconds are of one core."""

    entry_seconds: float
    vertex_seconds: float
    entry_bytes: float
    vertex_bytes: float
    cut: tuple[float, float]
    """The least and the most of its cut edges, in shares of those that a random cut has."""
    pass_seconds: float = 0.0
    """For each entry in each pass over single vertices."""
    most_bytes: int = 0
    """What the entries take at most, where a method is bounded."""
    fixed_bytes: int = 0
    parallel: bool = False


EXPERIENCE = {
    "random": Experience(0.0, 0.4e-6, 0, 24, (1.0, 1.0)),
    "chunk": Experience(0.0, 0.05e-6, 0, 24, (0.02, 1.1)),
    "metis": Experience(0.4e-6, 2e-6, 80, 40, (0.06, 0.65)),
    "hypergraph": Experience(8e-6, 10e-6, 80, 100, (0.06, 0.9), parallel=True),
    "kaminpar": Experience(0.2e-6, 3e-6, 8, 120, (0.06, 0.8), parallel=True),
    "stream": Experience(
        0.3e-6,
        3e-6,
        7,
        24,
        (0.06, 0.75),
        pass_seconds=0.04e-6,
        most_bytes=500 << 20,
        fixed_bytes=64 << 20,
        parallel=True,
    ),
}
_MEASURING_SECONDS = 0.03e-6
"""For each entry: measuring the cut, whatever method made it."""


@dataclass(frozen=True)
class Forecast:
    """What one method will probably take for a cut."""

    method: str
    installed: bool
    fits: bool
    """Whether it will probably fit the free memory."""
    seconds: float
    memory_mb: float
    """Memory beside the graph's mapped files."""
    cut: tuple[float, float]
    """The range of the share of edges between parts."""

    def document(self) -> dict[str, object]:
        """The forecast as fields of the JSON interface."""
        low, high = (round(share, 4) for share in self.cut)
        return {
            "method": self.method,
            "installed": self.installed,
            "fits": self.fits,
            "seconds": float(f"{self.seconds:.2g}"),
            "memory_mb": round(self.memory_mb),
            "edge_cut_fraction_low": low,
            "edge_cut_fraction_high": high,
        }


def forecasts(graph: Graph, parts: int, passes: int, threads: int) -> list[Forecast]:
    """What each of Penstock's own methods will probably take. A few of the graph's lists are read."""
    free = available_mb()
    vertices, stored = graph.num_nodes, graph.num_edges
    # Partitioners see edges in both directions; where the graph has one of them, their lists are twice as long.
    entries = stored * (1 if _has_both_directions(graph) else 2)
    copied = 0 if graph.is_homogeneous else 4 * stored
    found = []
    for method, known in EXPERIENCE.items():
        seconds = (
            known.entry_seconds * entries + known.vertex_seconds * vertices + known.pass_seconds * entries * passes
        )
        seconds = seconds / (threads if known.parallel else 1) + _MEASURING_SECONDS * stored
        held = known.entry_bytes * entries
        if known.most_bytes:
            held = min(held, known.most_bytes)
        size = (held + known.vertex_bytes * vertices + known.fixed_bytes + copied) / (1 << 20)
        low, high = (min(1.0, share * (1 - 1 / parts)) for share in known.cut)
        found.append(Forecast(method, _is_installed(method), size <= _SPARE * free, seconds, size, (low, high)))
    return found


def _is_installed(method: str) -> bool:
    needs = {"metis": metis_library, "stream": metis_library, "kaminpar": has_kaminpar, "hypergraph": has_mtkahypar}
    return method not in needs or bool(needs[method]())


def chosen(graph: Graph, parts: int, passes: int, threads: int) -> tuple[str, str]:
    """The method that `auto` takes, and a sentence that says why: the first of METIS, KaMinPar and `stream` that is
    installed and fits memory.
    """
    known = {each.method: each for each in forecasts(graph, parts, passes, threads)}
    against: list[str] = []
    for method in _IN_TURN:
        each = known[method]
        if each.installed and (each.fits or method == _IN_TURN[-1]):
            why = f"it needs some {each.memory_mb:,.0f} MB of the {available_mb():,} MB that are free"
            return method, f"auto takes {method}: {'; '.join([*against, why])}."
        lack = f"would need some {each.memory_mb:,.0f} MB" if each.installed else "is not installed"
        against.append(f"{method} {lack}")
    return "chunk", f"auto takes chunk: {'; '.join(against)}."


_SAMPLE = 1 << 11


def _has_both_directions(graph: Graph) -> bool:
    """Whether all of a sample of a graph's edges have their reverse; graphs of several types are taken to lack some."""
    if not graph.is_homogeneous or not graph.edges or not graph.num_edges:
        return False
    indptr, indices = graph.indptr, graph.indices
    drawn = (unit_draws(key_of(0, "directions"), min(_SAMPLE, len(indices))) * len(indices)).astype(np.int64)
    rows: Array = np.searchsorted(indptr, drawn, "right") - 1
    return all(_holds(indptr, indices, int(indices[k]), int(row)) for k, row in zip(drawn, rows, strict=True))


def _holds(indptr: Array, indices: Array, row: int, wanted: int) -> bool:
    if row + 1 >= len(indptr):
        return False
    listed = indices[indptr[row] : indptr[row + 1]]
    place = int(np.searchsorted(listed, wanted))
    return place < len(listed) and int(listed[place]) == wanted
