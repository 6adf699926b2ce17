"""The input of a partitioning method, with what every part should have an equal share of; and its result."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.kernels import njit
from penstock.partition.whole import WholeAdjacency
from penstock.progress import SILENT, Progress

KNOWN = ("vertices", "edges", *SPLITS, "types")


@dataclass(frozen=True)
class Constraints:
    """Named weights per vertex, `weights[c, v]`."""

    names: list[str]
    weights: Array

    def loads(self, assignment: Array, parts: int) -> Array:
        """[constraints, parts] sums of the weights."""
        found = np.zeros((len(self.weights), parts), np.int64)
        _add_up(assignment, self.weights, found)
        return found

    def balance(self, assignment: Array, parts: int) -> dict[str, float]:
        """Largest part's load over the mean load, per constraint."""
        loads = self.loads(assignment, parts)
        means = np.maximum(loads.sum(1) / parts, 1e-30)
        return {name: float(load.max() / mean) for name, load, mean in zip(self.names, loads, means, strict=True)}


def default_names(whole: WholeAdjacency) -> list[str]:
    """Vertices and edges, and train vertices where there are any."""
    return ["vertices", "edges", *(["train"] if _split_mask(whole, "train").any() else [])]


def constraints_of(whole: WholeAdjacency, names: list[str]) -> Constraints:
    """The weights of the named constraints; `types` stands for one constraint per node type."""
    found: dict[str, Array] = {}
    for name in names:
        found |= _weights(whole, name)
    return Constraints(list(found), np.stack(list(found.values())))


def _weights(whole: WholeAdjacency, name: str) -> dict[str, Array]:
    if name == "vertices":
        return {name: np.ones(whole.count, np.int32)}
    if name == "edges":
        return {name: np.diff(whole.indptr).astype(np.int32)}
    if name in SPLITS:
        mask = _split_mask(whole, name)
        if not mask.any():
            raise PenstockError(
                f"Graph {whole.graph.name!r} has no {name} vertices to balance: take {name!r} off --balance.",
                code="missing-data",
            )
        return {name: mask.astype(np.int32)}
    if name == "types":
        return {f"type {kind}": _type_mask(whole, kind) for kind in whole.graph.node_types}
    raise PenstockError(f"--balance does not know {name!r}: use any of {', '.join(KNOWN)}.", code="unknown-name")


def _split_mask(whole: WholeAdjacency, name: str) -> Array:
    mask = np.zeros(whole.count, np.bool_)
    for kind, nodes in whole.graph.nodes.items():
        if name in nodes.splits:
            mask[whole.offsets[kind] + np.asarray(nodes.splits[name])] = True
    return mask


def _type_mask(whole: WholeAdjacency, kind: str) -> Array:
    mask = np.zeros(whole.count, np.int32)
    mask[whole.offsets[kind] : whole.offsets[kind] + whole.graph.nodes[kind].count] = 1
    return mask


@njit(nogil=True, cache=True)
def _add_up(assignment: Array, weights: Array, loads: Array) -> None:
    for c in range(weights.shape[0]):
        for v in range(weights.shape[1]):
            loads[c, assignment[v]] += weights[c, v]


@dataclass(frozen=True)
class Problem:
    """Assign every vertex of `whole` to one of `parts` parts."""

    whole: WholeAdjacency
    parts: int
    constraints: Constraints
    tolerance: float = 1.05
    """Largest load a part may have, over the mean."""
    seed: int = 0
    passes: int = 1
    """How often a streaming method reads the graph."""
    threads: int = 1
    progress: Progress = SILENT

    def capacities(self) -> Array:
        """Largest load a part may have, per constraint. One vertex more than the mean is always allowed: shares of few
        vertices do not divide evenly."""
        weights = self.constraints.weights
        means = weights.sum(1, dtype=np.int64) / self.parts
        largest: Array = np.maximum(means * self.tolerance, np.ceil(means))
        return largest


class Method(Protocol):
    """A policy: problem in, part of every vertex (int32) out. The same problem gives the same answer, except where a
    native library runs in parallel and says otherwise (`hypergraph`)."""

    def __call__(self, problem: Problem) -> Array: ...
