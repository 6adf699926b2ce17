"""Kernels that begin a batch which is a subgraph: what its draws visit, and the rows of that, training ones first."""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.sampling.device.kernels import UNNUMBERED, _sum_before
from penstock.sampling.device.list_kernels import draw_bits, search_sums, unit_of

_WHOLE = tl.constexpr(1 << 40)


@jit
def take_items(order, cursor, counts, batch_size, items, known, keys, key_table, KEYS: tl.constexpr, B: tl.constexpr):
    """Copy the items of the epoch's batch number `cursor`, and its `KEYS` keys."""
    number = tl.load(cursor).to(tl.int64)
    count = tl.load(counts + number)
    i = tl.program_id(0) * B + tl.arange(0, B)
    held = i < count
    tl.store(items + i, tl.load(order + number * batch_size + i, mask=held, other=0), mask=held)
    if tl.program_id(0) == 0:
        tl.store(known, count)
        for k in tl.static_range(KEYS):
            tl.store(keys + k, tl.load(key_table + number * KEYS + k))


@jit
def visit_by_sums(key, running, total, visited, stride, offset, count, amount, DEPTH: tl.constexpr, B: tl.constexpr):
    """Draw vertices by running sums, as `penstock.sampling.homogeneous.Distribution.draw`."""
    j = tl.program_id(0) * B + tl.arange(0, B)
    bits = draw_bits(tl.load(key).to(tl.uint64), j.to(tl.uint64))
    found = search_sums(running, unit_of(bits) * tl.load(total), count, DEPTH)
    found = tl.minimum(found, tl.load(total + 1).to(tl.int64))
    tl.store(visited + j * stride + offset, found.to(tl.int32), mask=j < amount)


