"""`metis`: least edge cut under several balance constraints at once (multilevel k-way)."""

import ctypes
import ctypes.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.partition.problem import Adjacency, Problem, undirected
from penstock.partition.refine import repaired
from penstock.processes import call_interruptibly

# METIS's own C interface, which takes several vertex weights; found wherever a user may have it. In order: the file
# named by PENSTOCK_METIS, the system's libmetis (Debian's libmetis5 has it), and the copy of METIS inside pymetis,
# whose wheel exports the C functions. Widths and option positions differ between builds and are probed, not assumed.

_OPTIONS = 40
_OK, _OUT_OF_MEMORY = 1, -3
# Positions in METIS's option array; 5.2 put one entry before NITER.
_POSITIONS_5_1 = {"objective": 1, "iterations": 6, "seed": 8, "imbalance": 16, "numbering": 17}
_POSITIONS_5_2 = {"objective": 1, "iterations": 7, "seed": 9, "imbalance": 17, "numbering": 18}


_one_call = threading.Lock()
"""METIS seeds the C library's `rand`, which is global: two concurrent calls would disturb each other's sequence."""


@dataclass(frozen=True)
class MetisLibrary:
    """A loaded METIS: its origin, the width of its integers and the positions of its options."""

    handle: ctypes.CDLL
    origin: str
    index: np.dtype[np.signedinteger]
    positions: dict[str, int]

    def options(self, **chosen: int) -> Array:
        """METIS's defaults with some replaced."""
        values = np.full(_OPTIONS, -1, self.index)
        self.handle.METIS_SetDefaultOptions(_pointer(values))
        for name, value in chosen.items():
            values[self.positions[name]] = value
        return values

    def part_graph(self, adjacency: Adjacency, weights: Array, parts: int, options: Array) -> Array:
        """k-way parts of a graph with `weights[c, v]`; every constraint is held to the imbalance option."""
        totals = [len(adjacency.indices), int(weights.sum(1, dtype=np.int64).max())]
        if adjacency.weights is not None:
            totals.append(int(adjacency.weights.sum(dtype=np.int64)))
        if max(totals) > np.iinfo(self.index).max:
            raise PenstockError(
                f"METIS from {self.origin} uses {self.index} indices, and this graph is too large for them: set"
                " PENSTOCK_METIS to a 64-bit build, or use --method stream.",
                code="too-large",
            )
        indptr = np.ascontiguousarray(adjacency.indptr, self.index)
        indices = np.ascontiguousarray(adjacency.indices, self.index)
        edge_weights = None if adjacency.weights is None else np.ascontiguousarray(adjacency.weights, self.index)
        vertex_weights = np.ascontiguousarray(weights.T, self.index)
        count, constraints, wanted, cut = (np.array([n], self.index) for n in (len(indptr) - 1, len(weights), parts, 0))
        assignment = np.zeros(len(indptr) - 1, self.index)
        with _one_call:
            status = self.handle.METIS_PartGraphKway(
                *map(_pointer, (count, constraints, indptr, indices, vertex_weights)),
                None,
                _pointer(edge_weights),
                _pointer(wanted),
                None,
                None,
                *map(_pointer, (options, cut, assignment)),
            )
        if status == _OUT_OF_MEMORY:
            raise PenstockError("METIS ran out of memory on this graph: use --method stream.", code="out-of-memory")
        if status != _OK:
            raise PenstockError(
                f"METIS from {self.origin} refused the graph (status {status}): use --method stream.",
                code="external-failure",
            )
        return assignment.astype(np.int32)


_finding = threading.Lock()


def metis_library() -> MetisLibrary | None:
    """The first METIS library that loads and works, or None."""
    # Two concurrent probes would each take the other's silenced stdout for the real one and restore it.
    with _finding:
        return _find_library()


@cache
def _find_library() -> MetisLibrary | None:
    for path in _candidates():
        try:
            handle = ctypes.CDLL(path)
            kway = handle.METIS_PartGraphKway
        except (OSError, AttributeError):
            continue
        kway.argtypes = [ctypes.c_void_p] * 13
        kway.restype = ctypes.c_int
        handle.METIS_SetDefaultOptions.argtypes = [ctypes.c_void_p]
        index = _index_width(handle)
        return MetisLibrary(handle, path, index, _option_positions(handle, path, index))
    return None


def _candidates() -> Iterator[str]:
    if asked := os.environ.get("PENSTOCK_METIS"):
        yield asked
        return
    if found := ctypes.util.find_library("metis"):
        yield found
    yield from ("libmetis.so.5", "libmetis.dylib")
    # Located without importing it, which is not needed.
    spec = find_spec("pymetis")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from (str(path) for path in sorted(Path(folder).glob("_internal*.so")))


def _index_width(handle: ctypes.CDLL) -> np.dtype[np.signedinteger]:
    """The width of METIS's integers, from how many bytes METIS_SetDefaultOptions writes for its 40 entries."""
    untouched = 0x5A5A5A5A
    buffer = np.full(2 * _OPTIONS, untouched, np.int32)
    handle.METIS_SetDefaultOptions(_pointer(buffer))
    return np.dtype(np.int32 if buffer[_OPTIONS] == untouched else np.int64)


def _option_positions(handle: ctypes.CDLL, path: str, index: np.dtype[np.signedinteger]) -> dict[str, int]:
    """The option positions: entry 17 is the numbering in 5.1, where 5 is refused, and the imbalance in 5.2, where 5 is
    valid.
    """
    library = MetisLibrary(handle, path, index, _POSITIONS_5_2)
    pair = Adjacency(np.array([0, 1, 2]), np.array([1, 0]), None)
    try:
        with _quiet_stdout():
            library.part_graph(pair, np.ones((1, 2), np.int32), 2, library.options(imbalance=5))
    except PenstockError:
        return _POSITIONS_5_1
    return _POSITIONS_5_2


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Discard stdout for a moment: METIS prints an error message about the probe there."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _pointer(array: Array | None) -> ctypes.c_void_p | None:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


NO_METIS = (
    "No METIS library was found: `pip install pymetis` or install libmetis5, or set PENSTOCK_METIS to one;"
    " --method chunk and random need none."
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
    """METIS on an undirected graph; with one part it is not called."""
    if parts == 1:
        return np.zeros(len(adjacency.indptr) - 1, np.int32)
    library = require_metis()
    # METIS's imbalance is in thousandths; a margin is kept because METIS may exceed it.
    imbalance = max(1, round((tolerance - 1) * 1000 * 0.8))
    options = library.options(objective=0, seed=seed % (1 << 31), imbalance=imbalance)
    return call_interruptibly(lambda: library.part_graph(adjacency, weights, parts, options))


def require_metis() -> MetisLibrary:
    """The METIS library, or an error that says how to get one."""
    library = metis_library()
    if library is None:
        asked = os.environ.get("PENSTOCK_METIS")
        raise PenstockError(
            f"PENSTOCK_METIS={asked} is not a METIS library that can be loaded." if asked else NO_METIS,
            code="not-installed",
        )
    return library
