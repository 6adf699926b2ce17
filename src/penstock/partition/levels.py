"""The second level: every part's vertices shared out among its trainers. Only a labelling; nothing is stored twice."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws
from penstock.partition.adjacency import induced, undirected
from penstock.partition.methods.metis import part_adjacency
from penstock.partition.metis_library import metis_library
from penstock.partition.problem import Constraints, Problem, constraints_of, default_names
from penstock.partition.refine.repair import repaired
from penstock.partition.whole import WholeAdjacency


def assign_trainers(problem: Problem, assignment: Array, trainers: int) -> Array:
    """A trainer (int32) for every vertex: least cut inside its part, vertices and train vertices in equal shares."""
    if trainers == 1:
        return np.zeros(problem.whole.count, np.int32)
    smallest = int(np.bincount(assignment, minlength=problem.parts).min())
    if trainers > smallest:
        raise PenstockError(
            f"--trainers {trainers} is more than the {smallest} vertices of the smallest part: use fewer.",
            code="value-out-of-range",
        )
    wanted = trainer_constraints(problem.whole)
    if metis_library() is None:
        problem.progress.note("No METIS library was found, so trainers share each part at random, not by least cut.")
        labels = _dealt(problem, assignment, wanted, trainers)
    else:
        labels = _least_cut(problem, assignment, wanted, trainers)
    for name, ratio in trainer_balance(problem, assignment, labels, trainers).items():
        if ratio > problem.tolerance + 1e-9:
            problem.progress.note(f"Trainers differ in {name}: the largest has {ratio:.3f} of its part's mean.")
    return labels


def trainer_constraints(whole: WholeAdjacency) -> Constraints:
    """What trainers should share equally: vertices, and the train vertices that set their work."""
    return constraints_of(whole, [name for name in default_names(whole) if name != "edges"])


def trainer_balance(problem: Problem, assignment: Array, trainer: Array, trainers: int) -> dict[str, float]:
    """Largest trainer's share over the mean of its part, the worst part's, per constraint."""
    wanted = trainer_constraints(problem.whole)
    loads = wanted.loads(assignment * trainers + trainer, problem.parts * trainers)
    by_part = loads.reshape(len(wanted.names), problem.parts, trainers)
    ratios = by_part.max(2) / np.maximum(by_part.mean(2), 1e-30)
    return {name: float(ratio.max()) for name, ratio in zip(wanted.names, ratios, strict=True)}


def _least_cut(problem: Problem, assignment: Array, wanted: Constraints, trainers: int) -> Array:
    labels = np.zeros(problem.whole.count, np.int32)
    with problem.progress.step("splitting parts for trainers", problem.parts, "parts"):
        adjacency = undirected(problem.whole.indptr, problem.whole.indices)
        place = np.full(problem.whole.count, -1, np.int32)
        for part in range(problem.parts):
            members = np.flatnonzero(assignment == part)
            inside = induced(adjacency, members, place)
            weights = np.ascontiguousarray(wanted.weights[:, members])
            found = part_adjacency(inside, weights, trainers, problem.tolerance, problem.seed)
            share = Problem(
                WholeAdjacency(problem.whole.graph, {}, inside.indptr, inside.indices),
                trainers,
                Constraints(wanted.names, weights),
                problem.tolerance,
            )
            labels[members] = repaired(share, found)
            problem.progress.advance(1)
    return labels


def _dealt(problem: Problem, assignment: Array, wanted: Constraints, trainers: int) -> Array:
    """By lot, part by part, split vertices before others so that both divide evenly."""
    draws = np.empty(problem.whole.count)
    unit_draws(key_of(problem.seed, "random trainers"), 0, draws)
    groups = np.zeros(problem.whole.count, np.int64)
    for row in wanted.weights:
        groups = 2 * groups + row
    dealt = np.lexsort((draws, groups, assignment))
    starts = np.searchsorted(assignment[dealt], np.arange(problem.parts))
    labels = np.empty(problem.whole.count, np.int32)
    labels[dealt] = (np.arange(problem.whole.count) - starts[assignment[dealt]]) % trainers
    return labels
