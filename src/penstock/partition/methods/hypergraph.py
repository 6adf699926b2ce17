"""`hypergraph`: least communication volume, by Mt-KaHyPar's km1 objective.

One net per vertex: itself and everyone who reads it. The sum over nets of (parts touched - 1) is exactly the number
of rows that cross between parts. Mt-KaHyPar balances one weight, so the constraints are summed for it, and local
search restores each one afterwards.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, open_array, write_array
from penstock.graph.csr import transpose_lists
from penstock.kernels import njit
from penstock.partition.methods.child import partition_hypergraph, run_in_child
from penstock.partition.problem import Problem
from penstock.partition.refine import less_volume, repaired
from penstock.processes import scratch_folder

NO_MTKAHYPAR = "Method 'hypergraph' needs Mt-KaHyPar: `pip install mtkahypar`, or use --method metis."


def is_installed() -> bool:
    """Whether the package is there; it is not imported."""
    return find_spec("mtkahypar") is not None


def assign_hypergraph(problem: Problem) -> Array:
    """Parts by Mt-KaHyPar, moved into every constraint's tolerance, then greedy moves that still reduce volume."""
    if not is_installed():
        raise PenstockError(NO_MTKAHYPAR, code="not-installed")
    with scratch_folder() as scratch:
        assignment = _by_mtkahypar(problem, scratch)
    assignment = repaired(problem, assignment)
    with problem.progress.step("greedy moves"):
        return less_volume(problem, assignment)


def _by_mtkahypar(problem: Problem, folder: Path) -> Array:
    try:
        with problem.progress.step("nets"):
            _write_problem(problem, folder)
        with problem.progress.step(f"Mt-KaHyPar, {problem.parts} parts"):
            run_in_child(problem, folder, partition_hypergraph, "Mt-KaHyPar")
    except OSError as error:
        raise PenstockError(
            f"Could not write to {folder}: {error.strerror}; free space or set TMPDIR.", code="write-failed"
        ) from error
    return np.array(open_array(folder / "assignment.npy"))


def _write_problem(problem: Problem, folder: Path) -> None:
    out_indptr, readers = transpose_lists(problem.whole.indptr, problem.whole.indices, problem.whole.count)
    pins = np.empty(len(readers) + problem.whole.count, np.uint64)
    offsets = np.zeros(problem.whole.count + 1, np.int64)
    used = _fill_nets(out_indptr, readers, offsets, pins)
    write_array(folder / "offsets.npy", offsets)
    write_array(folder / "pins.npy", pins[:used])
    write_array(folder / "weights.npy", problem.constraints.summed())


@njit(nogil=True, cache=True)
def _fill_nets(indptr: Array, readers: Array, offsets: Array, pins: Array) -> int:
    """Each net's pins without repeats; returns how many in all. Nets of one pin are kept, to keep the numbering."""
    used = 0
    for u in range(indptr.shape[0] - 1):
        pins[used] = u
        used += 1
        for k in range(indptr[u], indptr[u + 1]):
            if readers[k] != u and (k == indptr[u] or readers[k] != readers[k - 1]):
                pins[used] = readers[k]
                used += 1
        offsets[u + 1] = used
    return used