@jit
def _single(indptr, u, v_part, held):
    """The mass of an edge by the lengths of its ends' lists, the same as the host's `saint._single_units`."""
    u = u.to(tl.int64)
    degree = tl.load(indptr + u + 1, mask=held, other=0) - tl.load(indptr + u, mask=held, other=0)
    return tl.where(held, _WHOLE // tl.maximum(degree, 1) + v_part, 0)


@jit
def visit_sources(indptr, list_entries, key, visited, B: tl.constexpr):
    """Draw an edge of each visited destination's list by mass, as `penstock.sampling.saint._draw_sources`; a program
    passes through one list.
    """
    j = tl.program_id(0)
    v = tl.load(visited + 2 * j + 1).to(tl.int64)
    first = tl.load(indptr + v)
    last = tl.load(indptr + v + 1)
    own = _WHOLE // tl.maximum(last - first, 1)
    total = tl.zeros((), tl.int64)
    k = first
    while k < last:
        at = k + tl.arange(0, B)
        u = tl.load(list_entries + at, mask=at < last, other=0)
        total += tl.sum(_single(indptr, u, own, at < last), axis=0)
        k += B
    bits = draw_bits(tl.load(key).to(tl.uint64), j.to(tl.uint64) + tl.zeros((1,), tl.uint64))
    left = tl.sum(tl.umulhi(bits, tl.zeros((1,), tl.uint64) + total.to(tl.uint64)).to(tl.int64), axis=0)
    found = tl.zeros((), tl.int64)
    before = tl.zeros((), tl.int64)
    k = first
    while k < last:
        at = k + tl.arange(0, B)
        u = tl.load(list_entries + at, mask=at < last, other=0)
        single = _single(indptr, u, own, at < last)
        behind = before + tl.cumsum(single, axis=0)
        here = (at < last) & (left < behind) & (left >= behind - single)
        found += tl.sum(tl.where(here, u, 0).to(tl.int64), axis=0)
        before += tl.sum(single, axis=0)
        k += B
    tl.store(visited + 2 * j, found.to(tl.int32))


@jit
def visit_walks(indptr, list_entries, key, visited, count, walks, LENGTH: tl.constexpr, B: tl.constexpr):
    """Walk from uniform roots to uniform in-neighbours, as `penstock.sampling.saint._step`."""
    j = tl.program_id(0) * B + tl.arange(0, B)
    held = j < walks
    stream = tl.load(key).to(tl.uint64)
    number = j.to(tl.int64) * (LENGTH + 1)
    v = (unit_of(draw_bits(stream, number.to(tl.uint64))) * count).to(tl.int64)
    tl.store(visited + number, v.to(tl.int32), mask=held)
    for step in tl.static_range(1, LENGTH + 1):
        first = tl.load(indptr + v, mask=held, other=0)
        degree = tl.load(indptr + v + 1, mask=held, other=0) - first
        unit = unit_of(draw_bits(stream, (number + step).to(tl.uint64)))
        chosen = (unit * degree.to(tl.float64)).to(tl.int64)
        found = tl.load(list_entries + first + chosen, mask=held & (degree > 0), other=0).to(tl.int64)
        v = tl.where(degree > 0, found, v)
        tl.store(visited + number + step, v.to(tl.int32), mask=held)


@jit
def mark_visited(visited, visits, place, B: tl.constexpr):
    """Mark the first visit of each vertex in `place`."""
    e = tl.program_id(0) * B + tl.arange(0, B)
    held = e < tl.load(visits)
    v = tl.load(visited + e, mask=held, other=0)
    tl.atomic_min(place + v, UNNUMBERED + e, mask=held, sem="relaxed")


@jit
def count_visited(visited, visits, place, is_train, kinds, seed_sums, other_sums, B: tl.constexpr):
    """What each visit is, for each program counted: 1 the first of a training vertex, 2 the first of another."""
    program = tl.program_id(0)
    e = program * B + tl.arange(0, B)
    held = e < tl.load(visits)
    v = tl.load(visited + e, mask=held, other=0)
    is_first = held & (tl.load(place + v, mask=held, other=0) == UNNUMBERED + e)
    trains = tl.load(is_train + v, mask=is_first, other=0) != 0
    tl.store(kinds + e, tl.where(is_first, tl.where(trains, 1, 2), 0).to(tl.int8), mask=held)
    tl.store(seed_sums + program, tl.sum((is_first & trains).to(tl.int32), axis=0))
    tl.store(other_sums + program, tl.sum((is_first & (trains == 0)).to(tl.int32), axis=0))


@jit
def number_visited(
    visited, visits, place, kinds, seed_sums, other_sums, vertices, known, needed, seeds_room, rows_room,
    BLOCKS: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Give the visited vertices rows in order of appearance, training ones first."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    e = program * B + tl.arange(0, B)
    held = e < tl.load(visits)
    kind = tl.load(kinds + e, mask=held, other=0).to(tl.int32)
    v = tl.load(visited + e, mask=held, other=0)
    seed, other = (kind == 1).to(tl.int32), (kind == 2).to(tl.int32)
    seeds = _sum_before(seed_sums, programs, BLOCKS)
    as_seed = _sum_before(seed_sums, program, BLOCKS) + tl.cumsum(seed, axis=0) - seed
    as_other = seeds + _sum_before(other_sums, program, BLOCKS) + tl.cumsum(other, axis=0) - other
    row = tl.where(kind == 1, as_seed, as_other)
    fits = (kind > 0) & (row < rows_room)
    tl.store(vertices + row, v, mask=fits)
    tl.store(place + v, row, mask=fits)
    if program == 0:
        rows = seeds + _sum_before(other_sums, programs, BLOCKS)
        tl.store(known + 1, tl.minimum(seeds, seeds_room))
        tl.store(known + 2, tl.minimum(rows, rows_room))
        tl.store(needed + 1, seeds)
        tl.store(needed + 3, rows)


@jit
def bound_seeds(indptr, known, out, rows_room, B: tl.constexpr):
    """The bounds of the seeds' lists; rows behind them have none."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    seeds = tl.load(known + 1)
    bound = tl.load(indptr + tl.minimum(row, seeds), mask=row <= rows_room, other=0)
    tl.store(out + row, bound, mask=row <= rows_room)


@jit
def take_found_labels(
    labels, vertices, seeds, weights, room, out, share,
    WEIGHTED: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Copy the labels of the seeds that a batch has found, and each one's weight in its loss: that of the vertex, or an
    equal part; zero past the last seed.
    """
    rows = tl.program_id(0) * B + tl.arange(0, B)
    count = tl.load(seeds)
    held = rows < tl.minimum(count, room)
    v = tl.load(vertices + rows, mask=held, other=0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    wanted = (column < WIDTH)[None, :] & (rows < room)[:, None]
    values = tl.load(labels + v[:, None] * WIDTH + column[None, :], mask=wanted & held[:, None], other=0)
    tl.store(out + rows[:, None] * WIDTH + column[None, :], values, mask=wanted)
    if WEIGHTED:
        weight = tl.load(weights + v, mask=held, other=0.0)
    else:
        weight = tl.where(
            held, tl.math.div_rn(tl.full((B,), 1.0, tl.float32), tl.maximum(count, 1).to(tl.float32)), 0.0
        )
    tl.store(share + rows, weight, mask=rows < room)
