"""The second level: every part's vertices shared out among its trainers. Only a labelling; nothing is stored twice."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.partition.adjacency import induced, undirected
from penstock.partition.constraints import Constraints
from penstock.partition.methods.metis import part_adjacency
from penstock.partition.methods.random import assign_random
from penstock.partition.metis_library import metis_library
from penstock.partition.problem import Problem


def assign_trainers(problem: Problem, assignment: Array, trainers: int) -> Array:
    """A trainer (int32) for every vertex: least cut inside its part, vertices and train vertices in equal shares."""
    if trainers == 1:
        return np.zeros(problem.whole.count, np.int32)
    smallest = int(np.bincount(assignment, minlength=problem.parts).min())
    if trainers > smallest:
        raise PenstockError(
            f"--trainers {trainers} is more than the {smallest} vertices of the smallest part: use fewer."
        )
    wanted = _trainer_constraints(problem.constraints)
    if metis_library() is None:
        problem.progress.note("No METIS library was found, so trainers share each part by lot instead of by least cut.")
        return assign_random(_as_parts(problem, wanted, trainers))
    labels = np.zeros(problem.whole.count, np.int32)
    with problem.progress.step("splitting parts for trainers", problem.parts, "parts"):
        adjacency = undirected(problem.whole.indptr, problem.whole.indices)
        place = np.empty(problem.whole.count, np.int32)
        for part in range(problem.parts):
            members = np.flatnonzero(assignment == part)
            inside = induced(adjacency, members, place)
            labels[members] = part_adjacency(
                inside, wanted.weights[:, members], trainers, problem.tolerance, problem.seed
            )
            problem.progress.advance(1)
    return labels


def trainer_balance(problem: Problem, assignment: Array, trainer: Array, trainers: int) -> dict[str, float]:
    """Largest trainer's share over the mean of its part, the worst part's, per constraint."""
    wanted = _trainer_constraints(problem.constraints)
    loads = wanted.loads(assignment.astype(np.int64) * trainers + trainer, problem.parts * trainers)
    by_part = loads.reshape(len(wanted.names), problem.parts, trainers)
    ratios = by_part.max(2) / np.maximum(by_part.mean(2), 1e-30)
    return {name: float(ratio.max()) for name, ratio in zip(wanted.names, ratios, strict=True)}


def _trainer_constraints(constraints: Constraints) -> Constraints:
    """What trainers should share equally: the split vertices that set their work, and vertices."""
    rows = [i for i, name in enumerate(constraints.names) if name != "edges"]
    return Constraints([constraints.names[i] for i in rows], constraints.weights[rows])


def _as_parts(problem: Problem, constraints: Constraints, trainers: int) -> Problem:
    return Problem(problem.whole, trainers, constraints, problem.tolerance, problem.seed)
