"""Kernels of a batch of edges on a GPU: its ends, its negatives, the pairs to score, and what must not be drawn.

The ends of a batch of n edges are one array: n sources, n destinations, the vertices that replace destinations [groups,
k] and those that replace sources. Where the ends are of two types there are two arrays, each of one end and of what
replaces it. OWN is the number of an edge's ends in an array, 2 or 1. An end's position there is its ordinal: an atomic
minimum of ordinals in `place` lets `count_new` and `number_new` number the vertices in the order in which they appear,
as `penstock.sampling.links` does. Draws are those of `penstock.sampling.links.negatives`, bit for bit.
"""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.sampling.device.kernels import UNNUMBERED, first_at_least, is_known, mix

_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_TO_UNIT = tl.constexpr(1.0 / (1 << 53))
UNUSED = tl.constexpr(0x7FFFFFFFFFFFFFFF)
"""The key of an entry that excludes nothing: above those of all rows."""


@jit
def take_edges(
    order,
    cursor,
    counts,
    batch_size,
    sources,
    destinations,
    source_ends,
    destination_ends,
    chosen,
    sizes,
    known,
    needed,
    destination_needed,
    source_place,
    destination_place,
    keys,
    key_table,
    group,
    drawn,
    destination_drawn,
    OWN: tl.constexpr,
    KEYS: tl.constexpr,
    B: tl.constexpr,
):
    """Write the items of the epoch's batch number `cursor` and their ends, and copy its `KEYS` keys.

    `drawn` is the number of vertices that are drawn for every group of positives into the sources' array; `sizes`
    receives the number of positives, and 0 for the number of pairs that count; `needed` the number of ends. No row is
    `known` before them.
    """
    program = tl.program_id(0)
    number = tl.load(cursor).to(tl.int64)
    count = tl.load(counts + number)
    i = program * B + tl.arange(0, B)
    held = i < count
    item = tl.load(order + number * batch_size + i, mask=held, other=0)
    source = tl.load(sources + item, mask=held, other=0)
    destination = tl.load(destinations + item, mask=held, other=0)
    tl.store(chosen + i, item.to(tl.int64), mask=i < batch_size)
    at = (OWN - 1) * count + i
    tl.store(source_ends + i, source, mask=held)
    tl.store(destination_ends + at, destination, mask=held)
    tl.atomic_min(source_place + source, UNNUMBERED + i, mask=held, sem="relaxed")
    tl.atomic_min(destination_place + destination, UNNUMBERED + at, mask=held, sem="relaxed")
    if program == 0:
        tl.store(known, 0)
        tl.store(sizes, count)
        tl.store(sizes + 1, 0)
        tl.store(needed, OWN * count + _groups(count, group) * drawn)
        if OWN == 1:
            tl.store(destination_needed, count + _groups(count, group) * destination_drawn)
        for k in tl.static_range(KEYS):
            tl.store(keys + k, tl.load(key_table + number * KEYS + k))


@jit
def _group(count, group):
    """How many positives of a batch share negatives."""
    return tl.maximum(1, tl.minimum(group, count))


@jit
def _groups(count, group):
    shared = _group(count, group)
    return (count + shared - 1) // shared


