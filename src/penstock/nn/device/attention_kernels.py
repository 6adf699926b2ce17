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
from penstock.nn.device.drop_kernels import drawn_key, kept_columns, kept_values


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
    RECTIFIES: tl.constexpr,
    LIMIT: tl.constexpr,
    SCALE: tl.constexpr,
    X_STRIDE: tl.constexpr,
    SCORE_STRIDE: tl.constexpr,
    NUMBER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """out[i] = sum of share * kept * values over row i's list, share = w * exp(score) / sum of w * exp(score).

    GATv2's `shift` is added to all rows of `of_dst`, and `bias` to results; with RECTIFIES the ReLU and dropout follow,
    as `drop_rows` does them.
    """
    h, c, lane = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_E)
    towards = own_part(direction, 0, 0, h, c, HEADS, SIZE, JOINT, NUMBER)
    i = tl.program_id(0) * BLOCK_R
    last = tl.minimum(i + BLOCK_R, rows)
    start, stop, then, first = first_lists(indptr, indices, i, last, lane)
    while i < last:
        j, after, first = first, then, tl.load(indices + stop + lane, mask=stop + lane < then, other=0)
        then = tl.load(indptr + tl.minimum(i + 3, last))
        mine = own_part(of_dst, i, SCORE_STRIDE, h, c, HEADS, SIZE, JOINT, NUMBER)
        if shift is not None:
            mine += own_part(shift, 0, 0, h, c, HEADS, SIZE, True, NUMBER)
        highest = tl.full((BLOCK_H,), float("-inf"), NUMBER)
        total = tl.zeros((BLOCK_H,), NUMBER)
        result = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
        if LOOPS:
            result = own_part(values, i, X_STRIDE, h, c, HEADS, SIZE, True, NUMBER)
            near = mine if JOINT else own_part(of_src, i, SCORE_STRIDE, h, c, HEADS, SIZE, False, NUMBER)
            under = (result if JOINT else near) + mine
            highest = tl.sum(leaky(under, SLOPE, NUMBER) * (towards if JOINT else 1), axis=1)
            total = tl.full((BLOCK_H,), 1, NUMBER)
        while start < stop:
            e = start + lane
            inside = e < stop
            valid = inside & (j != i) if LOOPS else inside
            near_rows = head_rows(values, j, X_STRIDE, valid, h, c, HEADS, SIZE, NUMBER)
            if JOINT:
                score = tl.sum(leaky(near_rows + mine[:, None, :], SLOPE, NUMBER) * towards[:, None, :], axis=2)
            else:
                score = leaky(row_scores(of_src, j, SCORE_STRIDE, valid, h, HEADS, NUMBER) + mine, SLOPE, NUMBER)
            score = tl.where(valid[None, :], score, float("-inf"))
            top = tl.maximum(highest, tl.max(score, axis=1))
            part = tl.exp(score - top[:, None])
            if weights is not None:
                part *= tl.load(weights + e, mask=valid, other=0).to(NUMBER)[None, :]
            before = tl.exp(highest - top)
            total = total * before + tl.sum(part, axis=1)
            if kept is not None:
                part *= row_scores(kept, e, HEADS, valid, h, HEADS, NUMBER)
            result = result * before[:, None] + tl.sum(part[:, :, None] * near_rows, axis=1)
            highest = top
            start += BLOCK_E
            j = tl.load(indices + start + lane, mask=start + lane < stop, other=0)
        share_of = tl.where(total > 0, 1 / tl.where(total > 0, total, 1), 0)
        result *= share_of[:, None]
        if bias is not None:
            result += own_part(bias, 0, 0, h, c, HEADS, SIZE, True, NUMBER)
        if RECTIFIES:
            result = tl.maximum(result, 0)
            if LIMIT < 65536:
                named = drawn_key(key, call, low, high)
                kept_here = kept_heads(named, names, i, h, c, LIMIT, HEADS, SIZE, BLOCK_H, BLOCK_C)
                result = tl.where(kept_here, result * tl.full((1, 1), SCALE, NUMBER), 0)
        store_rows(out, i, result, HEADS * SIZE, h, c, HEADS, SIZE)
        at = norms + i.to(tl.int64) * (3 * HEADS) + h
        tl.store(at, tl.where(total > 0, highest, 0), mask=h < HEADS)
        tl.store(at + HEADS, share_of, mask=h < HEADS)
        i, start, stop = i + 1, stop, after


