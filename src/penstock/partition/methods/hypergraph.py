"""`hypergraph`: least communication volume, by Mt-KaHyPar's km1 objective.

One net per vertex: itself and everyone who reads it. The sum over nets of (parts touched - 1) is exactly the number
of rows that cross between parts. Mt-KaHyPar balances one weight, so the constraints are summed for it, and local
search restores each one afterwards.
"""

import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, open_array, write_array
from penstock.graph.csr import transpose_lists
from penstock.kernels import njit
from penstock.partition.problem import Problem
from penstock.partition.refine import less_volume, repaired
from penstock.processes import scratch_folder, start_python

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
            run_in_child(problem, folder, __name__, "Mt-KaHyPar")
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


_MARGIN = 0.6
"""The share of the tolerance that a partitioner of one weight may use up, so that the constraints one by one are nearly
within it.
"""


def run_in_child(problem: Problem, folder: Path, module: str, library: str) -> None:
    """Call `partition_folder` of a module in a process of its own, which leaves `assignment.npy`: Mt-KaHyPar holds the
    interpreter lock, so nothing else could run or be interrupted, and KaMinPar ends its process on some input.
    """
    arguments = ["-c", f"from {module} import partition_folder; partition_folder()", str(folder)]
    epsilon = (problem.tolerance - 1) * _MARGIN
    numbers = [str(n) for n in (problem.parts, epsilon, problem.seed % (1 << 31), problem.threads)]
    child = start_python([*arguments, *numbers], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, complaint = child.communicate()
    finally:
        child.kill()
        child.wait()
    if child.returncode != 0 or not (folder / "assignment.npy").exists():
        killed = (
            "it was killed, perhaps for want of memory" if child.returncode < 0 else f"exit code {child.returncode}"
        )
        last = complaint.strip().splitlines()[-1:] or [killed]
        raise PenstockError(f"{library} failed ({last[0]}): use --method metis or stream.", code="external-failure")


def partition_folder() -> None:
    """What the process does whose arguments are FOLDER PARTS EPSILON SEED THREADS: partition the hypergraph of the
    folder's `offsets`, `pins` and `weights` and write `assignment.npy`."""
    import mtkahypar

    folder, parts, epsilon, seed, threads = sys.argv[1:]
    mtkahypar.set_seed(int(seed))
    partitioner = mtkahypar.initialize(int(threads), False)
    context = partitioner.context_from_preset(mtkahypar.PresetType.LARGE_K)
    context.set_partitioning_parameters(int(parts), float(epsilon), mtkahypar.Objective.KM1)
    context.logging = False
    hypergraph = _hypergraph(Path(folder), partitioner, context)
    assignment = hypergraph.partition(context).get_partition()
    write_array(Path(folder) / "assignment.npy", np.array(assignment, np.int32))


def _hypergraph(folder: Path, partitioner: Any, context: Any) -> Any:
    # Slices of one memory view instead of lists: the binding reads any sequence, and nothing is held twice.
    pins = np.ascontiguousarray(open_array(folder / "pins.npy")).data
    offsets = open_array(folder / "offsets.npy").tolist()
    nets = [pins[a:b] for a, b in pairwise(offsets)]
    weights = open_array(folder / "weights.npy").tolist()
    return partitioner.create_hypergraph(context, len(nets), len(nets), nets, weights, [1] * len(nets))


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