@jit
def draw_own_negatives(
    key,
    sizes,
    chosen,
    copies,
    source_ends,
    destination_ends,
    ends,
    before,
    place,
    indptr,
    list_entries,
    kept_out,
    kept_out_count,
    num_sources,
    candidates,
    k,
    OWN: tl.constexpr,
    AT_DESTINATION: tl.constexpr,
    FILTERED: tl.constexpr,
    TRIES: tl.constexpr,
    COUNTERS: tl.constexpr,
    DEPTH: tl.constexpr,
    B: tl.constexpr,
):
    """Draw `k` vertices for each positive, never its own end; with FILTERED, one that makes a true edge again.

    `before` is the number of vertices drawn for each positive that precede these among the `ends`.
    """
    cell = tl.program_id(0) * B + tl.arange(0, B)
    count = tl.load(sizes)
    i, j = cell // k, cell % k
    held = i < count
    source = tl.load(source_ends + i, mask=held, other=0).to(tl.int64)
    destination = tl.load(destination_ends + (OWN - 1) * count + i, mask=held, other=0).to(tl.int64)
    copy = tl.load(copies + tl.load(chosen + i, mask=held, other=0), mask=held, other=0)
    stream = mix(mix(tl.load(key).to(tl.uint64) ^ source.to(tl.uint64)) ^ destination.to(tl.uint64))
    stream = mix(stream ^ copy.to(tl.uint64))
    base = mix(stream + _STEP)
    own = source
    if AT_DESTINATION:
        own = destination
    found = tl.zeros((B,), tl.int64)
    clashes = held.to(tl.int32)
    attempt = 0
    while (attempt < TRIES) & (tl.sum(clashes, axis=0) > 0):
        vertex = _below(base, j * COUNTERS + attempt, candidates - 1)
        vertex += (vertex >= own).to(tl.int64)
        found = tl.where(clashes > 0, vertex, found)
        if FILTERED:
            left = source if AT_DESTINATION else found
            right = found if AT_DESTINATION else destination
            true = _is_edge(left, right, held, indptr, list_entries, kept_out, kept_out_count, num_sources, DEPTH, B)
            clashes = tl.where(true, clashes, 0)
        else:
            clashes = tl.zeros((B,), tl.int32)
        attempt += 1
    at = OWN * count + before * count + cell
    tl.store(ends + at, found.to(tl.int32), mask=held)
    tl.atomic_min(place + found, UNNUMBERED + at, mask=held, sem="relaxed")


@jit
def draw_joint_negatives(
    key,
    sizes,
    source_ends,
    destination_ends,
    ends,
    before,
    place,
    indptr,
    list_entries,
    kept_out,
    kept_out_count,
    num_sources,
    candidates,
    group,
    k,
    OWN: tl.constexpr,
    AT_DESTINATION: tl.constexpr,
    FILTERED: tl.constexpr,
    TRIES: tl.constexpr,
    COUNTERS: tl.constexpr,
    DEPTH: tl.constexpr,
    B: tl.constexpr,
):
    """Draw `k` vertices for each group of positives; one that counts for none of them is drawn again."""
    g = tl.program_id(0)
    j = tl.program_id(1) * B + tl.arange(0, B)
    count = tl.load(sizes)
    shared = _group(count, group)
    start = g * shared
    stop = tl.minimum(start + shared, count)
    inside = (j < k) & (start < stop)
    base = mix(mix(tl.load(key).to(tl.uint64) ^ g.to(tl.uint64)) + _STEP)
    found = tl.zeros((B,), tl.int64)
    useless = inside.to(tl.int32)
    attempt = 0
    while (attempt < TRIES) & (tl.sum(useless, axis=0) > 0):
        found = tl.where(useless > 0, _below(base, j * COUNTERS + attempt, candidates), found)
        i = start
        while (i < stop) & (tl.sum(useless, axis=0) > 0):
            source = tl.load(source_ends + i).to(tl.int64)
            destination = tl.load(destination_ends + (OWN - 1) * count + i).to(tl.int64)
            clashes = found == (destination if AT_DESTINATION else source)
            if FILTERED:
                same = tl.zeros((B,), tl.int64)
                left = same + source if AT_DESTINATION else found
                right = found if AT_DESTINATION else same + destination
                clashes = clashes | _is_edge(
                    left, right, inside, indptr, list_entries, kept_out, kept_out_count, num_sources, DEPTH, B
                )
            useless = tl.where(clashes, useless, 0)
            i += 1
        attempt += 1
    at = OWN * count + (before * _groups(count, group) + g * k) + j
    tl.store(ends + at, found.to(tl.int32), mask=inside)
    tl.atomic_min(place + found, UNNUMBERED + at, mask=inside, sem="relaxed")


