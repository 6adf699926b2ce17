"""`kaminpar`: edge cut near METIS's by KaMinPar, which compresses the graph, for graphs too large for METIS.

KaMinPar reads graphs from files only and ends its process on bad input, so the graph is written block by block in
ParHIP's binary format and read by a process of its own. It balances one weight; the constraints are summed for it, and
local search restores each one afterwards.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, open_array
from penstock.graph.files import open_bytes
from penstock.partition.directions import BothDirections, lists_of, merged_blocks
from penstock.partition.methods.child import partition_parhip, run_in_child
from penstock.partition.problem import Problem
from penstock.partition.refine import repaired
from penstock.processes import scratch_folder

NO_KAMINPAR = "Method 'kaminpar' needs KaMinPar: `pip install 'penstock[kaminpar]'`, or use --method metis or stream."


def is_installed() -> bool:
    """Whether the package is there; it is not imported."""
    return find_spec("kaminpar") is not None


def assign_kaminpar(problem: Problem) -> Array:
    """Parts by KaMinPar, moved into every constraint's tolerance."""
    if not is_installed():
        raise PenstockError(NO_KAMINPAR, code="not-installed")
    with scratch_folder() as folder:
        try:
            lists = lists_of(problem.whole, folder, problem.threads, problem.progress)
            with problem.progress.step("writing the graph for KaMinPar", lists.rows, "vertices"):
                _write_parhip(problem, lists, folder)
            with problem.progress.step(f"KaMinPar, {problem.parts} parts"):
                run_in_child(problem, folder, partition_parhip, "KaMinPar")
        except OSError as error:
            raise PenstockError(
                f"Could not write to {folder}: {error.strerror}; free space or set TMPDIR.", code="write-failed"
            ) from error
        assignment = np.array(open_array(folder / "assignment.npy"))
    return repaired(problem, assignment)


def _write_parhip(problem: Problem, lists: BothDirections, folder: Path) -> None:
    """The graph as `graph.parhip`: a header, offsets in bytes, neighbours, weights of vertices and of edges.

    A set bit of the header's first number says what is missing or narrow: weights of edges (1) or vertices (2), 64 bits
    for edges (4), vertices (8) and weights (16, 32).
    """
    wide = lists.indices.dtype.itemsize == 8
    lengths, heaviest = np.zeros(lists.rows + 1, np.int64), 0
    at = 1
    with open_bytes(folder / "edges", "xb") as edges, open_bytes(folder / "edge_weights", "xb") as edge_weights:
        for block in merged_blocks(lists):
            rows = len(block.indptr) - 1
            lengths[at : at + rows] = np.diff(block.indptr)
            at += rows
            edges.write(block.indices.data)
            if block.weights is not None:
                heaviest = max(heaviest, int(block.weights.max(initial=0)))
                edge_weights.write(block.weights.data)
            problem.progress.advance(rows)
    weighted = heaviest > 1
    np.cumsum(lengths, out=lengths)
    version = (0 if weighted else 1) + (0 if wide else 8) + 16 + 32
    with open_bytes(folder / "graph.parhip", "xb") as out:
        out.write(np.array([version, lists.rows, lengths[-1]], np.uint64).data)
        out.write((lengths * (8 if wide else 4) + 24 + 8 * (lists.rows + 1)).astype(np.uint64).data)
        _append(out, folder / "edges")
        out.write(problem.constraints.summed().astype(np.int32).data)
        if weighted:
            _append(out, folder / "edge_weights")
    (folder / "edge_weights").unlink(missing_ok=True)


def _append(out: BinaryIO, path: Path) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, out, 1 << 20)
    path.unlink()
