"""The fewest rows that carry all edges from one worker to another where the reader adds up its neighbours' rows.

An edge from u to v can travel in two ways: as the row of u, which serves all readers of u, or inside the sum of all
such rows that v reads, which the sender adds up. Rows and sums are the two sides of a bipartite graph with the edges
between them, and what travels has to touch every edge. The smallest such set is as large as a largest matching (König).
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit

_WORTH = 0.9
"""Two workers exchange sums where these leave at most so much of the rows: a sum is sent later than its first row."""


def edges_to_sum(rows: Array, sums: Array, pairs: Array) -> Array:
    """Which edges travel inside sums. Edge i is carried by the row `rows[i]` or by the sum `sums[i]`.

    Both are any numbers that tell them apart; no row or sum belongs to two of the pairs of workers, `pairs[i]` from 0
    on. All edges of one row travel in the same way.
    """
    # A training run that exchanges no sums does not wait for these imports.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    if not len(rows):
        return np.zeros(0, np.bool_)
    row_keys, first, row = np.unique(rows, return_index=True, return_inverse=True)
    sum_keys, first_of_sum, total = np.unique(sums, return_index=True, return_inverse=True)
    shape = len(row_keys), len(sum_keys)
    graph = csr_matrix((np.ones(len(row), np.bool_), (row, total)), shape)
    sum_of = maximum_bipartite_matching(graph, perm_type="column")
    summed, sent = np.zeros(shape[0], np.bool_), np.zeros(shape[1], np.bool_)
    _leave_out_rows(graph.indptr, graph.indices, sum_of, summed, sent)
    of_row, of_sum = pairs[first], pairs[first_of_sum]
    count = int(of_row.max()) + 1
    before = np.bincount(of_row, minlength=count)
    after = np.bincount(of_row[~summed], minlength=count) + np.bincount(of_sum[sent], minlength=count)
    summed &= (after <= _WORTH * before)[of_row]
    found: Array = summed[row]
    return found


@njit(nogil=True, cache=True)
def _leave_out_rows(indptr: Array, indices: Array, sum_of: Array, summed: Array, sent: Array) -> None:
    """Mark the rows that do not travel, and the sums that do: those that alternating paths reach from a free row."""
    row_of = np.full(sent.shape[0], -1, np.int64)
    stack = np.empty(summed.shape[0], np.int64)
    top = 0
    for row in range(summed.shape[0]):
        if sum_of[row] >= 0:
            row_of[sum_of[row]] = row
        else:
            summed[row] = True
            stack[top] = row
            top += 1
    while top:
        top -= 1
        row = stack[top]
        for k in range(indptr[row], indptr[row + 1]):
            total = indices[k]
            if not sent[total]:
                sent[total] = True
                other = row_of[total]
                if not summed[other]:
                    summed[other] = True
                    stack[top] = other
                    top += 1