@jit
def _below(base, counter, bound):
    """`hashing.below` of the stream's draw number `counter`."""
    bits = mix(base ^ (counter.to(tl.uint64) * _STEP))
    return ((bits >> 11).to(tl.float64) * _TO_UNIT * bound).to(tl.int64)


@jit
def _is_edge(
    source,
    destination,
    held,
    indptr,
    list_entries,
    kept_out,
    kept_out_count,
    num_sources,
    DEPTH: tl.constexpr,
    B: tl.constexpr,
):
    """Whether pairs are in the lists or among the held-out pairs (`known.is_edge`)."""
    left = tl.load(indptr + destination, mask=held, other=0)
    stop = tl.load(indptr + destination + 1, mask=held, other=0)
    place = first_at_least(list_entries, left, stop, source, DEPTH)
    inside = held & (place < stop)
    found = inside & (tl.load(list_entries + place, mask=inside, other=-1) == source)
    return found | (held & is_known(destination * num_sources + source, kept_out, kept_out_count, DEPTH, B))


@jit
def pair_rows(
    sizes,
    source_ends,
    destination_ends,
    source_place,
    destination_place,
    indptr,
    list_entries,
    kept_out,
    kept_out_count,
    num_sources,
    rows,
    columns,
    counts,
    weights,
    batch_size,
    source_room,
    destination_room,
    group,
    k,
    OWN: tl.constexpr,
    AT_DESTINATION: tl.constexpr,
    AT_SOURCE: tl.constexpr,
    IN_BATCH: tl.constexpr,
    FILTERED: tl.constexpr,
    DEPTH: tl.constexpr,
    B: tl.constexpr,
):
    """The pairs to score [batch_size, 1 + negatives], as `EdgeBatch.ranking` has them: rows of sources and of
    destinations, and which pairs count.

    Padded positives have row 0 and the weight 0; all others have the weight 1 where they count. The number of pairs
    that count is added to `sizes`.
    """
    cell = (tl.program_id(0).to(tl.int64) * B) + tl.arange(0, B)
    wide = k if AT_DESTINATION else 0
    width = 1 + wide + (k if AT_SOURCE else 0)
    count = tl.load(sizes)
    i = cell // width
    c = cell % width
    held = i < count
    source = tl.load(source_ends + i, mask=held, other=0).to(tl.int64)
    destination = tl.load(destination_ends + (OWN - 1) * count + i, mask=held, other=0).to(tl.int64)
    left, right, counted = source, destination, held
    if AT_DESTINATION or AT_SOURCE:
        is_source = c > wide
        j = tl.where(is_source, c - 1 - wide, c - 1)
        if IN_BATCH:
            known = j < count
            at = tl.where(is_source, j, (OWN - 1) * count + j)
        else:
            known = j < k
            shift = tl.where(is_source, (OWN - 1) * wide, 0).to(tl.int64) * _groups(count, group)
            at = OWN * count + shift + (i // _group(count, group)) * k + j
        drawn = held & known & (c > 0)
        if OWN == 2:
            vertex = tl.load(source_ends + at, mask=drawn, other=0).to(tl.int64)
        else:
            vertex = tl.load(source_ends + at, mask=drawn & is_source, other=0).to(tl.int64)
            vertex += tl.load(destination_ends + at, mask=drawn & (is_source == 0), other=0).to(tl.int64)
        left = tl.where(drawn & is_source, vertex, left)
        right = tl.where(drawn & (is_source == 0), vertex, right)
        fair = drawn & (vertex != tl.where(is_source, source, destination))
        if FILTERED:
            fair = fair & (
                _is_edge(left, right, fair, indptr, list_entries, kept_out, kept_out_count, num_sources, DEPTH, B) == 0
            )
        counted = tl.where(c > 0, fair, held)
    # A vertex for which there was no room has no row: its batch is drawn again, and must not read out of bounds.
    row = tl.load(source_place + left, mask=held, other=0)
    column = tl.load(destination_place + right, mask=held, other=0)
    inside = cell < batch_size * width
    tl.store(rows + cell, tl.where(row < source_room, row, 0).to(tl.int64), mask=inside)
    tl.store(columns + cell, tl.where(column < destination_room, column, 0).to(tl.int64), mask=inside)
    tl.store(counts + cell, (counted | (c == 0)).to(tl.int8), mask=inside)
    tl.store(weights + cell, counted.to(tl.float32), mask=inside)
    tl.atomic_add(sizes + 1, tl.sum(counted.to(tl.int32), axis=0), sem="relaxed")


# Edges that a batch must not draw, ordered by the seed whose list they are in and by their source. Lists ascend, so
# that the copies of an edge are neighbours in its list, and the draw can skip them by their ranks.


@jit
def excluded_keys(
    sizes,
    source_ends,
    target_ends,
    place,
    keys,
    entries,
    room,
    SOURCE_AT: tl.constexpr,
    TARGET_AT: tl.constexpr,
    REVERSED: tl.constexpr,
    B: tl.constexpr,
):
    """row * 2^32 + source of each excluded pair, `UNUSED` for entries behind the batch's own.

    The sources of the pairs begin at SOURCE_AT times the number of edges in their array, and the targets likewise; with
    REVERSED the pairs are followed by themselves turned around.
    """
    e = tl.program_id(0) * B + tl.arange(0, B)
    count = tl.load(sizes)
    turned = e >= count
    i = tl.where(turned, e - count, e)
    held = e < (2 * count if REVERSED else count)
    source_at, target_at = SOURCE_AT * count + i, TARGET_AT * count + i
    source = tl.load(source_ends + tl.where(turned, target_at, source_at), mask=held, other=0).to(tl.int64)
    target = tl.load(target_ends + tl.where(turned, source_at, target_at), mask=held, other=0)
    row = tl.load(place + target, mask=held, other=0).to(tl.int64)
    used = held & (row < room)
    tl.store(keys + e, tl.where(used, (row << 32) | source, UNUSED), mask=e < entries)


@jit
def excluded_ranges(
    keys, vertices, indptr, list_entries, starts, lengths, entries, DEPTH: tl.constexpr, B: tl.constexpr
):
    """Where each excluded pair's copies begin in its list, and how many there are; none for a pair that is repeated."""
    e = tl.program_id(0) * B + tl.arange(0, B)
    key = tl.load(keys + e, mask=e < entries, other=UNUSED)
    held = key != UNUSED
    row, source = key >> 32, key & 0xFFFFFFFF
    v = tl.load(vertices + row, mask=held, other=0).to(tl.int64)
    start = tl.load(indptr + v, mask=held, other=0)
    stop = tl.load(indptr + v + 1, mask=held, other=0)
    first = first_at_least(list_entries, start, stop, source, DEPTH)
    last = first_at_least(list_entries, first, stop, source + 1, DEPTH)
    again = held & (e > 0) & (tl.load(keys + e - 1, mask=held & (e > 0), other=UNUSED) == key)
    tl.store(starts + e, tl.where(again, last, first) - start, mask=e < entries)
    tl.store(lengths + e, tl.where(held & (again == 0), last - first, 0), mask=e < entries)


@jit
def bound_excluded(keys, bounds, entries, rows, DEPTH: tl.constexpr, B: tl.constexpr):
    """Where each seed's excluded pairs begin among the sorted ones."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    nothing = tl.zeros((B,), tl.int32)
    first = first_at_least(keys, nothing, nothing + entries, row.to(tl.int64) << 32, DEPTH)
    tl.store(bounds + row, first, mask=row <= rows)