@jit
def first_lists(indptr, indices, i, last, lane):
    """Row i's first and last edge, the next row's last, and the first neighbours of row i.

    A program has many rows. What it reads of the next row's list, and where the list after that ends, it asks for while
    it computes a row, so that it waits for memory once in a row and not three times.
    """
    start, stop = tl.load(indptr + i), tl.load(indptr + i + 1)
    first = tl.load(indices + start + lane, mask=start + lane < stop, other=0)
    return start, stop, tl.load(indptr + tl.minimum(i + 2, last)), first


@jit
def kept_heads(
    named, names, i, h, c, LIMIT: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """[heads, columns]: which values of row i dropout keeps."""
    WIDTH: tl.constexpr = HEADS * SIZE
    row = i + 0 * h
    if SIZE % 4 == 0:
        kept = kept_columns(named, names, row, h < HEADS, h * SIZE, LIMIT, WIDTH, BLOCK_H, BLOCK_C)
    else:
        # A head begins within a word, so that a word is drawn for each column.
        f = (h * SIZE)[:, None] + c[None, :]
        kept = kept_values(named, names, row, h < HEADS, f, LIMIT, WIDTH)
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
    of_score,
    passed,
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
    PACKED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """GATv2, by destination i: out_dst[i] = the gradient of its part of its edges' scores.

    What sources need of an edge is kept: of_score[e] = the gradient of its score, passed[e] = share * kept, and in
    signs[e], PACKED bits a byte, where the sum inside the leaky ReLU is positive. Row i's edge to itself is the one at
    places + i. parts[p] = the sums over the BLOCK_R rows of program p of the gradients of `direction`, of `of_dst` and
    of the results. SINGLE: a tile has whole lists; without it lists are read once more, before, for their mean
    gradients.
    """
    h, c, lane = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_E)
    towards = own_part(direction, 0, 0, h, c, HEADS, SIZE, True, NUMBER)
    total_direction = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    total_dst = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    total_given = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
    i = tl.program_id(0) * BLOCK_R
    last = tl.minimum(i + BLOCK_R, rows)
    start, stop, then, first = first_lists(indptr, indices, i, last, lane)
    while i < last:
        j, after, first = first, then, tl.load(indices + stop + lane, mask=stop + lane < then, other=0)
        then = tl.load(indptr + tl.minimum(i + 3, last))
        mine = own_part(of_dst, i, HEADS * SIZE, h, c, HEADS, SIZE, True, NUMBER)
        if shift is not None:
            mine += own_part(shift, 0, 0, h, c, HEADS, SIZE, True, NUMBER)
        given = own_part(grad, i, HEADS * SIZE, h, c, HEADS, SIZE, True, NUMBER)
        of_norms = norms + i.to(tl.int64) * (3 * HEADS) + h
        highest = tl.load(of_norms, mask=h < HEADS, other=0)
        share_of = tl.load(of_norms + HEADS, mask=h < HEADS, other=0)
        mean = tl.zeros((BLOCK_H,), NUMBER)
        total = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
        if LOOPS:
            itself = i + tl.arange(0, 1)
            own_share, own_passes, own_dot, own_under = joint_edges(
                itself, itself, itself < rows, None, None, values, mine, given, towards, highest, share_of, h, c,
                SLOPE, HEADS, SIZE, X_STRIDE, NUMBER,
            )  # fmt: skip
            mean += tl.sum(own_share * own_dot, axis=1)
        if not SINGLE:
            k = start
            while k < stop:
                e = k + lane
                near = tl.load(indices + e, mask=e < stop, other=0)
                valid = (e < stop) & (near != i) if LOOPS else e < stop
                share, passes, dot, under = joint_edges(
                    e, near, valid, weights, kept, values, mine, given, towards, highest, share_of, h, c,
                    SLOPE, HEADS, SIZE, X_STRIDE, NUMBER,
                )  # fmt: skip
                mean += tl.sum(share * dot, axis=1)
                k += BLOCK_E
        while start < stop:
            e = start + lane
            inside = e < stop
            valid = inside & (j != i) if LOOPS else inside
            share, passes, dot, under = joint_edges(
                e, j, valid, weights, kept, values, mine, given, towards, highest, share_of, h, c,
                SLOPE, HEADS, SIZE, X_STRIDE, NUMBER,
            )  # fmt: skip
            if SINGLE:
                mean += tl.sum(share * dot, axis=1)
            of_edge = share * (dot - mean[:, None])
            keep_edges(
                of_score, passed, signs, e, inside, of_edge, passes, under, h, HEADS, PACKED, BLOCK_E, BLOCK_H, BLOCK_C
            )
            leaked = of_edge[:, :, None] * steepness(under, SLOPE, NUMBER)
            total += tl.sum(leaked, axis=1)
            total_direction += tl.sum(leaked * under, axis=1)
            start += BLOCK_E
            if not SINGLE:
                j = tl.load(indices + start + lane, mask=start + lane < stop, other=0)
        if LOOPS:
            of_own = own_share * (own_dot - mean[:, None])
            keep_edges(
                of_score, passed, signs, places + itself, itself < rows, of_own, own_passes, own_under, h,
                HEADS, PACKED, 1, BLOCK_H, BLOCK_C,
            )  # fmt: skip
            own_leaked = of_own[:, :, None] * steepness(own_under, SLOPE, NUMBER)
            total += tl.sum(own_leaked, axis=1)
            total_direction += tl.sum(own_leaked * own_under, axis=1)
        total *= towards
        store_rows(out_dst, i, total, HEADS * SIZE, h, c, HEADS, SIZE)
        total_dst += total
        total_given += given
        i, start, stop = i + 1, stop, after
    at = 3 * tl.program_id(0)
    store_rows(parts, at, total_direction, HEADS * SIZE, h, c, HEADS, SIZE)
    store_rows(parts, at + 1, total_dst, HEADS * SIZE, h, c, HEADS, SIZE)
    store_rows(parts, at + 2, total_given, HEADS * SIZE, h, c, HEADS, SIZE)


