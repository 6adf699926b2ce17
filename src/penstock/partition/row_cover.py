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
    if not len(rows):
        return np.zeros(0, np.bool_)
    row_keys, first, row = np.unique(rows, return_index=True, return_inverse=True)
    sum_keys, first_of_sum, total = np.unique(sums, return_index=True, return_inverse=True)
    summed, sent = np.zeros(len(row_keys), np.bool_), np.zeros(len(sum_keys), np.bool_)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row))])
    _leave_out_rows(indptr, total[np.argsort(row, kind="stable")], summed, sent)
    of_row, of_sum = pairs[first], pairs[first_of_sum]
    count = int(of_row.max()) + 1
    before = np.bincount(of_row, minlength=count)
    after = np.bincount(of_row[~summed], minlength=count) + np.bincount(of_sum[sent], minlength=count)
    summed &= (after <= _WORTH * before)[of_row]
    found: Array = summed[row]
    return found


@njit(nogil=True, cache=True)
def _leave_out_rows(indptr: Array, indices: Array, summed: Array, sent: Array) -> None:
    """Mark the rows that do not travel, and the sums that do: those that alternating paths reach from a free row."""
    row_of = np.full(sent.shape[0], -1, np.int64)
    is_free = np.ones(summed.shape[0], np.bool_)
    for row in range(summed.shape[0]):
        for k in range(indptr[row], indptr[row + 1]):
            if row_of[indices[k]] < 0:
                row_of[indices[k]] = row
                is_free[row] = False
                break
    depth = np.empty(summed.shape[0], np.int64)
    queue = np.empty(summed.shape[0], np.int64)
    while _measure_paths(indptr, indices, row_of, is_free, depth, queue):
        _lengthen_matching(indptr, indices, row_of, is_free, depth, queue)
    for row in range(summed.shape[0]):
        if depth[row] >= 0:
            summed[row] = True
            for k in range(indptr[row], indptr[row + 1]):
                sent[indices[k]] = True


@njit(nogil=True, cache=True)
def _measure_paths(indptr: Array, indices: Array, row_of: Array, is_free: Array, depth: Array, queue: Array) -> bool:
    """Rows' distances along alternating paths from free rows (-1: none leads there); whether one ends in a free sum."""
    found, head, tail = False, 0, 0
    for row in range(depth.shape[0]):
        depth[row] = 0 if is_free[row] else -1
        if is_free[row]:
            queue[tail] = row
            tail += 1
    while head < tail:
        row = queue[head]
        head += 1
        for k in range(indptr[row], indptr[row + 1]):
            other = row_of[indices[k]]
            if other < 0:
                found = True
            elif depth[other] < 0:
                depth[other] = depth[row] + 1
                queue[tail] = other
                tail += 1
    return found


@njit(nogil=True, cache=True)
def _lengthen_matching(
    indptr: Array, indices: Array, row_of: Array, is_free: Array, depth: Array, stack: Array
) -> None:
    """One pass of Hopcroft and Karp: paths from free rows to free sums that share no row, each taken at once."""
    at = indptr[:-1].copy()
    for start in range(depth.shape[0]):
        if not is_free[start]:
            continue
        top = 0
        stack[0] = start
        while top >= 0:
            row = stack[top]
            if at[row] == indptr[row + 1]:
                top -= 1
                continue
            other = row_of[indices[at[row]]]
            at[row] += 1
            if other < 0:
                for place in range(top + 1):
                    row_of[indices[at[stack[place]] - 1]] = stack[place]
                is_free[start] = False
                break
            if depth[other] == depth[row] + 1 and at[other] < indptr[other + 1]:
                top += 1
                stack[top] = other
