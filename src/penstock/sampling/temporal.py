"""Sampling by time: a seed's neighbourhood holds only what existed at the seed's own time.

Two seeds with different times see different lists of one vertex, so every seed has a tree of its own: rows of a batch
are (seed, vertex) pairs. An edge is admissible if t <= the seed's time.
"""

from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.graph.integrity import require_times
from penstock.graph.schema import EdgeType

OF_NODES = "node:"
"""The prefix of a time field that is of the neighbours rather than the edges."""
_WIDEST = np.iinfo(np.int64)


class Clock(NamedTuple):
    """The times of all edges, or of all vertices; the other array is empty."""

    edge_times: Array
    vertex_times: Array

    @property
    def in_whole_numbers(self) -> bool:
        """Whether times are integers: then they are compared as such, without rounding."""
        return self.edge_times.dtype.kind == "i"

    def limits(self, times: Array | None, seeds: int) -> Array:
        """One time per seed, validated, in the clock's dtype."""
        if times is None:
            raise PenstockError(
                "This sampler samples by time: pass `times`, one for every seed.", code="option-missing"
            )
        times = np.asarray(times)
        if times.shape != (seeds,) or times.dtype.kind not in "iuf":
            raise PenstockError(
                f"`times` has shape {times.shape} for {seeds} seeds: give one number for every seed.",
                code="shape-mismatch",
            )
        if times.dtype.kind == "f" and np.isnan(times).any():
            raise PenstockError(
                "`times` has a seed without a time (NaN): give one number for every seed.", code="not-finite"
            )
        if not self.in_whole_numbers:
            return times.astype(np.float64)
        if times.dtype.kind == "f":  # t <= time exactly when t <= its floor
            beyond = times >= 2.0**63
            times = np.where(beyond | (times < -(2.0**63)), 0, np.floor(times)).astype(np.int64)
            return np.where(beyond, _WIDEST.max, times)
        return times.astype(np.int64)

    def ages(self, limits: Array, sources: Array, positions: Array) -> Array:
        """The age of each edge, or of its source, before its reader's limit: float32, 0 or more."""
        times = self.edge_times[positions] if len(self.edge_times) else self.vertex_times[sources]
        return (limits - times).astype(np.float32)


def clocks_of(graph: Graph, time: str) -> dict[EdgeType, Clock]:
    """By relation, the clock that a field gives: of the edges, or after `node:` of the vertices that they come from.

    Relations whose edges, or sources, lack the field are not bound by time, and have no clock.
    """
    of_nodes = time.startswith(OF_NODES)
    name, what = (time[len(OF_NODES) :], "vertices") if of_nodes else (time, "edges")
    owners: dict[EdgeType, NodeSet | EdgeSet] = {
        kind: graph.nodes[kind[0]] if of_nodes else edges for kind, edges in graph.edges.items()
    }
    found = {kind: _clock(graph, owner, name, of_nodes) for kind, owner in owners.items() if name in owner.fields}
    if not found:
        has = ", ".join(dict.fromkeys(field for owner in owners.values() for field in owner.fields)) or "none"
        raise PenstockError(
            f"The {what} of {graph.name!r} have no field {name!r} to use as times (fields: {has}); {OF_NODES}NAME"
            " names a field of the vertices, NAME one of the edges.",
            code="field-missing",
        )
    return found


def checked_times(times: Array, what: str) -> Array:
    """Times of a field, which `what` names in errors, validated: one signed number for each row."""
    if times.ndim != 1 or times.dtype.kind not in "iuf" or times.dtype == np.uint64:
        raise PenstockError(
            f"{what} cannot be used as times: it must hold one signed number for each.", code="wrong-type"
        )
    return times.astype(np.int64) if times.dtype.kind == "u" else times


def just_before(times: Array, in_whole_numbers: bool) -> Array:
    """The latest limits that leave out equal times; `in_whole_numbers` if all times that are compared are integers."""
    if in_whole_numbers and times.dtype.kind == "i":
        wide = times.astype(np.int64)
        return np.where(wide == _WIDEST.min, wide, wide - 1)
    return np.nextafter(times.astype(np.float64), -np.inf)


def _clock(graph: Graph, owner: NodeSet | EdgeSet, name: str, of_nodes: bool) -> Clock:
    times = checked_times(owner.fields[name], f"Field {name!r} of {graph.name!r}")
    if of_nodes:
        assert isinstance(owner, NodeSet)
        # An edge without a time is never drawn; a vertex without one could not be a seed either.
        require_times(owner, "vertices", name)
    nothing = np.empty(0, times.dtype)
    return Clock(nothing, times) if of_nodes else Clock(times, nothing)
