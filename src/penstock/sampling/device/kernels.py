"""The kernels of sampling on a GPU, in Triton: the passes of one hop, and those of a batch of triples."""

import triton.language as tl

from penstock.gpu_kernels import jit

# The passes of one hop on a GPU. Sizes stay on the device: a pass covers the whole room and looks up what is used. A
# hop counts what its rows draw (`count_and_look_up`), draws and marks (`draw`), counts the vertices that are new
# (`count_new`) and numbers them (`number_new`); the rows of what was drawn are looked up together with the next hop's
# count, as neither waits for the other. Offsets need no pass of their own: every program adds up the sums of those
# before it, a few kilobytes that are always in the cache. No sort: `place` has a number for every vertex of the graph,
# its row where it has one, and otherwise `UNNUMBERED` + the first edge that reached it (an atomic minimum), so that new
# vertices are numbered in the order in which they appear, as on the CPU.

FREE = tl.constexpr(0x7FFFFFFF)
"""In `place`: a vertex that is not in the batch."""
UNNUMBERED = tl.constexpr(1 << 30)
"""Above every row: added to the first edge that reached a vertex without a row."""
_SIGN = tl.constexpr(-(1 << 63))
_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)


@jit
def mix(value):
    """The bits of a uint64 mixed, the same as the host's `penstock.graph.hashing.mix`."""
    value = (value ^ (value >> 30)) * _MIX_1
    value = (value ^ (value >> 27)) * _MIX_2
    return value ^ (value >> 31)


@jit
def _sum_before(sums, program, BLOCKS: tl.constexpr):
    """The sum of what the programs before this one have counted."""
    places = tl.arange(0, BLOCKS)
    return tl.sum(tl.load(sums + places, mask=places < program, other=0), axis=0)


@jit
def start(
    order, cursor, counts, batch_size, vertices, known, place, keys, key_table, KEYS: tl.constexpr, B: tl.constexpr
):
    """Give the seeds of the epoch's batch number `cursor` the first rows, and copy its `KEYS` keys."""
    program = tl.program_id(0)
    number = tl.load(cursor).to(tl.int64)
    first = number * batch_size
    count = tl.load(counts + number)
    rows = program * B + tl.arange(0, B)
    held = rows < count
    seeds = tl.load(order + first + rows, mask=held, other=0)
    tl.store(vertices + rows, seeds, mask=held)
    tl.store(place + seeds, rows, mask=held)
    if program == 0:
        tl.store(known, count)
        for k in tl.static_range(KEYS):
            tl.store(keys + k, tl.load(key_table + number * KEYS + k))


@jit
def count_and_look_up(
    indptr,
    vertices,
    known,
    sums,
    sources,
    edges,
    place,
    indices,
    readers,
    slots,
    room,
    count_programs,
    bounds,
    starts,
    behind,
    seeds,
    FANOUT: tl.constexpr,
    REPLACE: tl.constexpr,
    EXCLUDES: tl.constexpr,
    COUNTS: tl.constexpr,
    LOOKS_UP: tl.constexpr,
    TURNS: tl.constexpr,
    ROWS: tl.constexpr,
    B: tl.constexpr,
):
    """Two passes in one launch: count the edges that this hop's rows draw, per program; and look up the rows of the
    last hop's.

    `known` is this hop's number of rows, `edges` the last hop's number of edges, `room` its room for rows. With TURNS
    every row also counts its `readers`, and an edge takes a slot among them, in no order yet.
    """
    program = tl.program_id(0)
    if COUNTS:  # noqa: SIM102 - the outer condition is the compiler's
        if program < count_programs:
            rows = program * ROWS + tl.arange(0, ROWS)
            held = rows < tl.load(known)
            v = tl.load(vertices + rows, mask=held, other=0).to(tl.int64)
            degree = tl.load(indptr + v + 1, mask=held, other=0) - tl.load(indptr + v, mask=held, other=0)
            if EXCLUDES:
                degree -= excluded(rows, bounds, behind, seeds)[2]
            tl.store(sums + program, tl.sum(_drawn(degree, FANOUT, REPLACE), axis=0))
    if LOOKS_UP:  # noqa: SIM102
        if program >= count_programs:
            e = (program - count_programs) * B + tl.arange(0, B)
            held = e < tl.load(edges)
            v = tl.load(sources + e, mask=held, other=0)
            row = tl.load(place + v, mask=held, other=0)
            # A vertex for which there was no room has no row. Its batch is drawn again, but must not read out of bounds
            # until then.
            row = tl.where(row < room, row, 0)
            tl.store(indices + e, row, mask=held)
            if TURNS:
                tl.store(slots + e, tl.atomic_add(readers + row, 1, mask=held, sem="relaxed"), mask=held)


