"""Kernels that turn a block's lists round, and find the chunks of long lists. Binary searches, a lane each."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "sources", "places"])
def source_keys(indptr, indices, keys, rows, sources, places, BLOCK: tl.constexpr):
    """keys[e] = the source row of edge e; behind the last edge `sources`, which sorts behind all of them."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    last = tl.load(indptr + rows)
    j = tl.load(indices + e, mask=e < last, other=0)
    tl.store(keys + e, tl.where(e < last, j, sources).to(tl.int32), mask=e < places)


@triton.jit(do_not_specialize=["rows", "sources", "places", "row_steps", "place_steps"])
def grouped_edges(
    indptr,
    keys,
    order,
    out_indptr,
    out_indices,
    out_edges,
    rows,
    sources,
    places,
    row_steps,
    place_steps,
    BLOCK: tl.constexpr,
):
    """Of sorted keys and the edges' order: where each source's list starts, its destinations and edges."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = k < places
    e = tl.load(order + k, mask=inside, other=0).to(tl.int32)
    tl.store(out_edges + k, e, mask=inside)
    # The last row whose list starts at or before e; padding ends up in some row, and is read by nobody.
    after = first_above(indptr, e, inside, rows + 1, row_steps)
    tl.store(out_indices + k, tl.minimum(after - 1, rows - 1), mask=inside)
    listed = k <= sources
    tl.store(out_indptr + k, first_above(keys, k - 1, listed, places, place_steps), mask=listed)


@triton.jit(do_not_specialize=["rows", "chunks", "steps"])
def chunk_rows(indptr, out, rows, chunks, steps, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """out[c] = the row in whose long list (more than two chunks) the c-th chunk of edges lies whole, else -1."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = c < chunks
    row = first_above(indptr, c * CHUNK, inside, rows + 1, steps) - 1
    found = inside & (row >= 0) & (row < rows)
    start = tl.load(indptr + row, mask=found, other=0)
    stop = tl.load(indptr + row + 1, mask=found, other=0)
    whole = found & (stop - start > 2 * CHUNK) & ((c + 1) * CHUNK <= stop)
    tl.store(out + c, tl.where(whole, row, -1).to(tl.int32), mask=inside)


@triton.jit
def first_above(values, goal, mask, count, steps):
    """The first place of `count` ascending values that is above the goal, `count` if none; 2^steps > count."""
    low = tl.zeros_like(goal)
    high = low + count
    step = 0
    while step < steps:
        middle = (low + high) // 2
        open_ = low < high
        value = tl.load(values + middle, mask=mask & open_, other=0)
        above = value > goal
        high = tl.where(open_ & above, middle, high)
        low = tl.where(open_ & (value <= goal), middle + 1, low)
        step += 1
    return low


@triton.jit(do_not_specialize=["rows"])
def count_others(indptr, indices, counts, rows, BLOCK_E: tl.constexpr, BLOCK_R: tl.constexpr):
    """counts[i] = how many of row i's sources are another row, and one for itself."""
    i = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    start = tl.load(indptr + i, mask=i < rows, other=0)
    stop = tl.load(indptr + i + 1, mask=i < rows, other=0)
    total = tl.full((BLOCK_R,), 1, tl.int32)
    k = 0
    longest = tl.max(stop - start, axis=0)
    while k < longest:
        e = start[None, :] + k + tl.arange(0, BLOCK_E)[:, None]
        j = tl.load(indices + e, mask=e < stop[None, :], other=0)
        total += tl.sum(((e < stop[None, :]) & (j != i[None, :])).to(tl.int32), axis=0)
        k += BLOCK_E
    tl.store(counts + i, total, mask=i < rows)


@triton.jit(do_not_specialize=["rows"])
def write_looped(
    indptr, indices, weights, ends, out_indptr, out_indices, out_weights, rows,
    BLOCK_E: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Lists without self loops and one at the end of each, from where the lists end."""
    i = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    live = i < rows
    start = tl.load(indptr + i, mask=live, other=0)
    stop = tl.load(indptr + i + 1, mask=live, other=0)
    end = tl.load(ends + i, mask=live, other=0)
    at = tl.load(ends + i - 1, mask=live & (i > 0), other=0)
    tl.store(out_indptr + i + 1, end, mask=live)
    tl.store(out_indptr + i, at, mask=i == 0)
    k = 0
    longest = tl.max(stop - start, axis=0)
    while k < longest:
        e = start[None, :] + k + tl.arange(0, BLOCK_E)[:, None]
        j = tl.load(indices + e, mask=e < stop[None, :], other=0)
        other = (e < stop[None, :]) & (j != i[None, :])
        counted = tl.cumsum(other.to(tl.int32), axis=0)
        to = at[None, :] + counted - 1
        tl.store(out_indices + to, j, mask=other)
        if weights is not None:
            tl.store(out_weights + to, tl.load(weights + e, mask=other, other=0), mask=other)
        at += tl.sum(other.to(tl.int32), axis=0)
        k += BLOCK_E
    tl.store(out_indices + end - 1, i, mask=live)
    if weights is not None:
        tl.store(out_weights + end - 1, tl.full((BLOCK_R,), 1, tl.float32), mask=live)
