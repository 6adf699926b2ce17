"""Partitioners in a process of their own. It imports what they need and no kernels, and so begins at once."""

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import open_array, write_array
from penstock.processes import start_python

if TYPE_CHECKING:
    from penstock.partition.problem import Problem

_MARGIN = 0.6
"""The share of the tolerance that a partitioner of one weight may use up, so that the constraints one by one are nearly
within it.
"""


def run_in_child(problem: "Problem", folder: Path, partition: Callable[[], None], library: str) -> None:
    """Call one of the functions below in a process of its own, which leaves `assignment.npy`: Mt-KaHyPar holds the
    interpreter lock, so nothing else could run or be interrupted, and KaMinPar ends its process on some input.
    """
    arguments = ["-c", f"from {__name__} import {partition.__name__}; {partition.__name__}()", str(folder)]
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


def partition_hypergraph() -> None:
    """What the process does for Mt-KaHyPar, whose arguments are FOLDER PARTS EPSILON SEED THREADS: partition the
    hypergraph of the folder's `offsets`, `pins` and `weights` and write `assignment.npy`."""
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


def partition_parhip() -> None:
    """What the process does for KaMinPar, with the same arguments: partition the folder's `graph.parhip` and write
    `assignment.npy`."""
    import kaminpar

    folder, parts, epsilon, seed, threads = sys.argv[1:]
    kaminpar.reseed(int(seed))
    partitioner = kaminpar.KaMinPar(int(threads), kaminpar.default_context())
    graph = kaminpar.load_graph(f"{folder}/graph.parhip", kaminpar.GraphFileFormat.PARHIP, compress=True)
    found = partitioner.compute_partition(graph, k=int(parts), eps=float(epsilon))
    write_array(Path(folder) / "assignment.npy", np.fromiter(found, np.int32, len(found)))
