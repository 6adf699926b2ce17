"""Kernels of hops that share out work by edge, however long lists are: positions for each edge, and filters of lists.

The lists of a hop's rows, one behind the other, are divided into equal pieces; programs take pieces in turn until all
are done, so that a hub's list is shared by many and no launch depends on how many entries there are. `starts` says
where each row's part begins; a search finds the row of an entry. Rules are functions of `triton.jit` that a hop brings.
"""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.sampling.device.kernels import UNNUMBERED, excluded, mix, skip_excluded
from penstock.sampling.draws import PERMUTED as _PERMUTED

PERMUTED = tl.constexpr(_PERMUTED)
_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_ROUND_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_ROUND_2 = tl.constexpr(0x94D049BB133111EB)


@jit
def draw_bits(key, counter):
    """The random bits of a key at a counter, the same as the host's `penstock.graph.hashing.draw`."""
    return mix(mix(key + _STEP) ^ (counter * _STEP))


@jit
def merge_listed(
    indptr, indices, known_before, known, before, behind, merged, room, rows_room, edges_room,
    FIRST: tl.constexpr, DEPTH: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Append to the pairs a hop's lists of rows for which the hop before has not drawn.

    Pairs are sources in the first `room` entries of `merged` and destinations in the next; `before` is the number of
    pairs so far, and `behind` receives the number afterwards.
    """
    first_row = 0
    if not FIRST:
        first_row = tl.load(known_before)
    start, stop, there = tl.load(indptr + first_row), tl.load(indptr + tl.load(known)), tl.load(before)
    e = tl.program_id(0) * B + tl.arange(0, B)
    out = there + e - start
    real = (e >= start) & (e < stop) & (out < room) & (e < edges_room)
    row = row_of(indptr, e, rows_room, DEPTH)
    tl.store(merged + out, tl.load(indices + e, mask=real, other=0).to(tl.int64), mask=real)
    tl.store(merged + room + out, row.to(tl.int64), mask=real)
    if tl.program_id(0) == 0:
        tl.store(behind, there + stop - start)


@jit
def row_of(starts, e, rows, DEPTH: tl.constexpr):
    """The last row whose part begins at or before each entry: that which holds it, where some row does."""
    low = tl.zeros_like(e)
    high = low + rows
    for _ in range(DEPTH):
        middle = (low + high) // 2
        behind = tl.load(starts + middle + 1, mask=low < high, other=0) <= e
        open_still = low < high
        low = tl.where(open_still & behind, middle + 1, low)
        high = tl.where(open_still & (behind == 0), middle, high)
    return low


@jit
def measure_lists(
    indptr, vertices, known, lengths, rows_room, bounds, starts, behind, seeds, FANOUT: tl.constexpr,
    REPLACE: tl.constexpr, EXCLUDES: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """How many entries of its list each row takes: all that are not excluded if FANOUT is negative; none where there is
    no row.
    """
    row = tl.program_id(0) * B + tl.arange(0, B)
    held = row < tl.load(known)
    v = tl.load(vertices + row, mask=held, other=0).to(tl.int64)
    length = tl.load(indptr + v + 1, mask=held, other=0) - tl.load(indptr + v, mask=held, other=0)
    if EXCLUDES:
        length -= excluded(row, bounds, behind, seeds)[2]
    if FANOUT >= 0:
        if REPLACE:
            length = tl.where(length > 0, FANOUT, 0)
        else:
            length = tl.minimum(length, FANOUT)
    tl.store(lengths + row, length.to(tl.int64), mask=row < rows_room)


@jit
def bound_lists(starts, out_indptr, edges, needed, rows_room, edges_room, B: tl.constexpr):
    """Write the lists' bounds as far as there is room, and how many edges there are."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    start = tl.load(starts + row, mask=row <= rows_room, other=0)
    tl.store(out_indptr + row, tl.minimum(start, edges_room).to(tl.int32), mask=row <= rows_room)
    if tl.program_id(0) == 0:
        total = tl.load(starts + rows_room)
        tl.store(edges, tl.minimum(total, edges_room).to(tl.int32))
        tl.store(needed, tl.minimum(total, 0x7FFFFFFF).to(tl.int32))


@jit
def fetch_listed(
    indptr,
    list_entries,
    vertices,
    starts,
    key,
    sources,
    positions,
    targets,
    place,
    rows_room,
    edges_room,
    bounds,
    excluded_starts,
    behind,
    seeds,
    FANOUT: tl.constexpr,
    REPLACE: tl.constexpr,
    EXCLUDES: tl.constexpr,
    KEEPS_POSITIONS: tl.constexpr,
    KEEPS_TARGETS: tl.constexpr,
    NUMBERS: tl.constexpr,
    DEPTH: tl.constexpr,
    B: tl.constexpr,
):
    """Fetch a neighbour for every edge, whose position depends on the row and the edge's number in it, and with NUMBERS
    mark it in `place`.
    """
    total = tl.minimum(tl.load(starts + rows_room), edges_room)
    piece = tl.program_id(0)
    while piece.to(tl.int64) * B < total:
        e = piece.to(tl.int64) * B + tl.arange(0, B)
        held = e < total
        row = row_of(starts, e, rows_room, DEPTH)
        v = tl.load(vertices + row, mask=held, other=0).to(tl.int64)
        first = tl.load(indptr + v, mask=held, other=0)
        length = tl.load(indptr + v + 1, mask=held, other=0) - first
        if EXCLUDES:
            first_entry, last_entry, left_out = excluded(row, bounds, behind, seeds)
            length -= left_out
        place_in_list = e - tl.load(starts + row, mask=held, other=0)
        if FANOUT >= 0:
            row_key = mix(tl.load(key).to(tl.uint64) ^ v.to(tl.uint64))
            if REPLACE:
                bits = mix(row_key + (place_in_list + 1).to(tl.uint64) * _STEP) >> 32
                place_in_list = ((bits * length.to(tl.uint64)) >> 32).to(tl.int64)
            else:
                long = held & (length > PERMUTED * FANOUT)
                some = held & (length > FANOUT) & (length <= PERMUTED * FANOUT)
                drawn = permuted(row_key, place_in_list, length, long)
                taken = selected(row_key, place_in_list, length, some, FANOUT)
                place_in_list = tl.where(long, drawn, tl.where(some, taken, place_in_list))
        if EXCLUDES:
            skipped = skip_excluded(place_in_list[:, None], first_entry, last_entry, excluded_starts, behind, B, 1)
            place_in_list = tl.reshape(skipped, (B,))
        position = first + place_in_list
        source = tl.load(list_entries + position, mask=held, other=0)
        tl.store(sources + e, source, mask=held)
        if KEEPS_POSITIONS:
            tl.store(positions + e, position, mask=held)
        if KEEPS_TARGETS:
            tl.store(targets + e, row.to(tl.int32), mask=held)
        if NUMBERS:
            tl.atomic_min(place + source, UNNUMBERED + e.to(tl.int32), mask=held, sem="relaxed")
        piece += tl.num_programs(0)


@jit
def selected(key, number, length, held, FANOUT: tl.constexpr):
    """Selection sampling of `penstock.sampling.draws.choose`: the position of the draw with a number, passed to by each
    edge on its own.
    """
    count = tl.where(held, length, 0)
    longest = tl.max(count, axis=0)
    taken = tl.zeros_like(count)
    found = tl.zeros_like(count)
    k = 0
    while k < longest:
        bits = mix(key + tl.full(key.shape, k + 1, tl.uint64) * _STEP) >> 32
        left = tl.maximum(count - k, 0)
        takes = (k < count) & (((bits * left.to(tl.uint64)) >> 32).to(tl.int64) < FANOUT - taken)
        found = tl.where(takes & (taken == number), k, found)
        taken += takes.to(tl.int64)
        k += 1
    return found


@jit
def permuted(key, x, length, held):
    """`penstock.sampling.draws._choose_permuted`: the x-th of 0 .. length - 1 in the key's order."""
    count = tl.where(held, length, 1).to(tl.uint64)
    low = tl.zeros_like(count)
    size = count
    for _ in range(32):
        low += (size > 1).to(tl.uint64)
        size = size >> 1
    low = (low + 1) >> 1
    mask = (tl.full(low.shape, 1, tl.uint64) << low) - 1
    rest = (count + mask) >> low
    key_0 = mix(key + _STEP)
    key_1 = mix(key + tl.full(low.shape, 2, tl.uint64) * _STEP)
    key_2 = mix(key + tl.full(low.shape, 3, tl.uint64) * _STEP)
    key_3 = mix(key + tl.full(low.shape, 4, tl.uint64) * _STEP)
    now = tl.where(held, x, 0).to(tl.uint64)
    walking = held
    while tl.sum(walking.to(tl.int32)) > 0:
        left = now & mask
        right = now >> low
        left = left ^ (_scramble(right, key_0) & mask)
        right = _turned(right, _scramble(left, key_1), rest)
        left = left ^ (_scramble(right, key_2) & mask)
        right = _turned(right, _scramble(left, key_3), rest)
        now = tl.where(walking, (right << low) | left, now)
        walking = walking & (now >= count)
    return now.to(tl.int64)


@jit
def _scramble(value, key):
    """32 bits of a hash of a value and a round's key."""
    bits = (value + key) * _ROUND_1
    bits = (bits ^ (bits >> 32)) * _ROUND_2
    return bits >> 32


@jit
def _turned(value, bits, count):
    """A number below `count`, moved on by a random amount."""
    moved = value + ((bits * count) >> 32)
    return tl.where(moved >= count, moved - count, moved)


@jit
def _entries(piece, total, indptr, list_entries, vertices, starts, rows_room, DEPTH: tl.constexpr, B: tl.constexpr):
    """A piece of the rows' lists: which entries there are, their rows, their numbers in the lists, the lists' lengths,
    the entries' positions and sources.
    """
    e = piece.to(tl.int64) * B + tl.arange(0, B)
    held = e < total
    row = row_of(starts, e, rows_room, DEPTH)
    v = tl.load(vertices + row, mask=held, other=0).to(tl.int64)
    first = tl.load(indptr + v, mask=held, other=0)
    length = tl.load(indptr + v + 1, mask=held, other=0) - first
    number = e - tl.load(starts + row, mask=held, other=0)
    source = tl.load(list_entries + first + number, mask=held, other=0)
    return held, row, number, length, first + number, source


@jit
def count_kept(
    indptr,
    list_entries,
    vertices,
    starts,
    key,
    sums,
    table_a,
    table_b,
    table_c,
    rows_room,
    KEEP: tl.constexpr,
    FANOUT: tl.constexpr,
    DEPTH: tl.constexpr,
    B: tl.constexpr,
):
    """Count the entries of each piece that a rule keeps."""
    total = tl.load(starts + rows_room)
    hop_key = tl.load(key).to(tl.uint64)
    piece = tl.program_id(0)
    while piece.to(tl.int64) * B < total:
        held, _, _, length, _, source = _entries(
            piece, total, indptr, list_entries, vertices, starts, rows_room, DEPTH, B
        )
        kept = held & KEEP(hop_key, source, length, held, table_a, table_b, table_c, FANOUT)
        tl.store(sums + piece, tl.sum(kept.to(tl.int64), axis=0))
        piece += tl.num_programs(0)


@jit
def write_kept(
    indptr,
    list_entries,
    vertices,
    starts,
    key,
    sums,
    behind,
    firsts,
    sources,
    positions,
    targets,
    weights,
    place,
    table_a,
    table_b,
    table_c,
    rows_room,
    edges_room,
    KEEP: tl.constexpr,
    WEIGH: tl.constexpr,
    FANOUT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    KEEPS_POSITIONS: tl.constexpr,
    KEEPS_TARGETS: tl.constexpr,
    NUMBERS: tl.constexpr,
    DEPTH: tl.constexpr,
    B: tl.constexpr,
):
    """Write the kept entries one behind the other; `firsts` gets what is kept before each row's first entry."""
    total = tl.load(starts + rows_room)
    hop_key = tl.load(key).to(tl.uint64)
    piece = tl.program_id(0)
    while piece.to(tl.int64) * B < total:
        held, row, number, length, position, source = _entries(
            piece, total, indptr, list_entries, vertices, starts, rows_room, DEPTH, B
        )
        kept = held & KEEP(hop_key, source, length, held, table_a, table_b, table_c, FANOUT)
        counted = kept.to(tl.int64)
        before = tl.load(behind + piece) - tl.load(sums + piece)
        out = before + tl.cumsum(counted, axis=0) - counted
        tl.store(firsts + row, out, mask=held & (number == 0))
        real = kept & (out < edges_room)
        tl.store(sources + out, source, mask=real)
        if KEEPS_POSITIONS:
            tl.store(positions + out, position, mask=real)
        if KEEPS_TARGETS:
            tl.store(targets + out, row.to(tl.int32), mask=real)
        if WEIGHTED:
            weight = WEIGH(source, length, position, real, table_a, table_b, table_c, FANOUT)
            tl.store(weights + out, weight, mask=real)
        if NUMBERS:
            tl.atomic_min(place + source, UNNUMBERED + out.to(tl.int32), mask=real, sem="relaxed")
        piece += tl.num_programs(0)


@jit
def bound_kept(
    starts,
    firsts,
    behind,
    out_indptr,
    edges,
    needed,
    rows_room,
    edges_room,
    DEPTH: tl.constexpr,
    PIECE: tl.constexpr,
    B: tl.constexpr,
):
    """Write the bounds of the kept lists. A row without entries begins where the next row that has some does."""
    total = tl.load(starts + rows_room)
    last = tl.maximum(total - 1, 0) // PIECE
    kept = tl.where(total > 0, tl.load(behind + last), 0)
    row = tl.program_id(0) * B + tl.arange(0, B)
    inside = row <= rows_room
    start = tl.load(starts + row, mask=inside, other=0)
    filled = inside & (start < total)
    next_row = row_of(starts, start, rows_room, DEPTH)
    before = tl.load(firsts + next_row, mask=filled, other=0)
    bound = tl.minimum(tl.where(filled, before, kept), edges_room)
    tl.store(out_indptr + row, bound.to(tl.int32), mask=inside)
    if tl.program_id(0) == 0:
        tl.store(edges, tl.minimum(kept, edges_room).to(tl.int32))
        tl.store(needed, tl.minimum(kept, 0x7FFFFFFF).to(tl.int32))


# Vertices that are drawn for all rows of a hop together (`hops.TableDrawHop`, `hops.ImportanceHop`).

_TO_UNIT = tl.constexpr(1.0 / (1 << 53))


@jit
def unit_of(bits):
    """A number in [0, 1) from random bits, the same as the host's `penstock.graph.hashing.unit`."""
    return (bits >> 11).to(tl.float64) * _TO_UNIT


@jit
def search_sums(sums, sought, count, DEPTH: tl.constexpr):
    """How many of the first `count` running sums are at most the number sought."""
    low = tl.zeros(sought.shape, tl.int64)
    high = low + count
    for _ in range(DEPTH):
        middle = (low + high) // 2
        open_still = low < high
        passed = tl.load(sums + middle, mask=open_still, other=0) <= sought
        low = tl.where(open_still & passed, middle + 1, low)
        high = tl.where(open_still & (passed == 0), middle, high)
    return low


@jit
def draw_by_sums(key, running, total, times, drawn, count, SIZE: tl.constexpr, DEPTH: tl.constexpr, B: tl.constexpr):
    """Draw vertices by running sums, as `penstock.sampling.homogeneous.Distribution.draw`, and count them in `times`.

    `total` has the sum of all, and behind it the last vertex that may be drawn.
    """
    j = tl.program_id(0) * B + tl.arange(0, B)
    held = (j < SIZE) & (tl.load(total) + tl.zeros((B,), tl.float64) > 0)
    bits = draw_bits(tl.load(key).to(tl.uint64), j.to(tl.uint64))
    found = search_sums(running, unit_of(bits) * tl.load(total), count, DEPTH)
    found = tl.minimum(found, tl.load(total + 1).to(tl.int64))
    tl.store(drawn + j, found.to(tl.int32), mask=held)
    tl.atomic_add(times + found, 1, mask=held, sem="relaxed")


@jit
def clear_drawn(drawn, total, times, SIZE: tl.constexpr, B: tl.constexpr):
    """Forget how often vertices were drawn."""
    j = tl.program_id(0) * B + tl.arange(0, B)
    held = (j < SIZE) & (tl.load(total) + tl.zeros((B,), tl.float64) > 0)
    v = tl.load(drawn + j, mask=held, other=0)
    tl.store(times + v, tl.zeros_like(v), mask=held)


@jit
def _share(length, known):
    """`penstock.sampling.layerwise._share`: one over the squared length, in units that depend on the rows' number."""
    bits = tl.zeros_like(length)
    rows = bits + known
    for _ in range(32):
        bits += (rows > 0).to(tl.int64)
        rows = rows >> 1
    length = tl.maximum(length, 1)
    return tl.maximum((tl.full(length.shape, 1, tl.int64) << (62 - bits)) // (length * length), 1)


@jit
def measure_masses(lengths, known, masses, layer, rows_room, B: tl.constexpr):
    """The mass of each row's list; `layer` begins without a neighbour."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    length = tl.load(lengths + row, mask=row < rows_room, other=0)
    tl.store(masses + row, length * _share(length, tl.load(known).to(tl.int64)), mask=row < rows_room)
    if tl.program_id(0) == 0:
        tl.store(layer, 0)


@jit
def add_masses(
    indptr, list_entries, vertices, starts, known, mass, layer, rows_room, DEPTH: tl.constexpr, B: tl.constexpr
):
    """Add to each neighbour's mass, and count the neighbours in `layer`."""
    total = tl.load(starts + rows_room)
    rows = tl.load(known).to(tl.int64)
    piece = tl.program_id(0)
    found = tl.zeros((B,), tl.int64)
    while piece.to(tl.int64) * B < total:
        held, _, _, length, _, source = _entries(
            piece, total, indptr, list_entries, vertices, starts, rows_room, DEPTH, B
        )
        before = tl.atomic_add(mass + source, _share(length, rows), mask=held, sem="relaxed")
        found += (held & (before == 0)).to(tl.int64)
        piece += tl.num_programs(0)
    tl.atomic_add(layer, tl.sum(found, axis=0), sem="relaxed")


@jit
def draw_entries(
    indptr,
    list_entries,
    vertices,
    key,
    lengths,
    running,
    known,
    times,
    layer,
    rows_room,
    SIZE: tl.constexpr,
    DEPTH: tl.constexpr,
    B: tl.constexpr,
):
    """Draw entries of the rows' lists by mass, and count their sources in `times`; `layer` gets the whole mass."""
    total = tl.load(running + rows_room - 1)
    if tl.program_id(0) == 0:
        tl.store(layer + 1, total)
    j = tl.program_id(0) * B + tl.arange(0, B)
    held = (j < SIZE) & (total > 0)
    bits = draw_bits(tl.load(key).to(tl.uint64), j.to(tl.uint64))
    point = tl.umulhi(bits, tl.zeros_like(bits) + total.to(tl.uint64)).to(tl.int64)
    row = tl.minimum(search_sums(running, point, rows_room, DEPTH), rows_room - 1)
    length = tl.load(lengths + row, mask=held, other=0)
    point -= tl.load(running + row - 1, mask=held & (row > 0), other=0)
    v = tl.load(vertices + row, mask=held, other=0).to(tl.int64)
    position = tl.load(indptr + v, mask=held, other=0) + point // _share(length, tl.load(known).to(tl.int64))
    source = tl.load(list_entries + position, mask=held, other=0)
    tl.atomic_add(times + source, 1, mask=held, sem="relaxed")


@jit
def clear_masses(
    indptr, list_entries, vertices, starts, known, mass, times, rows_room, DEPTH: tl.constexpr, B: tl.constexpr
):
    """Forget the masses of all neighbours, and how often they were drawn."""
    total = tl.load(starts + rows_room)
    piece = tl.program_id(0)
    while piece.to(tl.int64) * B < total:
        held, _, _, _, _, source = _entries(piece, total, indptr, list_entries, vertices, starts, rows_room, DEPTH, B)
        tl.store(mass + source, tl.zeros((B,), tl.int64), mask=held)
        tl.store(times + source, tl.zeros((B,), tl.int32), mask=held)
        piece += tl.num_programs(0)
