"""Kernels of aggregation on a GPU: a tile of rows reads its lists several edges at once; no message is stored.

A tile is [rows, edges, columns], in this order: the compiler spreads threads over columns, then rows, then edges, so
that a thread has all edges of its values and a sum over edges never leaves the registers. Widths are compile-time
constants, which lets rows be read 16 bytes at a time. A list longer than two chunks of the edges' array is first summed
chunk by chunk (`gather_chunks`), each by a program of its own: otherwise one program would read the list of a hub while
the others wait. Pointers that are None stand for "all ones"; addresses are 64 bits wide. No sum depends on the order of
programs.
"""

import triton.language as tl

from penstock.gpu_kernels import jit


@jit(do_not_specialize=["rows", "own_rows"])
def gather_rows(
    indptr,
    indices,
    edges,
    weights,
    read_scale,
    read_lists,
    winner,
    ids,
    x,
    write_scale,
    own_scale,
    own_ids,
    own,
    partial,
    positive,
    out,
    rows,
    own_rows,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    OWN_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    BESIDE: tl.constexpr,
    BEHIND: tl.constexpr,
    KEPT_SCALE: tl.constexpr,
    DIRECT: tl.constexpr,
    READ_DIVIDES: tl.constexpr,
    WRITE_DIVIDES: tl.constexpr,
    MEAN: tl.constexpr,
    CHUNK: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """out[i] = own_scale[i] * own[i] + write factor of i * sum over its edges of the edge's factor * x[j].

    With MEAN the write factor includes 1 / the list's length; `edge_rows` gives an edge's factor. With BESIDE the row
    x[i] is written after out[i]. BEHIND more values, a one and zeros, end a row; rows are OUT_STRIDE apart. Where
    `positive` is not positive, out is zero, elsewhere it is multiplied by KEPT_SCALE. DIRECT: the lists' entries are
    rows of x, and `ids` only give the rows' own.
    """
    i = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live = i < rows
    start = tl.load(indptr + i, mask=live, other=0)
    stop = tl.load(indptr + i + 1, mask=live, other=0)
    written = live[:, None] & (f < WIDTH)[None, :]
    # The rows' own terms are loaded first, and have arrived when the lists have been read.
    if own is not None:
        mine = single_rows(own, own_ids, i, i < own_rows, f, written, OWN_STRIDE).to(NUMBER)
    if BESIDE:
        copied = single_rows(x, ids, i, live, f, written, X_STRIDE)
    # The parts of a long list before its first whole chunk and after its last.
    head, tail_at, tail = stop - start, stop, tl.zeros_like(stop)
    if partial is not None:
        first, last = (start + CHUNK - 1) // CHUNK, stop // CHUNK
        long = stop - start > 2 * CHUNK
        head = tl.where(long, first * CHUNK - start, head)
        tail_at = tl.where(long, last * CHUNK, stop)
        tail = stop - tail_at
    place = tl.arange(0, BLOCK_E)[None, :]
    total = tl.zeros((BLOCK_R, BLOCK_F), NUMBER)
    k = 0
    longest = tl.max(head + tail, axis=0)
    while k < longest:
        p = k + place
        e = tl.where(p < head[:, None], start[:, None] + p, tail_at[:, None] + p - head[:, None])
        valid = p < (head + tail)[:, None]
        values = edge_rows(
            e, valid, f, indices, edges, weights, read_scale, read_lists, winner, ids, x,
            WIDTH, X_STRIDE, DIRECT, READ_DIVIDES, NUMBER,
        )  # fmt: skip
        total += tl.sum(values, axis=1)
        k += BLOCK_E
    if partial is not None:
        total = add_chunks(total, partial, first, tl.where(long, last - first, 0), f, WIDTH, BLOCK_E)
    if MEAN:
        length = (stop - start).to(NUMBER)
        total *= tl.where(length > 0, 1 / tl.maximum(length, 1), 0)[:, None]
    if write_scale is not None:
        total *= factor(write_scale, i, live, WRITE_DIVIDES, NUMBER)[:, None]
    if own is not None:
        if own_scale is not None:
            mine *= tl.load(own_scale + i, mask=i < own_rows, other=0).to(NUMBER)[:, None]
        total += mine
    if positive is not None:
        kept = tl.load((positive + i.to(tl.int64) * WIDTH)[:, None] + f[None, :], mask=written, other=0) > 0
        total = tl.where(kept, total * KEPT_SCALE, 0)
    to = (out + i.to(tl.int64) * OUT_STRIDE)[:, None] + f[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=written)
    if BESIDE:
        tl.store(to + WIDTH, copied.to(out.dtype.element_ty), mask=written)
    if BEHIND:  # noqa: SIM102 - the outer condition is the compiler's
        if tl.program_id(1) == 0:
            write_behind(out, i, live, (1 + BESIDE) * WIDTH, OUT_STRIDE, BEHIND, BLOCK_R)


@jit
def add_chunks(total, partial, first, chunks, f, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr):
    """`total` [rows, columns] with the sums of a long list's whole chunks added, in their order."""
    place = tl.arange(0, BLOCK_E)[None, :]
    k = 0
    longest = tl.max(chunks, axis=0)
    while k < longest:
        c = (first[:, None] + k + place).to(tl.int64)
        valid = (k + place < chunks[:, None])[:, :, None] & (f < WIDTH)[None, None, :]
        values = tl.load((partial + c * WIDTH)[:, :, None] + f[None, None, :], mask=valid, other=0)
        total += tl.sum(values, axis=1)
        k += BLOCK_E
    return total


@jit
def write_behind(out, i, live, FIRST: tl.constexpr, STRIDE: tl.constexpr, COUNT: tl.constexpr, BLOCK_R: tl.constexpr):
    """Write a one and zeros, COUNT numbers in all, to every row of `out` from column FIRST on."""
    more = tl.arange(0, COUNT)[None, :]
    one = tl.where(more == 0, 1.0, 0.0) + tl.zeros((BLOCK_R, COUNT), tl.float32)
    at = (out + i.to(tl.int64) * STRIDE)[:, None] + FIRST + more
    tl.store(at, one.to(out.dtype.element_ty), mask=live[:, None] & (more >= 0))


@jit
def gather_chunks(
    chunk_rows,
    indices,
    edges,
    weights,
    read_scale,
    read_lists,
    winner,
    ids,
    x,
    partial,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    DIRECT: tl.constexpr,
    READ_DIVIDES: tl.constexpr,
    CHUNK: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """partial[c] = the sum of one chunk's edges, for chunks inside one long list (`chunk_rows[c]` >= 0)."""
    c = tl.program_id(0)
    if tl.load(chunk_rows + c) >= 0:
        f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
        total = tl.zeros((1, BLOCK_E, BLOCK_F), NUMBER)
        for k in tl.static_range(0, CHUNK, BLOCK_E):
            e = c * CHUNK + k + tl.arange(0, BLOCK_E)[None, :]
            total += edge_rows(
                e, e >= 0, f, indices, edges, weights, read_scale, read_lists, winner, ids, x,
                WIDTH, X_STRIDE, DIRECT, READ_DIVIDES, NUMBER,
            )  # fmt: skip
        result = tl.sum(total, axis=1)
        at = (partial + c.to(tl.int64) * WIDTH + f)[None, :]
        tl.store(at, result, mask=(f < WIDTH)[None, :])


@jit
def edge_rows(
    e, valid, f, indices, edges, weights, read_scale, read_lists, winner, ids, x,
    WIDTH: tl.constexpr, X_STRIDE: tl.constexpr, DIRECT: tl.constexpr, READ_DIVIDES: tl.constexpr,
    NUMBER: tl.constexpr,
):  # fmt: skip
    """[rows, edges, columns] of the valid edges e [rows, edges]: factor * x[j], zeros elsewhere.

    The factor is weights[position of e] * read_scale[j] / length of list j in `read_lists`. The position of e is
    edges[e], or e itself. `ids` map the block's rows j to rows of x. With `winner` only the maxima are read.
    """
    j = tl.load(indices + e, mask=valid, other=0)
    place = e
    if edges is not None:
        place = tl.load(edges + e, mask=valid, other=0)
    row = j.to(tl.int64)
    if ids is not None and not DIRECT:
        row = tl.load(ids + j, mask=valid, other=0).to(tl.int64)
    read = valid[:, :, None] & (f < WIDTH)[None, None, :]
    values = tl.load((x + row * X_STRIDE)[:, :, None] + f[None, None, :], mask=read, other=0).to(NUMBER)
    if weights is not None:
        values *= tl.load(weights + place, mask=valid, other=0).to(NUMBER)[:, :, None]
    if read_scale is not None:
        values *= factor(read_scale, j, valid, READ_DIVIDES, NUMBER)[:, :, None]
    if read_lists is not None:
        length = tl.load(read_lists + j + 1, mask=valid, other=0) - tl.load(read_lists + j, mask=valid, other=0)
        # A list that is read here has at least one edge.
        values *= (1 / tl.maximum(length, 1).to(NUMBER))[:, :, None]
    if winner is not None:
        won = tl.load((winner + j.to(tl.int64) * WIDTH)[:, :, None] + f[None, None, :], mask=read, other=-1)
        values = tl.where(won == place[:, :, None], values, 0)
    return values


@jit
def single_rows(x, ids, i, has, f, mask, STRIDE: tl.constexpr):
    """[rows, columns]: x[i], or x[ids[i]]; zeros for the rows that x does not have."""
    at = i.to(tl.int64)
    if ids is not None:
        at = tl.load(ids + i, mask=has, other=0).to(tl.int64)
    return tl.load((x + at * STRIDE)[:, None] + f[None, :], mask=has[:, None] & mask, other=0)


@jit
def factor(scale, at, mask, DIVIDES: tl.constexpr, NUMBER: tl.constexpr):
    """scale[at], or with DIVIDES one over it, zero for zero."""
    value = tl.load(scale + at, mask=mask, other=0).to(NUMBER)
    if DIVIDES:
        value = tl.where(value > 0, 1 / tl.where(value > 0, value, 1), 0)
    return value


@jit(do_not_specialize=["rows"])
def gather_largest(
    indptr,
    indices,
    x,
    out,
    winner,
    rows,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """out[i] = the maximum x[j] of each column, the first among equals; winner[i] = its edge; 0 and -1 for no edges."""
    i = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    live = i < rows
    start = tl.load(indptr + i, mask=live, other=0)
    stop = tl.load(indptr + i + 1, mask=live, other=0)
    best = tl.full((BLOCK_R, BLOCK_F), float("-inf"), NUMBER)
    at = tl.full((BLOCK_R, BLOCK_F), -1, tl.int32)
    k = 0
    longest = tl.max(stop - start, axis=0)
    while k < longest:
        e = (start[:, None] + k + tl.arange(0, BLOCK_E)[None, :]).to(tl.int32)
        valid = e < stop[:, None]
        row = tl.load(indices + e, mask=valid, other=0).to(tl.int64)
        read = valid[:, :, None] & (f < WIDTH)[None, None, :]
        pointers = (x + row * X_STRIDE)[:, :, None] + f[None, None, :]
        values = tl.load(pointers, mask=read, other=float("-inf")).to(NUMBER)
        highest = tl.max(values, axis=1)
        # Edges are numbered upwards, so the first among equals has the lowest number.
        holds = read & (values == highest[:, None, :])
        first = tl.min(tl.where(holds, e[:, :, None], 2147483647), axis=1)
        larger = (highest > best) | ((at < 0) & (first < 2147483647))
        best = tl.where(larger, highest, best)
        at = tl.where(larger, first, at)
        k += BLOCK_E
    written = live[:, None] & (f < WIDTH)[None, :]
    offset = (i.to(tl.int64) * WIDTH)[:, None] + f[None, :]
    tl.store(out + offset, tl.where(at >= 0, best, 0).to(out.dtype.element_ty), mask=written)
    tl.store(winner + offset, at, mask=written)


@jit(do_not_specialize=["rows"])
def copy_rows(
    ids, x, out, rows, WIDTH: tl.constexpr, X_STRIDE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_F: tl.constexpr
):
    """out[i] = x[ids[i]], in the type of out."""
    i = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask = (i < rows)[:, None] & (f < WIDTH)[None, :]
    values = single_rows(x, ids, i, i < rows, f, mask, X_STRIDE)
    tl.store((out + i.to(tl.int64) * WIDTH)[:, None] + f[None, :], values.to(out.dtype.element_ty), mask=mask)


# Kernels that transpose a block's lists and find the chunks of long lists, by binary searches, one per lane.


@jit(do_not_specialize=["rows", "sources", "places"])
def source_keys(indptr, indices, keys, rows, sources, places, BLOCK: tl.constexpr):
    """keys[e] = the source row of edge e; past the last edge `sources`, which sorts after all of them."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    last = tl.load(indptr + rows)
    j = tl.load(indices + e, mask=e < last, other=0)
    tl.store(keys + e, tl.where(e < last, j, sources).to(tl.int32), mask=e < places)


@jit(do_not_specialize=["rows", "sources", "places", "row_steps", "place_steps"])
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
    """From sorted keys and the edges' order: where each source's list starts, its destinations and edges."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = k < places
    e = tl.load(order + k, mask=inside, other=0).to(tl.int32)
    tl.store(out_edges + k, e, mask=inside)
    # The last row whose list starts at or before e; padding falls into some row, and is never read.
    after = first_above(indptr, e, inside, rows + 1, row_steps)
    tl.store(out_indices + k, tl.minimum(after - 1, rows - 1), mask=inside)
    listed = k <= sources
    tl.store(out_indptr + k, first_above(keys, k - 1, listed, places, place_steps), mask=listed)


@jit(do_not_specialize=["rows", "chunks", "steps"])
def chunk_rows(indptr, out, rows, chunks, steps, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """out[c] = the row whose long list (more than two chunks) contains all of the c-th chunk of edges, else -1."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = c < chunks
    row = first_above(indptr, c * CHUNK, inside, rows + 1, steps) - 1
    found = inside & (row >= 0) & (row < rows)
    start = tl.load(indptr + row, mask=found, other=0)
    stop = tl.load(indptr + row + 1, mask=found, other=0)
    whole = found & (stop - start > 2 * CHUNK) & ((c + 1) * CHUNK <= stop)
    tl.store(out + c, tl.where(whole, row, -1).to(tl.int32), mask=inside)


@jit
def first_above(values, goal, mask, count, steps):
    """The first position of `count` ascending values that is above the goal, `count` if none; 2^steps > count."""
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


@jit(do_not_specialize=["rows"])
def count_others(indptr, indices, counts, rows, BLOCK_E: tl.constexpr, BLOCK_R: tl.constexpr):
    """counts[i] = the number of row i's sources that are other rows, plus one for itself."""
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


@jit(do_not_specialize=["rows"])
def write_looped(
    indptr, indices, weights, ends, out_indptr, out_indices, out_weights, rows,
    BLOCK_E: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Write lists without self loops and one at the end of each, given where the lists end."""
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