@jit
def joint_edges(
    e, j, valid, weights, kept, values, mine, given, towards, highest, share_of, h, c,
    SLOPE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, X_STRIDE: tl.constexpr, NUMBER: tl.constexpr,
):  # fmt: skip
    """[heads, edges]: shares of a row's edges e to sources j, the same times `kept`, and the gradients of the shares;
    [heads, edges, columns]: the sums inside the leaky ReLU.
    """
    near = head_rows(values, j, X_STRIDE, valid, h, c, HEADS, SIZE, NUMBER)
    under = near + mine[:, None, :]
    score = tl.sum(leaky(under, SLOPE, NUMBER) * towards[:, None, :], axis=2)
    share = tl.where(valid[None, :], tl.exp(score - highest[:, None]) * share_of[:, None], 0)
    if weights is not None:
        share *= tl.load(weights + e, mask=valid, other=0).to(NUMBER)[None, :]
    dot = tl.sum(near * given[:, None, :], axis=2)
    passes = share
    if kept is not None:
        factor = row_scores(kept, e, HEADS, valid, h, HEADS, NUMBER)
        dot *= factor
        passes *= factor
    return share, passes, dot, under


@jit
def keep_edges(
    of_score, passed, signs, e, inside, of_edge, passes, under, h,
    HEADS: tl.constexpr, PACKED: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Write what sources need of edges e."""
    at, held = edge_places(e, inside, h, HEADS)
    tl.store(of_score + at, of_edge, mask=held)
    tl.store(passed + at, passes, mask=held)
    BYTES: tl.constexpr = BLOCK_C // PACKED
    place = tl.arange(0, PACKED)[None, None, None, :]
    ones = tl.reshape((under > 0).to(tl.int32), [BLOCK_H, BLOCK_E, BYTES, PACKED])
    packed = tl.sum(ones << place, axis=3)
    to = signs + (at * BYTES)[:, :, None] + tl.arange(0, BYTES)[None, None, :]
    tl.store(to, packed.to(tl.uint8), mask=held[:, :, None] & (tl.arange(0, BYTES) >= 0)[None, None, :])


@jit(do_not_specialize=["rows", "targets", "places"])
def collect_jointly(
    indptr,
    indices,
    edges,
    direction,
    grad,
    of_score,
    passed,
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
    PACKED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """GATv2, by source j: out[j] = the gradient of its values, of what `return_jointly` has kept of its edges."""
    h, c, lane = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_E)
    towards = own_part(direction, 0, 0, h, c, HEADS, SIZE, True, NUMBER)
    source = tl.program_id(0) * BLOCK_R
    last = tl.minimum(source + BLOCK_R, rows)
    start, stop, then, first = first_lists(indptr, indices, source, last, lane)
    first_edge = tl.load(edges + start + lane, mask=start + lane < stop, other=0)
    while source < last:
        i, e, after = first, first_edge, then
        first = tl.load(indices + stop + lane, mask=stop + lane < then, other=0)
        first_edge = tl.load(edges + stop + lane, mask=stop + lane < then, other=0)
        then = tl.load(indptr + tl.minimum(source + 3, last))
        result = tl.zeros((BLOCK_H, BLOCK_C), NUMBER)
        if LOOPS:
            me = source + tl.arange(0, 1)
            result += collected(
                me, places + me, me < targets, towards, grad, of_score, passed, signs, h, c,
                SLOPE, HEADS, SIZE, NUMBER, PACKED, BLOCK_C,
            )  # fmt: skip
        while start < stop:
            result += collected(
                i, e, start + lane < stop, towards, grad, of_score, passed, signs, h, c,
                SLOPE, HEADS, SIZE, NUMBER, PACKED, BLOCK_C,
            )  # fmt: skip
            start += BLOCK_E
            i = tl.load(indices + start + lane, mask=start + lane < stop, other=0)
            e = tl.load(edges + start + lane, mask=start + lane < stop, other=0)
        store_rows(out, source, result, X_STRIDE, h, c, HEADS, SIZE)
        source, start, stop = source + 1, stop, after


@jit
def collected(
    i, e, valid, towards, grad, of_score, passed, signs, h, c,
    SLOPE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, NUMBER: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """[heads, columns]: the sum of what edges e to rows i add to the gradient of a source's values."""
    at, held = edge_places(e, valid, h, HEADS)
    share = tl.load(passed + at, mask=held, other=0)
    of_edge = tl.load(of_score + at, mask=held, other=0)
    given = head_rows(grad, i, HEADS * SIZE, valid, h, c, HEADS, SIZE, NUMBER)
    of_signs = signs + (at * (BLOCK_C // PACKED))[:, :, None] + (c // PACKED)[None, None, :]
    byte = tl.load(of_signs, mask=held[:, :, None] & (c >= 0)[None, None, :], other=0).to(tl.int32)
    bit = (byte >> (c % PACKED)[None, None, :]) & 1
    steep = tl.where(bit > 0, tl.full((1,), 1, NUMBER), tl.full((1,), SLOPE, NUMBER))
    return tl.sum(share[:, :, None] * given + of_edge[:, :, None] * steep * towards[:, None, :], axis=1)


@jit
def leaky(x, SLOPE: tl.constexpr, NUMBER: tl.constexpr):
    """The leaky ReLU of scores, with slope SLOPE below zero."""
    return tl.where(x > 0, x, x * tl.full((1,), SLOPE, NUMBER))


@jit
def steepness(x, SLOPE: tl.constexpr, NUMBER: tl.constexpr):
    """The derivative of the leaky ReLU."""
    return tl.where(x > 0, tl.full((1,), 1, NUMBER), tl.full((1,), SLOPE, NUMBER))


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