@jit
def excluded(rows, bounds, behind, seeds):
    """The entries of each row's excluded edges (`links.DeviceExclusion`): the first, that behind the last, and how many
    edges they leave out.
    """
    held = rows < tl.load(seeds)
    first = tl.load(bounds + rows, mask=held, other=0)
    last = tl.load(bounds + rows + 1, mask=held, other=0)
    return first, last, tl.load(behind + last) - tl.load(behind + first)


@jit
def skip_excluded(chosen, first, last, starts, behind, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Positions in the lists of those chosen among the edges that may be drawn.

    An entry that leaves out edges at or before a position moves it on by their number. Entries ascend.
    """
    before = tl.load(behind + first)[:, None]
    left = tl.broadcast_to(first[:, None], (ROWS, COLUMNS))
    right = tl.broadcast_to(last[:, None], (ROWS, COLUMNS))
    while tl.max(tl.max(right - left, axis=1), axis=0) > 0:
        middle = (left + right) // 2
        open_still = left < right
        start = tl.load(starts + middle, mask=open_still, other=0)
        passed = open_still & (start - tl.load(behind + middle, mask=open_still, other=0) + before <= chosen)
        left = tl.where(passed, middle + 1, left)
        right = tl.where(open_still & (passed == 0), middle, right)
    return chosen + tl.load(behind + left) - before


@jit
def _drawn(degree, FANOUT: tl.constexpr, REPLACE: tl.constexpr):
    """How many neighbours of a list are drawn, as int32."""
    if REPLACE:
        return tl.where(degree > 0, FANOUT, 0).to(tl.int32)
    return tl.minimum(degree, FANOUT).to(tl.int32)


@jit
def draw(
    indptr,
    list_entries,
    vertices,
    known,
    sums,
    key,
    out_indptr,
    sources,
    edges,
    positions,
    targets,
    place,
    needed,
    rows_room,
    edges_room,
    bounds,
    starts,
    behind,
    seeds,
    FANOUT: tl.constexpr,
    COLUMNS: tl.constexpr,
    REPLACE: tl.constexpr,
    EXCLUDES: tl.constexpr,
    KEEPS_POSITIONS: tl.constexpr,
    KEEPS_TARGETS: tl.constexpr,
    NUMBERS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Draw for every row, fetch the neighbours, and with NUMBERS mark each in `place`; write the lists' bounds.

    Draws are those of `penstock.sampling.draws.choose`: a hash of the hop's key, the vertex and the draw's number.
    """
    program = tl.program_id(0)
    rows = program * ROWS + tl.arange(0, ROWS)
    held = rows < tl.load(known)
    v = tl.load(vertices + rows, mask=held, other=0).to(tl.int64)
    first = tl.load(indptr + v, mask=held, other=0)
    degree = tl.load(indptr + v + 1, mask=held, other=0) - first
    if EXCLUDES:
        first_entry, last_entry, left_out = excluded(rows, bounds, behind, seeds)
        degree -= left_out
    count = _drawn(degree, FANOUT, REPLACE)
    before = _sum_before(sums, program, BLOCKS)
    stop = tl.cumsum(count, axis=0) + before
    tl.store(out_indptr + rows + 1, tl.minimum(stop, edges_room), mask=rows < rows_room)
    if program == 0:
        tl.store(out_indptr, 0)
    if program == tl.num_programs(0) - 1:
        total = tl.sum(count, axis=0) + before
        tl.store(edges, tl.minimum(total, edges_room))
        tl.store(needed, total)

    column = tl.arange(0, COLUMNS)
    chosen = choose_columns(
        mix(tl.load(key).to(tl.uint64) ^ v.to(tl.uint64)), degree, column, FANOUT, COLUMNS, REPLACE, ROWS
    )
    if EXCLUDES:
        chosen = skip_excluded(chosen, first_entry, last_entry, starts, behind, ROWS, COLUMNS)
    out = (stop - count)[:, None] + column[None, :]
    real = (column[None, :] < count[:, None]) & (out < edges_room)
    position = first[:, None] + chosen
    neighbour = tl.load(list_entries + position, mask=real, other=0)
    tl.store(sources + out, neighbour, mask=real)
    if KEEPS_POSITIONS:
        tl.store(positions + out, position, mask=real)
    if KEEPS_TARGETS:
        tl.store(targets + out, tl.broadcast_to(rows[:, None], (ROWS, COLUMNS)), mask=real)
    if NUMBERS:
        tl.atomic_min(place + neighbour, UNNUMBERED + out, mask=real, sem="relaxed")


@jit
def choose_columns(
    key, degree, column, FANOUT: tl.constexpr, COLUMNS: tl.constexpr, REPLACE: tl.constexpr, ROWS: tl.constexpr
):
    """[ROWS, COLUMNS] positions in the lists; columns from `FANOUT` on are undefined."""
    bits = mix(key[:, None] + (column[None, :] + 1).to(tl.uint64) * _STEP) >> 32
    if REPLACE:
        return ((bits * degree[:, None].to(tl.uint64)) >> 32).to(tl.int64)
    # Floyd's method: draw below a growing bound; a repeat takes the newest position instead. No list has 2^31 entries,
    # so that 32 bits hold a position, and comparing those of a row takes half the work.
    newest = (degree[:, None] - FANOUT + column[None, :]).to(tl.int32)
    drawn = tl.umulhi(bits.to(tl.uint32), (newest + 1).to(tl.uint32)).to(tl.int32)
    chosen = tl.where(column[None, :] == 0, drawn, tl.full((ROWS, COLUMNS), -1, tl.int32))
    for j in tl.static_range(1, FANOUT):
        here = column[None, :] == j
        candidate = tl.sum(tl.where(here, drawn, 0), axis=1)
        repeated = tl.max((chosen == candidate[:, None]).to(tl.int32), axis=1) > 0
        taken = tl.where(repeated, (degree - FANOUT + j).to(tl.int32), candidate)
        chosen = tl.where(here, taken[:, None], chosen)
    whole = tl.broadcast_to(column[None, :], (ROWS, COLUMNS))
    return tl.where((degree <= FANOUT)[:, None], whole, chosen).to(tl.int64)


@jit
def count_new(sources, edges, place, sums, is_new, B: tl.constexpr):
    """Mark the edges that were first to reach a vertex without a row, and count them per program."""
    program = tl.program_id(0)
    e = program * B + tl.arange(0, B)
    held = e < tl.load(edges)
    v = tl.load(sources + e, mask=held, other=0)
    is_first = held & (tl.load(place + v, mask=held, other=0) == UNNUMBERED + e)
    tl.store(is_new + e, is_first.to(tl.int8), mask=held)
    tl.store(sums + program, tl.sum(is_first.to(tl.int32), axis=0))


@jit
def number_new(
    sources,
    edges,
    place,
    sums,
    is_new,
    vertices,
    known,
    known_after,
    needed,
    room,
    BLOCKS: tl.constexpr,
    B: tl.constexpr,
):
    """Give the new vertices rows after the known ones, in the order of the edges that reached them."""
    program = tl.program_id(0)
    e = program * B + tl.arange(0, B)
    held = e < tl.load(edges)
    is_first = tl.load(is_new + e, mask=held, other=0) != 0
    v = tl.load(sources + e, mask=is_first, other=0)
    counted = is_first.to(tl.int32)
    before = tl.load(known) + _sum_before(sums, program, BLOCKS)
    row = before + tl.cumsum(counted, axis=0) - counted
    fits = is_first & (row < room)
    tl.store(vertices + row, v, mask=fits)
    tl.store(place + v, row, mask=fits)
    if program == tl.num_programs(0) - 1:
        total = before + tl.sum(counted, axis=0)
        tl.store(known_after, tl.minimum(total, room))
        tl.store(needed, total)


@jit
def finish(
    vertices, known, place, needed, rooms, cursor, number, failed_at, skip, SIZES: tl.constexpr, B: tl.constexpr
):
    """Clear the places of a batch; record whether it, or one before it, lacked room; advance to the next batch.

    `skip` becomes 1 where the batch must not be learned from: the host draws it again with more room, and then all that
    follow it.
    """
    program = tl.program_id(0)
    rows = program * B + tl.arange(0, B)
    held = rows < tl.load(known)
    v = tl.load(vertices + rows, mask=held, other=0)
    tl.store(place + v, FREE, mask=held)
    if program == 0:
        this = tl.load(cursor)
        failed = tl.load(failed_at)
        for k in tl.static_range(SIZES):
            failed = tl.where(tl.load(needed + k) > tl.load(rooms + k), tl.minimum(failed, this), failed)
        tl.store(failed_at, failed)
        tl.store(skip, tl.where(failed <= this, 1.0, 0.0))
        tl.store(number, this)
        tl.store(cursor, this + 1)


@jit
def forget(vertices, known, place, B: tl.constexpr):
    """Clear the places of a batch's vertices of one type."""
    rows = tl.program_id(0) * B + tl.arange(0, B)
    held = rows < tl.load(known)
    v = tl.load(vertices + rows, mask=held, other=0)
    tl.store(place + v, FREE, mask=held)


@jit
def count_readers(readers, sums, chunks, rows, chunk_count, B: tl.constexpr, CHUNKS: tl.constexpr):
    """Sum the readers of a program's rows, and mark its CHUNKS chunks as those of no long list."""
    program = tl.program_id(0)
    i = program * B + tl.arange(0, B)
    tl.store(sums + program, tl.sum(tl.load(readers + i, mask=i < rows, other=0), axis=0))
    c = program * CHUNKS + tl.arange(0, CHUNKS)
    tl.store(chunks + c, tl.full((CHUNKS,), -1, tl.int32), mask=c < chunk_count)


@jit
def bound_readers(readers, sums, indptr, chunks, rows, CHUNK: tl.constexpr, BLOCKS: tl.constexpr, B: tl.constexpr):
    """Write where each row's readers begin, and the row of every whole chunk of a long list; reset
    the counts to zero.
    """
    program = tl.program_id(0)
    i = program * B + tl.arange(0, B)
    count = tl.load(readers + i, mask=i < rows, other=0)
    behind = _sum_before(sums, program, BLOCKS) + tl.cumsum(count, axis=0)
    tl.store(indptr + i + 1, behind, mask=i < rows)
    tl.store(readers + i, tl.zeros_like(count), mask=i < rows)
    if program == 0:
        tl.store(indptr, 0)
    start = behind - count
    long = count > 2 * CHUNK
    first = (start + CHUNK - 1) // CHUNK
    whole = tl.where(long, behind // CHUNK - first, 0)
    k = 0
    most = tl.max(whole, axis=0)
    while k < most:
        tl.store(chunks + first + k, i, mask=k < whole)
        k += 1


@jit
def place_readers(indices, slots, indptr, edges, unordered, B: tl.constexpr):
    """Write every edge to its slot in its source's list."""
    e = tl.program_id(0) * B + tl.arange(0, B)
    held = e < tl.load(edges)
    row = tl.load(indices + e, mask=held, other=0)
    at = tl.load(indptr + row, mask=held, other=0) + tl.load(slots + e, mask=held, other=0)
    tl.store(unordered + at, e, mask=held)


@jit
def order_readers(indptr, indices, unordered, targets, edges, out_edges, out_targets, B: tl.constexpr, E: tl.constexpr):
    """Sort every list by edge: slots were taken in any order, and sums must not depend on that.

    An entry's rank is the number of smaller ones. Entries are shared out among programs, not lists: a program for some
    lists would take as long as their longest one, squared. Most lists have one entry, which has nothing to be compared
    with.
    """
    at = tl.program_id(0) * B + tl.arange(0, B)
    held = at < tl.load(edges)
    edge = tl.load(unordered + at, mask=held, other=0)
    target = tl.load(targets + edge, mask=held, other=0)
    row = tl.load(indices + edge, mask=held, other=0)
    start = tl.load(indptr + row, mask=held, other=0)
    length = tl.load(indptr + row + 1, mask=held, other=0) - start
    compared = tl.where(length > 1, length, 0)
    rank = tl.zeros((B,), tl.int32)
    piece = tl.arange(0, E)[None, :]
    other = 0
    longest = tl.max(compared, axis=0)
    while other < longest:
        there = other + piece < compared[:, None]
        value = tl.load(unordered + start[:, None] + other + piece, mask=there, other=FREE)
        rank += tl.sum((value < edge[:, None]).to(tl.int32), axis=1)
        other += E
    tl.store(out_edges + start + rank, edge, mask=held)
    tl.store(out_targets + start + rank, target, mask=held)


@jit
def list_lengths(
    indptr, vertices, known, totals, room, bounds, starts, behind, seeds, EXCLUDES: tl.constexpr, B: tl.constexpr
):
    """The lengths of the rows' whole lists without excluded edges, as float32; zero for unused rows."""
    rows = tl.program_id(0) * B + tl.arange(0, B)
    held = rows < tl.load(known)
    v = tl.load(vertices + rows, mask=held, other=0).to(tl.int64)
    length = tl.load(indptr + v + 1, mask=held, other=0) - tl.load(indptr + v, mask=held, other=0)
    if EXCLUDES:
        length -= excluded(rows, bounds, behind, seeds)[2]
    tl.store(totals + rows, length.to(tl.float32), mask=rows < room)


@jit
def hash_names(names, draws, key, count, B: tl.constexpr):
    """The hashes of an epoch's items, with the sign bit flipped so that sorting them as signed numbers gives the
    unsigned order.
    """
    i = tl.program_id(0) * B + tl.arange(0, B)
    held = i < count
    name = tl.load(names + i, mask=held, other=0).to(tl.uint64)
    bits = mix(tl.load(key).to(tl.uint64) ^ mix(name))
    tl.store(draws + i, bits.to(tl.int64) ^ _SIGN, mask=held)


# Kernels of a batch of triples on a GPU: entities that replace an end are drawn, and true triples are marked.
#
# A triple is looked up by one number, (relation * entities + kept end) * entities + entity, in a sorted array of the
# true ones. Draws are those of `penstock.sampling.triples.batcher`, bit for bit.

_TO_UNIT = tl.constexpr(1.0 / (1 << 53))


@jit
def draw_entities(
    key,
    total,
    queries,
    own,
    known,
    known_count,
    sums,
    entities,
    drawn,
    group,
    k,
    FILTERED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    TRIES: tl.constexpr,
    COUNTERS: tl.constexpr,
    DEPTH: tl.constexpr,
    B: tl.constexpr,
):
    """Draw entities [groups, k] as negatives of the triples of a group; one that counts for none of them is drawn
    again.

    `queries` are the triples' numbers with entity 0, `own` the ends that are replaced, `total` the number of triples in
    the batch. `sums` are the running sums of the entities' weights.
    """
    g = tl.program_id(0)
    j = tl.program_id(1) * B + tl.arange(0, B)
    inside = j < k
    start = g * group
    stop = tl.minimum(start + group, tl.load(total).to(tl.int32))
    stream = mix(tl.load(key).to(tl.uint64) ^ g.to(tl.uint64))
    base = mix(stream + _STEP)
    found = tl.zeros((B,), tl.int64)
    useless = (inside & (start < stop)).to(tl.int32)
    attempt = 0
    while (attempt < TRIES) & (tl.sum(useless) > 0):
        bits = mix(base ^ ((j * COUNTERS + attempt).to(tl.uint64) * _STEP))
        unit = (bits >> 11).to(tl.float64) * _TO_UNIT
        if WEIGHTED:
            entity = _weighted(unit, sums, entities, DEPTH, B)
        else:
            entity = (unit * entities).to(tl.int64)
        found = tl.where(useless > 0, entity, found)
        i = start
        while (i < stop) & (tl.sum(useless) > 0):
            clashes = found == tl.load(own + i)
            if FILTERED:
                clashes = clashes | is_known(tl.load(queries + i) + found, known, known_count, DEPTH, B)
            useless = tl.where(clashes, useless, 0)
            i += 1
        attempt += 1
    tl.store(drawn + g.to(tl.int64) * k + j, found, mask=inside)


@jit
def first_at_least(values, left, right, wanted, DEPTH: tl.constexpr):
    """`links.known.lower_bound` of each range of ascending values."""
    for _ in range(DEPTH):
        middle = (left + right) // 2
        open_still = left < right
        below = tl.load(values + middle, mask=open_still, other=0) < wanted
        left = tl.where(open_still & below, middle + 1, left)
        right = tl.where(open_still & (below == 0), middle, right)
    return left


@jit
def is_known(sought, known, count, DEPTH: tl.constexpr, B: tl.constexpr):
    """Whether each number is in a sorted array."""
    none = tl.zeros((B,), tl.int64)
    place = first_at_least(known, none, none + count, sought, DEPTH)
    return (place < count) & (tl.load(known + place, mask=place < count, other=-1) == sought)


@jit
def _weighted(unit, sums, entities, DEPTH: tl.constexpr, B: tl.constexpr):
    """The entity at a given share of the sum of all weights."""
    lowest = tl.load(sums)
    sought = lowest + unit * (tl.load(sums + entities) - lowest)
    left = tl.zeros((B,), tl.int64)
    right = left + entities - 1
    for _ in range(DEPTH):
        middle = (left + right) // 2
        open_still = left < right
        above = tl.load(sums + middle + 1, mask=open_still, other=0.0) > sought
        right = tl.where(open_still & above, middle, right)
        left = tl.where(open_still, tl.where(above, left, middle + 1), left)
    return left


@jit
def mark_listed(bounds, others, mask, entities, B: tl.constexpr):
    """mask[i, e] = 1 for the true entities e of triple i, others[bounds[i, 0]:bounds[i, 1]]."""
    i = tl.program_id(0).to(tl.int64)
    first = tl.load(bounds + 2 * i)
    last = tl.load(bounds + 2 * i + 1)
    row = mask + i * entities
    while first < last:
        x = first + tl.arange(0, B)
        held = x < last
        entity = tl.load(others + x, mask=held, other=0)
        tl.store(row + entity, tl.full((B,), 1, tl.int8), mask=held)
        first += B
