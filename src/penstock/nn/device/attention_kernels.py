"""Kernels of attention on a GPU: softmax over each list and the weighted sum, in one pass for each direction.

Tiles are [heads, edges, columns of a head], so that sums over edges stay in registers. Forward, a list's rows are read
once: sums that were weighted by a smaller maximum are scaled down when a larger one is found. Backward, coefficients
are computed again from the list's maximum and sum. `norms` [rows, 3, heads] are each list's highest score, 1 / the sum
of its powers, and what GAT's backward needs: the product of the row's output and its gradient, which is the mean of its
edges' gradients. LOOPS: a destination is one more neighbour of itself, and entries of its own list that name it do not
count.

JOINT is GATv2: scores direction . leaky(left[j] + right[i]), values are `left`, and `of_dst` is right; without it GAT:
scores leaky(of_src[j] + of_dst[i]). Rows of values are X_STRIDE apart, scores SCORE_STRIDE.
"""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.nn.device.drop_kernels import drawn_key
from penstock.sampling.device.kernels import mix

_STEP = tl.constexpr(0x9E3779B97F4A7C15)


@jit(do_not_specialize=["call", "low", "high", "rows"])
def attend_rows(
    indptr,
    indices,
    weights,
    kept,
    values,
    of_src,
    of_dst,
    direction,
    shift,
    bias,
    names,
    key,
    call,
    low,
    high,
    norms,
    out,
    rows,
    SLOPE: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    JOINT: tl.constexpr,
    LOOPS: tl.constexpr,
    SINGLE: tl.constexpr,
    RECTIFIES: tl.constexpr,
    LIMIT: tl.constexpr,
    SCALE: tl.constexpr,
    X_STRIDE: tl.constexpr,
    SCORE_STRIDE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """out[i] = sum of share * kept * values over row i's list, share = w * exp(score) / sum of w * exp(score).

    GATv2's `shift` is added to all rows of `of_dst`, and `bias` to results; with RECTIFIES the ReLU and dropout follow,
    as `drop_rows` does them. SINGLE: every list has an entry, and one tile has all of them.
    """
    h, f, lane = tl.arange(0, BLOCK_H), part_columns(PARTS, BLOCK_C), tl.arange(0, BLOCK_E)
    towards = own_values(direction, 0, 0, h, f, HEADS, SIZE, NUMBER) if JOINT else None
    i = tl.program_id(0) * BLOCK_R
    last = tl.minimum(i + BLOCK_R, rows)
    start, stop, then, first = first_entries(indptr, indices, i, last, lane, LOOPS)
    while i < last:
        j, after, first = first, then, entries_of(indices, stop, then, stop - LOOPS + lane)
        then = tl.load(indptr + tl.minimum(i + 3, last))
        if JOINT:
            mine = own_values(of_dst, i, SCORE_STRIDE, h, f, HEADS, SIZE, NUMBER)
            if shift is not None:
                mine += own_values(shift, 0, 0, h, f, HEADS, SIZE, NUMBER)
        else:
            at_score = of_dst + tl.cast(i, tl.int64) * SCORE_STRIDE + h
            mine = tl.load(at_score, mask=h < HEADS, other=0).to(NUMBER)
        e = start - LOOPS + lane
        if SINGLE:
            near, score, inside = scored_edges(
                e, j, i, start, stop, values, of_src, mine, towards, h, f,
                SLOPE, HEADS, SIZE, JOINT, LOOPS, X_STRIDE, SCORE_STRIDE, NUMBER,
            )  # fmt: skip
            highest = tl.max(score, axis=1)
            part = tl.exp(score - highest[:, None])
            if weights is not None:
                part *= tl.load(weights + e, mask=inside, other=1).to(NUMBER)[None, :]
            total = tl.sum(part, axis=1)
            if kept is not None:
                part *= edge_scores(kept, e, inside, h, HEADS, NUMBER)
            result = tl.sum(part[:, :, None, None] * near, axis=1)
        else:
            highest = tl.full((BLOCK_H,), float("-inf"), NUMBER)
            total = tl.zeros((BLOCK_H,), NUMBER)
            result = tl.zeros((BLOCK_H, PARTS, BLOCK_C), NUMBER)
            begin = start - LOOPS
            while begin < stop:
                e = begin + lane
                near, score, inside = scored_edges(
                    e, j, i, start, stop, values, of_src, mine, towards, h, f,
                    SLOPE, HEADS, SIZE, JOINT, LOOPS, X_STRIDE, SCORE_STRIDE, NUMBER,
                )  # fmt: skip
                top = tl.maximum(highest, tl.max(score, axis=1))
                part = tl.exp(score - top[:, None])
                if weights is not None:
                    part *= tl.load(weights + e, mask=inside, other=1).to(NUMBER)[None, :]
                before = tl.exp(highest - top)
                total = total * before + tl.sum(part, axis=1)
                if kept is not None:
                    part *= edge_scores(kept, e, inside, h, HEADS, NUMBER)
                result = result * before[:, None, None] + tl.sum(part[:, :, None, None] * near, axis=1)
                highest = top
                begin += BLOCK_E
                j = entries_of(indices, start, stop, begin + lane)
        share_of = tl.where(total > 0, 1 / tl.where(total > 0, total, 1), 0)
        result *= share_of[:, None, None]
        if bias is not None:
            result += own_values(bias, 0, 0, h, f, HEADS, SIZE, NUMBER)
        if RECTIFIES:
            result = tl.maximum(result, 0)
            if LIMIT < 65536:
                named = drawn_key(key, call, low, high)
                kept_here = kept_heads(named, names, i, h, LIMIT, HEADS, SIZE, BLOCK_H, PARTS, BLOCK_C)
                result = tl.where(kept_here, result * tl.full((1, 1, 1), SCALE, NUMBER), 0)
        store_values(out, i, result, HEADS * SIZE, h, f, HEADS, SIZE)
        at = norms + i.to(tl.int64) * (3 * HEADS) + h
        tl.store(at, tl.where(total > 0, highest, 0), mask=h < HEADS)
        tl.store(at + HEADS, share_of, mask=h < HEADS)
        i, start, stop = i + 1, stop, after


@jit
def first_entries(indptr, indices, i, last, lane, LOOPS: tl.constexpr):
    """Row i's first and last edge, the next row's last, and the first neighbours of row i.

    A program has many rows. What it reads of the next row's list, and where the list after that ends, it asks for while
    it computes a row, so that it waits for memory once in a row and not three times.
    """
    start, stop = tl.load(indptr + i), tl.load(indptr + i + 1)
    first = entries_of(indices, start, stop, start - LOOPS + lane)
    return start, stop, tl.load(indptr + tl.minimum(i + 2, last)), first


@jit
def entries_of(indices, start, stop, e):
    """The neighbours at the places e of a list, 0 where it has none."""
    return tl.load(indices + e, mask=(e >= start) & (e < stop), other=0)


@jit
def scored_edges(
    e, j, i, start, stop, values, of_src, mine, towards, h, f,
    SLOPE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, JOINT: tl.constexpr, LOOPS: tl.constexpr,
    X_STRIDE: tl.constexpr, SCORE_STRIDE: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """[heads, edges, parts, columns]: row i's edges' values; [heads, edges]: their scores, -infinity where there is no
    edge; and which are entries of the list. With LOOPS the place before the list's first is the row itself.
    """
    j, valid, inside = own_among(e, j, i, start, stop, LOOPS)
    near = edge_values(values, j, X_STRIDE, valid, h, f, HEADS, SIZE, NUMBER)
    if JOINT:
        score = over_columns(leaky(near + mine[:, None, :, :], SLOPE, NUMBER) * towards[:, None, :, :])
    else:
        score = leaky(row_scores(of_src, j, SCORE_STRIDE, valid, h, HEADS, NUMBER) + mine[:, None], SLOPE, NUMBER)
    return near, tl.where(valid[None, :], score, float("-inf")), inside


@jit
def own_among(e, j, i, start, stop, LOOPS: tl.constexpr):
    """The neighbours at places e, which of them count, and which are entries of the list. With LOOPS the place before
    the list's first is row i itself, and entries that name it do not count.
    """
    inside = (e >= start) & (e < stop)
    valid = inside
    if LOOPS:
        own = e == start - 1
        valid = (inside & (j != i)) | own
        j = tl.where(own, i, j)
    return j, valid, inside


@jit
def kept_heads(
    named, names, i, h, LIMIT: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr, PARTS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """[heads, parts, columns]: which values of row i dropout keeps."""
    DRAWS: tl.constexpr = (HEADS * SIZE + 3) // 4
    name = i.to(tl.int64) if names is None else tl.load(names + i).to(tl.int64)
    if (SIZE % 4 == 0) & (BLOCK_C % 4 == 0):
        word = (h * (SIZE // 4))[:, None, None] + part_columns(PARTS, BLOCK_C // 4)[None, :, :]
        bits = mix(named + (name * DRAWS + word).to(tl.uint64) * _STEP)
        draws = (bits[:, :, :, None] >> (16 * tl.arange(0, 4)).to(tl.uint64)[None, None, None, :]) & 0xFFFF
        kept = tl.reshape((draws.to(tl.int32) < LIMIT).to(tl.int8), [BLOCK_H, PARTS, BLOCK_C]) > 0
    else:
        # A head begins within a word, so that a word is drawn for each column.
        f = (h * SIZE)[:, None, None] + part_columns(PARTS, BLOCK_C)[None, :, :]
        bits = mix(named + (name * DRAWS + f // 4).to(tl.uint64) * _STEP)
        kept = ((bits >> (16 * (f % 4)).to(tl.uint64)) & 0xFFFF).to(tl.int32) < LIMIT
    return kept


@jit(do_not_specialize=["rows"])
def mean_gradients(
    grad,
    out,
    norms,
    rows,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """norms[i, 2] = grad[i] . out[i], head by head: the mean of the gradients of its edges' coefficients."""
    i = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    h, c = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    given = head_rows(grad, i, HEADS * SIZE, i < rows, h, c, HEADS, SIZE, NUMBER)
    result = tl.sum(given * head_rows(out, i, HEADS * SIZE, i < rows, h, c, HEADS, SIZE, NUMBER), axis=2)
    at = norms + i[None, :].to(tl.int64) * (3 * HEADS) + 2 * HEADS + h[:, None]
    tl.store(at, result, mask=(i < rows)[None, :] & (h < HEADS)[:, None])


@jit(do_not_specialize=["targets"])
def return_to_sources(
    indptr,
    indices,
    edges,
    weights,
    kept,
    values,
    of_src,
    of_dst,
    norms,
    grad,
    of_score,
    of_loop,
    out,
    out_src,
    targets,
    SLOPE: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LOOPS: tl.constexpr,
    X_STRIDE: tl.constexpr,
    SCORE_STRIDE: tl.constexpr,
    BEHIND: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """GAT, by source j: out[j] = sum of share * kept * grad[i] over its destinations i. of_score[e] = the gradient of
    the sum inside edge e's leaky ReLU, of_loop[j] that of the row's own, out_src[j] = the sum of them, followed by
    BEHIND zeros.
    """
    source = tl.program_id(0)
    h, c = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C)
    start, stop = tl.load(indptr + source), tl.load(indptr + source + 1)
    mine = own_part(values, source, X_STRIDE, h, c, HEADS, SIZE, True, NUMBER)
    near = own_part(of_src, source, SCORE_STRIDE, h, c, HEADS, SIZE, False, NUMBER)
    total = tl.zeros((BLOCK_H,), NUMBER)
    result = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    if LOOPS:
        me = source + tl.arange(0, 1)
        of_own, own_added = edge_gradients(
            me, me, me < targets, None, None, mine, near, of_dst, norms, grad, h, c,
            SLOPE, HEADS, SIZE, SCORE_STRIDE, NUMBER,
        )  # fmt: skip
        result += own_added
        total += tl.sum(of_own, axis=1)
        read = (h < HEADS)[:, None] & (me < targets)[None, :]
        tl.store(of_loop + me[None, :].to(tl.int64) * HEADS + h[:, None], of_own, mask=read)
    k = start
    while k < stop:
        p = k + tl.arange(0, BLOCK_E)
        inside = p < stop
        i = tl.load(indices + p, mask=inside, other=0)
        e = tl.load(edges + p, mask=inside, other=0)
        valid = inside & (i != source) if LOOPS else inside
        of_edge, added = edge_gradients(
            i, e, valid, weights, kept, mine, near, of_dst, norms, grad, h, c,
            SLOPE, HEADS, SIZE, SCORE_STRIDE, NUMBER,
        )  # fmt: skip
        result += added
        total += tl.sum(of_edge, axis=1)
        held = (h < HEADS)[:, None] & inside[None, :]
        tl.store(of_score + e[None, :].to(tl.int64) * HEADS + h[:, None], of_edge, mask=held)
        k += BLOCK_E
    store_rows(out, source, result, X_STRIDE, h, c, HEADS, SIZE)
    at = out_src + source.to(tl.int64) * SCORE_STRIDE
    tl.store(at + h, total.to(out_src.dtype.element_ty), mask=h < HEADS)
    for behind in tl.static_range(0, BEHIND):
        tl.store(at + HEADS + behind, 0.0)


@jit
def edge_gradients(
    i, e, valid, weights, kept, mine, near, of_dst, norms, grad, h, c,
    SLOPE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, SCORE_STRIDE: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """[heads, edges]: gradients of the sums inside the scores of a source's edges e to rows i; [heads, columns]: the
    sum of what they add to the gradient of its values.
    """
    given = head_rows(grad, i, HEADS * SIZE, valid, h, c, HEADS, SIZE, NUMBER)
    under = near + row_scores(of_dst, i, SCORE_STRIDE, valid, h, HEADS, NUMBER)
    highest = row_scores(norms, i, 3 * HEADS, valid, h, HEADS, NUMBER)
    share_of = row_scores(norms + HEADS, i, 3 * HEADS, valid, h, HEADS, NUMBER)
    share = tl.where(valid[None, :], tl.exp(leaky(under, SLOPE, NUMBER) - highest) * share_of, 0)
    if weights is not None:
        share *= tl.load(weights + e, mask=valid, other=0).to(NUMBER)[None, :]
    dot = tl.sum(given * mine[:, None, :], axis=2)
    passed = share
    if kept is not None:
        factor = row_scores(kept, e, HEADS, valid, h, HEADS, NUMBER)
        dot *= factor
        passed *= factor
    of_edge = share * (dot - row_scores(norms + 2 * HEADS, i, 3 * HEADS, valid, h, HEADS, NUMBER))
    return of_edge * steepness(under, SLOPE, NUMBER), tl.sum(passed[:, :, None] * given, axis=1)


@jit(do_not_specialize=["rows"])
def sum_scores(
    indptr,
    of_score,
    of_loop,
    out_dst,
    rows,
    HEADS: tl.constexpr,
    SCORE_STRIDE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """GAT: out_dst[i] = the sum of the gradients of row i's edges, and of its own."""
    i = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    h = tl.arange(0, BLOCK_H)
    start = tl.load(indptr + i, mask=i < rows, other=0)
    stop = tl.load(indptr + i + 1, mask=i < rows, other=0)
    held = (i < rows)[:, None] & (h < HEADS)[None, :]
    total = tl.zeros((BLOCK_R, BLOCK_H), NUMBER)
    k = 0
    longest = tl.max(stop - start, axis=0)
    while k < longest:
        e = start[:, None] + k + tl.arange(0, BLOCK_E)[None, :]
        valid = (e < stop[:, None])[:, :, None] & (h < HEADS)[None, None, :]
        total += tl.sum(
            tl.load(of_score + (e.to(tl.int64) * HEADS)[:, :, None] + h[None, None, :], mask=valid, other=0), axis=1
        )
        k += BLOCK_E
    if of_loop is not None:
        total += tl.load(of_loop + (i.to(tl.int64) * HEADS)[:, None] + h[None, :], mask=held, other=0)
    at = out_dst + (i.to(tl.int64) * SCORE_STRIDE)[:, None] + h[None, :]
    tl.store(at, total.to(out_dst.dtype.element_ty), mask=held)


@jit(do_not_specialize=["rows", "places"])
def return_jointly(
    indptr,
    indices,
    weights,
    kept,
    values,
    of_dst,
    shift,
    direction,
    norms,
    grad,
    of_edges,
    signs,
    out_dst,
    parts,
    rows,
    places,
    SLOPE: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LOOPS: tl.constexpr,
    SINGLE: tl.constexpr,
    X_STRIDE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """GATv2, by destination i: out_dst[i] = the gradient of its part of its edges' scores.

    What sources need of an edge is kept: of_edges[e] = share * kept and the gradient of its score, for each head, and
    signs[e], where the sum inside the leaky ReLU is positive (`packed_signs`). Row i's edge to itself is the one at
    places + i. parts[p] = the sums over the BLOCK_R rows of program p of the gradients of `direction`, of `of_dst` and
    of the results. SINGLE: a tile has whole lists; without it lists are read once more, before, for their mean
    gradients.
    """
    h, f, lane = tl.arange(0, BLOCK_H), part_columns(PARTS, BLOCK_C), tl.arange(0, BLOCK_E)
    towards = own_values(direction, 0, 0, h, f, HEADS, SIZE, NUMBER)
    total_direction = tl.zeros((BLOCK_H, PARTS, BLOCK_C), NUMBER)
    total_dst = tl.zeros((BLOCK_H, PARTS, BLOCK_C), NUMBER)
    total_given = tl.zeros((BLOCK_H, PARTS, BLOCK_C), NUMBER)
    i = tl.program_id(0) * BLOCK_R
    last = tl.minimum(i + BLOCK_R, rows)
    start, stop, then, first = first_entries(indptr, indices, i, last, lane, LOOPS)
    while i < last:
        j, after, first = first, then, entries_of(indices, stop, then, stop - LOOPS + lane)
        then = tl.load(indptr + tl.minimum(i + 3, last))
        mine = own_values(of_dst, i, HEADS * SIZE, h, f, HEADS, SIZE, NUMBER)
        if shift is not None:
            mine += own_values(shift, 0, 0, h, f, HEADS, SIZE, NUMBER)
        given = own_values(grad, i, HEADS * SIZE, h, f, HEADS, SIZE, NUMBER)
        of_norms = norms + i.to(tl.int64) * (3 * HEADS) + h
        highest = tl.load(of_norms, mask=h < HEADS, other=0)
        share_of = tl.load(of_norms + HEADS, mask=h < HEADS, other=0)
        if SINGLE:
            share, passes, dot, under, at, held = joint_edges(
                start - LOOPS + lane, j, i, start, stop, places, weights, kept,
                values, mine, given, towards, highest, share_of, h, f,
                SLOPE, HEADS, SIZE, LOOPS, X_STRIDE, NUMBER,
            )  # fmt: skip
            of_score = share * (dot - tl.sum(share * dot, axis=1)[:, None])
            keep_edges(of_edges, signs, at, held, passes, of_score, under, h, HEADS, BLOCK_E, BLOCK_H, PARTS, BLOCK_C)
            total = tl.sum(of_score[:, :, None, None] * steepness(under, SLOPE, NUMBER), axis=1)
            total_direction += tl.sum(of_score[:, :, None, None] * leaky(under, SLOPE, NUMBER), axis=1)
        else:
            mean = tl.zeros((BLOCK_H,), NUMBER)
            total = tl.zeros((BLOCK_H, PARTS, BLOCK_C), NUMBER)
            begin = start - LOOPS
            while begin < stop:
                share, passes, dot, under, at, held = joint_edges(
                    begin + lane, j, i, start, stop, places, weights, kept,
                    values, mine, given, towards, highest, share_of, h, f,
                    SLOPE, HEADS, SIZE, LOOPS, X_STRIDE, NUMBER,
                )  # fmt: skip
                mean += tl.sum(share * dot, axis=1)
                begin += BLOCK_E
                j = entries_of(indices, start, stop, begin + lane)
            begin = start - LOOPS
            while begin < stop:
                j = entries_of(indices, start, stop, begin + lane)
                share, passes, dot, under, at, held = joint_edges(
                    begin + lane, j, i, start, stop, places, weights, kept,
                    values, mine, given, towards, highest, share_of, h, f,
                    SLOPE, HEADS, SIZE, LOOPS, X_STRIDE, NUMBER,
                )  # fmt: skip
                of_score = share * (dot - mean[:, None])
                keep_edges(
                    of_edges, signs, at, held, passes, of_score, under, h, HEADS, BLOCK_E, BLOCK_H, PARTS, BLOCK_C
                )
                total += tl.sum(of_score[:, :, None, None] * steepness(under, SLOPE, NUMBER), axis=1)
                total_direction += tl.sum(of_score[:, :, None, None] * leaky(under, SLOPE, NUMBER), axis=1)
                begin += BLOCK_E
        total *= towards
        store_values(out_dst, i, total, HEADS * SIZE, h, f, HEADS, SIZE)
        total_dst += total
        total_given += given
        i, start, stop = i + 1, stop, after
    at = 3 * tl.program_id(0)
    store_values(parts, at, total_direction, HEADS * SIZE, h, f, HEADS, SIZE)
    store_values(parts, at + 1, total_dst, HEADS * SIZE, h, f, HEADS, SIZE)
    store_values(parts, at + 2, total_given, HEADS * SIZE, h, f, HEADS, SIZE)


@jit
def joint_edges(
    e, j, i, start, stop, places, weights, kept, values, mine, given, towards, highest, share_of, h, f,
    SLOPE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, LOOPS: tl.constexpr, X_STRIDE: tl.constexpr,
    NUMBER: tl.constexpr,
):  # fmt: skip
    """[heads, edges]: shares of row i's edges, the same times `kept`, and the gradients of the shares; [heads, edges,
    parts, columns]: the sums inside the leaky ReLU; where what is kept of the edges lies, and which of them have any.
    """
    j, valid, inside = own_among(e, j, i, start, stop, LOOPS)
    near = edge_values(values, j, X_STRIDE, valid, h, f, HEADS, SIZE, NUMBER)
    under = near + mine[:, None, :, :]
    score = over_columns(leaky(under, SLOPE, NUMBER) * towards[:, None, :, :])
    share = tl.where(valid[None, :], tl.exp(score - highest[:, None]) * share_of[:, None], 0)
    if weights is not None:
        share *= tl.load(weights + e, mask=inside, other=1).to(NUMBER)[None, :]
    # Shares add up to one, so that a number that all products of a row have more changes no gradient, and the rows need
    # not be kept beside the sums; but not where dropout multiplies them.
    dot = over_columns((under if kept is None else near) * given[:, None, :, :])
    passes = share
    if kept is not None:
        factor = edge_scores(kept, e, inside, h, HEADS, NUMBER)
        dot *= factor
        passes *= factor
    at, held = e, inside
    if LOOPS:
        own = e == start - 1
        at, held = tl.where(own, places + i, e), inside | own
    return share, passes, dot, under, at, held


@jit
def keep_edges(
    of_edges, signs, e, held, passes, of_score, under, h,
    HEADS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, PARTS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write what sources need of edges e."""
    at = e[None, :].to(tl.int64) * HEADS + h[:, None]
    inside = (h < HEADS)[:, None] & held[None, :]
    both = 2 * at[:, :, None] + tl.arange(0, 2)[None, None, :]
    tl.store(
        of_edges + both, tl.join(passes, of_score), mask=inside[:, :, None] & (tl.arange(0, 2) >= 0)[None, None, :]
    )
    BYTES: tl.constexpr = (BLOCK_C + 3) // 4
    packed = packed_signs(under, BLOCK_E, BLOCK_H, PARTS, BLOCK_C)
    byte = tl.arange(0, BYTES)
    to = signs + (at * BYTES)[:, :, None] + byte[None, None, :]
    tl.store(to, packed.to(tl.uint8), mask=inside[:, :, None] & (byte >= 0)[None, None, :])


@jit
def packed_signs(
    under, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, PARTS: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """[heads, edges, bytes]: which values are positive, as bits. The byte of four columns of a part has those of the
    other part as well, the way a thread holds them.
    """
    FOUR: tl.constexpr = min(4, BLOCK_C)
    ones = tl.reshape((under > 0).to(tl.int32), [BLOCK_H, BLOCK_E, PARTS, BLOCK_C // FOUR, FOUR])
    place = (FOUR * tl.arange(0, PARTS))[:, None, None] + tl.arange(0, FOUR)[None, None, :]
    return tl.sum(tl.sum(ones << place[None, None, :, :, :], axis=4), axis=2)


@jit(do_not_specialize=["rows", "targets", "places"])
def collect_jointly(
    indptr,
    indices,
    edges,
    direction,
    grad,
    of_edges,
    signs,
    out,
    rows,
    targets,
    places,
    SLOPE: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LOOPS: tl.constexpr,
    X_STRIDE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """GATv2, by source j: out[j] = the gradient of its values, of what `return_jointly` has kept of its edges.

    Most lists have one or two entries, so that a tile [heads, rows, edges, parts, columns] has several lists.
    """
    FOUR: tl.constexpr = min(4, BLOCK_C)
    # A word has the bits of so many columns of each part; `signs` are words here.
    TOGETHER: tl.constexpr = min(32, BLOCK_C)
    WORDS: tl.constexpr = BLOCK_C // TOGETHER
    h, f = tl.arange(0, BLOCK_H), part_columns(PARTS, BLOCK_C)
    towards = own_values(direction, 0, 0, h, f, HEADS, SIZE, NUMBER)[:, None, None, :, :]
    flat = towards * tl.full((1, 1, 1, 1, 1), SLOPE, NUMBER)
    source = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    start = tl.load(indptr + source, mask=source < rows, other=0)
    stop = tl.load(indptr + source + 1, mask=source < rows, other=0)
    begin = start
    if LOOPS:
        begin -= (source < targets).to(tl.int32)
    column, word = tl.arange(0, TOGETHER), tl.arange(0, WORDS)
    byte_at = (8 * (column // FOUR))[None, None, None, None, :]
    bit = (1 << (FOUR * tl.arange(0, PARTS)[:, None] + (tl.arange(0, BLOCK_C) % FOUR)[None, :]))[None, None, None, :, :]
    place = (h * SIZE)[:, None, None] + f[None, :, :]
    fits = (h < HEADS)[:, None, None] & (f < SIZE)[None, :, :]
    result = tl.zeros((BLOCK_H, BLOCK_R, PARTS, BLOCK_C), NUMBER)
    longest = tl.max(stop - begin, axis=0)
    done = 0
    while done < longest:
        k = begin[:, None] + done + tl.arange(0, BLOCK_E)[None, :]
        valid = (k >= start[:, None]) & (k < stop[:, None])
        i = tl.load(indices + k, mask=valid, other=0)
        e = tl.load(edges + k, mask=valid, other=0)
        if LOOPS:
            own = k < start[:, None]
            valid |= own
            i, e = tl.where(own, source[:, None], i), tl.where(own, places + source[:, None], e)
        at = e[None, :, :].to(tl.int64) * HEADS + h[:, None, None]
        inside = (h < HEADS)[:, None, None] & valid[None, :, :]
        two = tl.arange(0, 2)[None, None, None, :]
        both = tl.load(of_edges + 2 * at[:, :, :, None] + two, mask=inside[:, :, :, None] & (two >= 0), other=0)
        passes, of_score = tl.split(both)
        of_rows = (grad + i.to(tl.int64) * (HEADS * SIZE))[None, :, :, None, None]
        read = valid[None, :, :, None, None] & fits[:, None, None, :, :]
        given = tl.load(of_rows + place[:, None, None, :, :], mask=read, other=0).to(NUMBER)
        of_signs = (signs + at * WORDS)[:, :, :, None] + word[None, None, None, :]
        words = tl.load(of_signs, mask=inside[:, :, :, None] & (word >= 0)[None, None, None, :], other=0)
        bits = (words[:, :, :, :, None] >> byte_at.to(words.dtype)).to(tl.int32)
        bits = tl.reshape(bits, [BLOCK_H, BLOCK_R, BLOCK_E, 1, BLOCK_C])
        steep = tl.where((bits & bit) != 0, towards, flat)
        result += tl.sum(passes[:, :, :, None, None] * given, axis=2)
        result += tl.sum(of_score[:, :, :, None, None] * steep, axis=2)
        done += BLOCK_E
    to = (out + source.to(tl.int64) * X_STRIDE)[None, :, None, None] + place[:, None, :, :]
    written = (source < rows)[None, :, None, None] & fits[:, None, :, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=written)


@jit
def leaky(x, SLOPE: tl.constexpr, NUMBER: tl.constexpr):
    """The leaky ReLU of scores, with slope SLOPE below zero."""
    lower = x * tl.full((1,), SLOPE, NUMBER)
    # One instruction less than a comparison and a choice.
    return tl.maximum(x, lower) if (SLOPE >= 0) & (SLOPE <= 1) else tl.where(x > 0, x, lower)


@jit
def steepness(x, SLOPE: tl.constexpr, NUMBER: tl.constexpr):
    """The derivative of the leaky ReLU."""
    return tl.where(x > 0, tl.full((1,), 1, NUMBER), tl.full((1,), SLOPE, NUMBER))


@jit
def part_columns(PARTS: tl.constexpr, BLOCK_C: tl.constexpr):
    """[parts, columns]: the columns of a head, in parts that follow each other."""
    return BLOCK_C * tl.arange(0, PARTS)[:, None] + tl.arange(0, BLOCK_C)[None, :]


@jit
def own_values(x, row, STRIDE: tl.constexpr, h, f, HEADS: tl.constexpr, SIZE: tl.constexpr, NUMBER: tl.constexpr):
    """[heads, parts, columns] of a row."""
    at = (h * SIZE)[:, None, None] + f[None, :, :]
    inside = (h < HEADS)[:, None, None] & (f < SIZE)[None, :, :]
    return tl.load(x + tl.cast(row, tl.int64) * STRIDE + at, mask=inside, other=0).to(NUMBER)


@jit
def edge_values(
    x, j, STRIDE: tl.constexpr, valid, h, f, HEADS: tl.constexpr, SIZE: tl.constexpr, NUMBER: tl.constexpr
):  # fmt: skip
    """[heads, edges, parts, columns] of rows j."""
    at = (h * SIZE)[:, None, None, None] + f[None, None, :, :]
    inside = (h < HEADS)[:, None, None, None] & valid[None, :, None, None] & (f < SIZE)[None, None, :, :]
    return tl.load((x + j.to(tl.int64) * STRIDE)[None, :, None, None] + at, mask=inside, other=0).to(NUMBER)


@jit
def store_values(out, row, result, STRIDE: tl.constexpr, h, f, HEADS: tl.constexpr, SIZE: tl.constexpr):
    """out[row] = result [heads, parts, columns]."""
    at = (h * SIZE)[:, None, None] + f[None, :, :]
    inside = (h < HEADS)[:, None, None] & (f < SIZE)[None, :, :]
    tl.store(out + tl.cast(row, tl.int64) * STRIDE + at, result.to(out.dtype.element_ty), mask=inside)


@jit
def over_columns(x):
    """[heads, edges]: the sums of [heads, edges, parts, columns] over the last two, first within a thread."""
    return tl.sum(tl.sum(x, axis=2), axis=2)


@jit
def edge_scores(x, e, inside, h, HEADS: tl.constexpr, NUMBER: tl.constexpr):
    """[heads, edges]: one value per head of edges e, 1 for a row itself."""
    return tl.load(
        x + e[None, :].to(tl.int64) * HEADS + h[:, None], mask=(h < HEADS)[:, None] & inside[None, :], other=1
    ).to(NUMBER)


@jit
def own_part(
    x, row, STRIDE: tl.constexpr, h, c,
    HEADS: tl.constexpr, SIZE: tl.constexpr, BY_COLUMN: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """[heads, columns] of a row; without BY_COLUMN, where a row has one value per head, [heads, 1]."""
    if BY_COLUMN:
        at = x + tl.cast(row, tl.int64) * STRIDE
        inside = (h < HEADS)[:, None] & (c < SIZE)[None, :]
        result = tl.load(at + h[:, None] * SIZE + c[None, :], mask=inside, other=0).to(NUMBER)
    elif x is None:
        result = tl.zeros_like(h)[:, None].to(NUMBER)
    else:
        at = x + tl.cast(row, tl.int64) * STRIDE + h[:, None]
        result = tl.load(at, mask=(h < HEADS)[:, None], other=0).to(NUMBER)
    return result


@jit
def head_rows(
    x, j, STRIDE: tl.constexpr, valid, h, c, HEADS: tl.constexpr, SIZE: tl.constexpr, NUMBER: tl.constexpr
):  # fmt: skip
    """[heads, edges, columns] of rows j."""
    at = (x + j.to(tl.int64) * STRIDE)[None, :, None] + (h * SIZE)[:, None, None] + c[None, None, :]
    inside = (h < HEADS)[:, None, None] & valid[None, :, None] & (c < SIZE)[None, None, :]
    return tl.load(at, mask=inside, other=0).to(NUMBER)


@jit
def edge_places(e, valid, h, HEADS: tl.constexpr):
    """[heads, edges]: the addresses of the edges' values, and which are valid."""
    return e[None, :].to(tl.int64) * HEADS + h[:, None], (h < HEADS)[:, None] & valid[None, :]


@jit
def row_scores(x, j, STRIDE: tl.constexpr, valid, h, HEADS: tl.constexpr, NUMBER: tl.constexpr):
    """[heads, edges]: one value per head of rows j."""
    at = x + j[None, :].to(tl.int64) * STRIDE + h[:, None]
    return tl.load(at, mask=(h < HEADS)[:, None] & valid[None, :], other=0).to(NUMBER)


@jit
def store_rows(out, row, result, STRIDE: tl.constexpr, h, c, HEADS: tl.constexpr, SIZE: tl.constexpr):
    """out[row] = result [heads, columns]."""
    at = out + tl.cast(row, tl.int64) * STRIDE + h[:, None] * SIZE + c[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=(h < HEADS)[:, None] & (c < SIZE)[None, :])
