"""`metis`: least edge cut under several balance constraints at once (multilevel k-way)."""

import os

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.interruption import call_interruptibly
from penstock.partition.adjacency import Adjacency, undirected
from penstock.partition.metis_library import metis_library
from penstock.partition.problem import Problem
from penstock.partition.refine.repair import repaired

NO_METIS = (
    "No METIS library was found: `pip install pymetis` or install libmetis5, or set PENSTOCK_METIS to one;"
    " --method stream needs none."
)


def assign_metis(problem: Problem) -> Array:
    """Parts by METIS, then moved into the tolerance where METIS missed it."""
    with problem.progress.step("undirected neighbours"):
        adjacency = undirected(problem.whole.indptr, problem.whole.indices)
    with problem.progress.step(f"METIS, {len(problem.constraints.names)} constraints"):
        assignment = part_adjacency(
            adjacency, problem.constraints.weights, problem.parts, problem.tolerance, problem.seed
        )
    del adjacency
    return repaired(problem, assignment)


def part_adjacency(adjacency: Adjacency, weights: Array, parts: int, tolerance: float, seed: int) -> Array:
    """METIS on an undirected graph; with one part there is nothing to ask."""
    if parts == 1:
        return np.zeros(len(adjacency.indptr) - 1, np.int32)
    library = metis_library()
    if library is None:
        asked = os.environ.get("PENSTOCK_METIS")
        raise PenstockError(
            f"PENSTOCK_METIS={asked} is not a METIS library that can be loaded." if asked else NO_METIS,
            code="not-installed",
        )
    # METIS's imbalance is in thousandths; a little is kept back because it treats it as a wish.
    imbalance = max(1, round((tolerance - 1) * 1000 * 0.8))
    options = library.options(objective=0, seed=seed % (1 << 31), imbalance=imbalance)
    return call_interruptibly(lambda: library.part_graph(adjacency, weights, parts, options))
