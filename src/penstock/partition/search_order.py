"""The order of a breadth-first search, in which vertices that read the same neighbours stand near each other."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit


@njit(nogil=True, cache=True)
def breadth_first(indptr: Array, indices: Array, owner: Array) -> Array:
    """Every vertex's place in a search along the lists that stays within its worker's vertices."""
    count = owner.shape[0]
    place = np.full(count, -1, np.int64)
    queue = np.empty(count, np.int64)
    head, tail = 0, 0
    for root in range(count):
        if place[root] >= 0:
            continue
        place[root] = tail
        queue[tail] = root
        tail += 1
        while head < tail:
            v = queue[head]
            head += 1
            for k in range(indptr[v], indptr[v + 1]):
                u = indices[k]
                if place[u] < 0 and owner[u] == owner[v]:
                    place[u] = tail
                    queue[tail] = u
                    tail += 1
    return place
