"""The quality of an assignment, whatever method made it."""

from dataclasses import asdict, dataclass

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.partition.problem import Constraints
from penstock.partition.whole import WholeAdjacency


@dataclass(frozen=True)
class Metrics:
    """Edges are directed list entries; volumes count vertices whose rows cross between parts once per reading part."""

    edge_cut: int
    edge_cut_fraction: float
    comm_volume: int
    """Sum over parts of the distinct remote vertices they read: the km1 objective."""
    send: list[int]
    recv: list[int]
    balance: dict[str, float]
    """Largest part over the mean, per constraint."""
    replication: float
    """Vertices present in all parts, HALO included, over vertices."""

    @property
    def max_send(self) -> int:
        """Rows sent by the part that sends most."""
        return max(self.send)

    @property
    def max_recv(self) -> int:
        """Rows read by the part that reads most."""
        return max(self.recv)

    def document(self) -> dict[str, object]:
        """The metrics as partition.json holds them."""
        return asdict(self) | {"max_send": self.max_send, "max_recv": self.max_recv}


def measure(whole: WholeAdjacency, assignment: Array, parts: int, constraints: Constraints) -> Metrics:
    """All metrics in one pass over the edges and one over the vertices."""
    readers = np.zeros((whole.count, (parts + 63) // 64), np.uint64)
    cut = _mark_readers(whole.indptr, whole.indices, assignment, readers)
    send, recv = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    _count_readers(assignment, readers, send, recv)
    edges = max(1, len(whole.indices))
    volume = int(recv.sum())
    return Metrics(
        int(cut),
        float(cut / edges),
        volume,
        send.tolist(),
        recv.tolist(),
        constraints.balance(assignment, parts),
        1.0 + volume / max(1, whole.count),
    )


@njit(nogil=True, cache=True)
def _mark_readers(indptr: Array, indices: Array, part: Array, readers: Array) -> int:
    """Set bit p of `readers[u]` when part p has an in-edge from u; return the number of edges that cross."""
    cut = 0
    for v in range(indptr.shape[0] - 1):
        p = part[v]
        word, bit = p >> 6, np.uint64(1) << np.uint64(p & 63)
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            cut += part[u] != p
            readers[u, word] |= bit
    return cut


@njit(nogil=True, cache=True)
def _count_readers(part: Array, readers: Array, send: Array, recv: Array) -> None:
    for u in range(readers.shape[0]):
        for p in range(recv.shape[0]):
            if p != part[u] and readers[u, p >> 6] >> np.uint64(p & 63) & np.uint64(1):
                send[part[u]] += 1
                recv[p] += 1
