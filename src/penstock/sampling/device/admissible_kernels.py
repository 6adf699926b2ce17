"""Kernels of draws from lists of which only some edges may be drawn, or some are likelier: by weight and without
excluded edges.

A program draws for one row and passes over its list piece by piece, as `penstock.sampling.draws.draw_admissible` does;
long lists that are drawn by weight are searched by running masses instead, many rows in a program (`draw_summed`).
Draws and weights are those of the host, bit for bit: `penstock.sampling.weighted_draws` says how. Launches that compute
ranks must not fuse products and sums.
"""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.sampling import weighted_draws as host
from penstock.sampling.device.kernels import UNNUMBERED, choose_columns, excluded, mix
from penstock.sampling.device.list_kernels import permuted, row_of, selected, unit_of
from penstock.sampling.draws import PERMUTED as _PERMUTED
from penstock.sampling.draws import SCANNED as _SCANNED

PERMUTED = tl.constexpr(_PERMUTED)
SCANNED = tl.constexpr(_SCANNED)
SUMMED = tl.constexpr(host.SUMMED)
SPACING = tl.constexpr(host.SPACING)
_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_TO_UNIT = tl.constexpr(1.0 / (1 << 53))
_MASS_BITS = tl.constexpr(host.MASS_BITS)
_ROOT = tl.constexpr(host.ROOT)
_LOG_2 = tl.constexpr(host.LOG_2)
_ODD_0, _ODD_1, _ODD_2, _ODD_3, _ODD_4, _ODD_5 = map(tl.constexpr, host.ODD)
_PART_0, _PART_1, _PART_2, _PART_3, _PART_4 = map(tl.constexpr, host.PARTS)


@jit
def mass_scale(total):
    """`weighted_draws.mass_scale`: a power of two."""
    field = (total.to(tl.float64).to(tl.int64, bitcast=True) >> 52) & 0x7FF
    exponent = tl.where(field == 0, 0, field - 1022)
    biased = tl.zeros_like(field) + 1023 + _MASS_BITS - exponent
    return (biased << 52).to(tl.float64, bitcast=True)


@jit
def mass_of(weight, scale):
    """The integer mass of a weight, the same as the host's `weighted_draws.mass`."""
    return tl.where(weight > 0, tl.maximum((weight * scale).to(tl.int64), 1), 0)


@jit
def _piece(
    k, first, length, weights, entry, last_entry, starts, behind, WEIGHTED: tl.constexpr, EXCLUDES: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """A piece of a list from its entry k on: the entries' numbers, which of them may be drawn, and their weights."""
    number = k + tl.arange(0, B).to(tl.int64)
    admissible = number < length
    weight = tl.zeros((B,), tl.float64)
    if WEIGHTED:
        weight = tl.load(weights + first + number, mask=admissible, other=0).to(tl.float64)
        admissible = admissible & (weight > 0)
    if EXCLUDES:
        e = entry
        while e < last_entry:
            begin = tl.load(starts + e)
            size = tl.load(behind + e + 1) - tl.load(behind + e)
            admissible = admissible & ((number < begin) | (number >= begin + size))
            e += 1
    return number, admissible, weight


@jit
def _row(row, indptr, vertices, bounds, behind, seeds, EXCLUDES: tl.constexpr):
    """A row's vertex, where its list begins, the list's length, and the entries of its excluded edges."""
    v = tl.load(vertices + row).to(tl.int64)
    first = tl.load(indptr + v)
    length = tl.load(indptr + v + 1) - first
    entry = tl.zeros_like(row)
    last_entry = entry
    if EXCLUDES:
        entry, last_entry, _ = excluded(row, bounds, behind, seeds)
    return v, first, length, entry, last_entry


@jit
def count_admissible(
    indptr, vertices, known, weights, positives, counts, lengths, bounds, starts, behind, seeds,
    FANOUT: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr, HAS_ZEROS: tl.constexpr,
    EXCLUDES: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """How many edges of its list a row may draw (`counts`), and how many it draws (`lengths`)."""
    row = tl.program_id(0)
    count = tl.zeros_like(row).to(tl.int64)
    if row < tl.load(known):
        v, first, length, entry, last_entry = _row(row, indptr, vertices, bounds, behind, seeds, EXCLUDES)
        if entry == last_entry:
            count = length
            if HAS_ZEROS:
                count = tl.load(positives + v).to(tl.int64)
        else:
            k = tl.zeros_like(length)
            while k < length:
                _, admissible, _ = _piece(
                    k, first, length, weights, entry, last_entry, starts, behind, WEIGHTED, EXCLUDES, B
                )
                count += tl.sum(admissible.to(tl.int64), axis=0)
                k += B
    drawn = count
    if FANOUT >= 0:
        if REPLACE:
            drawn = tl.where(count > 0, FANOUT, 0).to(tl.int64)
        else:
            drawn = tl.minimum(count, FANOUT)
    tl.store(counts + row, count)
    tl.store(lengths + row, drawn)


@jit
def total_admissible(
    indptr, vertices, known, weights, sums, totals, bounds, starts, behind, seeds,
    EXCLUDES: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The weight of the edges that each row may draw; zero for unused rows."""
    row = tl.program_id(0)
    total = tl.zeros_like(row).to(tl.float32)
    if row < tl.load(known):
        v, first, length, entry, last_entry = _row(row, indptr, vertices, bounds, behind, seeds, EXCLUDES)
        total = tl.load(sums + v)
        if entry != last_entry:
            scale = mass_scale(total)
            found = tl.zeros_like(length)
            k = tl.zeros_like(length)
            while k < length:
                _, admissible, weight = _piece(
                    k, first, length, weights, entry, last_entry, starts, behind, True, EXCLUDES, B
                )
                found += tl.sum(tl.where(admissible, mass_of(weight, scale), 0), axis=0)
                k += B
            total = (found.to(tl.float64) / scale).to(tl.float32)
    tl.store(totals + row, total)


@jit
def _priorities(row_key, number, admissible, weight):
    """The priorities of `weighted_draws._choose_by_priority`; -1 where an edge may not be drawn."""
    lot = 1.0 - unit_of(mix(row_key + (number + 1).to(tl.uint64) * _STEP))
    return tl.where(admissible, weight / lot, -1.0)


@jit
def _threshold(
    row_key, first, length, weights, entry, last_entry, starts, behind, EXCLUDES: tl.constexpr, FANOUT: tl.constexpr,
    KEPT: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The priority next to the `FANOUT` largest ones of a list."""
    column = tl.arange(0, KEPT)
    kept = tl.where(column <= FANOUT, tl.full((KEPT,), -1.0, tl.float64), float("inf"))
    k = tl.zeros_like(length)
    while k < length:
        number, admissible, weight = _piece(
            k, first, length, weights, entry, last_entry, starts, behind, True, EXCLUDES, B
        )
        priority = _priorities(row_key, number, admissible, weight)
        while tl.max(priority, axis=0) > tl.min(kept, axis=0):
            best = tl.max(priority, axis=0)
            kept = tl.where(column == tl.argmin(kept, axis=0), best, kept)
            priority = tl.where(tl.arange(0, B) == tl.argmax(priority, axis=0), -1.0, priority)
        k += B
    return tl.min(kept, axis=0)


@jit
def draw_admissible(
    indptr, list_entries, vertices, known, out_starts, counts, key, weights, sums, sources, positions, targets,
    out_weights, place, edges_room, bounds, starts, behind, seeds,
    FANOUT: tl.constexpr, COLUMNS: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr,
    SUMS: tl.constexpr, EXCLUDES: tl.constexpr, KEEPS_POSITIONS: tl.constexpr, KEEPS_TARGETS: tl.constexpr,
    KEEPS_WEIGHTS: tl.constexpr, NUMBERS: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Draw for every row whose list is passed over. With SUMS longer lists are left to `draw_summed`."""
    row = tl.program_id(0)
    if row < tl.load(known):
        v, first, length, entry, last_entry = _row(row, indptr, vertices, bounds, behind, seeds, EXCLUDES)
        out = tl.load(out_starts + row)
        count = tl.load(counts + row)
        row_key = mix(tl.load(key).to(tl.uint64) ^ v.to(tl.uint64))
        passes = count > 0
        if SUMS:
            passes = passes & ((length <= SUMMED * FANOUT) | (entry != last_entry))
        if passes:
            whole = count > -1
            if FANOUT >= 0:
                whole = count <= FANOUT
                if REPLACE:
                    whole = count < 0
            by_threshold = whole
            if WEIGHTED and not REPLACE:
                by_threshold = count > 0
            if by_threshold:
                threshold = tl.zeros_like(count).to(tl.float64) - 1.0
                if FANOUT >= 0 and WEIGHTED:  # noqa: SIM102 - the outer condition is the compiler's
                    if not whole:
                        threshold = _threshold(
                            row_key, first, length, weights, entry, last_entry, starts, behind, EXCLUDES, FANOUT,
                            COLUMNS * 2, B,
                        )  # fmt: skip
                k = tl.zeros_like(length)
                while k < length:
                    number, taken, weight = _piece(
                        k, first, length, weights, entry, last_entry, starts, behind, WEIGHTED, EXCLUDES, B
                    )
                    if WEIGHTED:
                        taken = taken & (_priorities(row_key, number, taken, weight) > threshold)
                        weight = tl.maximum(weight, threshold)
                    counted = taken.to(tl.int64)
                    at = out + tl.cumsum(counted, axis=0) - counted
                    out += tl.sum(counted, axis=0)
                    _write(
                        at, taken & (at < edges_room), first + number, row, weight, list_entries, sources, positions,
                        targets, out_weights, place, KEEPS_POSITIONS, KEEPS_TARGETS, KEEPS_WEIGHTS, NUMBERS,
                    )  # fmt: skip
                    k += B
            else:
                if FANOUT >= 0:
                    sought = _sought(row_key, v, count, first, length, weights, sums, entry, last_entry, starts,
                                     behind, FANOUT, COLUMNS, REPLACE, WEIGHTED, EXCLUDES, B)  # fmt: skip
                    position = _found(sought, v, first, length, weights, sums, entry, last_entry, starts, behind,
                                      COLUMNS, WEIGHTED, EXCLUDES, B)  # fmt: skip
                    column = tl.arange(0, COLUMNS).to(tl.int64)
                    _write(
                        out + column, (column < FANOUT) & (out + column < edges_room), position, row,
                        tl.zeros((COLUMNS,), tl.float64), list_entries, sources, positions, targets, out_weights,
                        place, KEEPS_POSITIONS, KEEPS_TARGETS, False, NUMBERS,
                    )  # fmt: skip


@jit
def _write(
    at, real, position, row, weight, list_entries, sources, positions, targets, out_weights, place,
    KEEPS_POSITIONS: tl.constexpr, KEEPS_TARGETS: tl.constexpr, KEEPS_WEIGHTS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """Write drawn edges, and mark their sources if they are numbered."""
    source = tl.load(list_entries + position, mask=real, other=0)
    tl.store(sources + at, source, mask=real)
    if KEEPS_POSITIONS:
        tl.store(positions + at, position, mask=real)
    if KEEPS_TARGETS:
        tl.store(targets + at, (tl.zeros_like(at) + row).to(tl.int32), mask=real)
    if KEEPS_WEIGHTS:
        tl.store(out_weights + at, weight.to(tl.float32), mask=real)
    if NUMBERS:
        tl.atomic_min(place + source, UNNUMBERED + at.to(tl.int32), mask=real, sem="relaxed")


@jit
def _sought(
    row_key, v, count, first, length, weights, sums, entry, last_entry, starts, behind,
    FANOUT: tl.constexpr, COLUMNS: tl.constexpr, REPLACE: tl.constexpr, WEIGHTED: tl.constexpr,
    EXCLUDES: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """What each draw seeks: its number among the edges that may be drawn, or by weight a point of their mass."""
    column = tl.arange(0, COLUMNS).to(tl.int64)
    keys = tl.zeros((COLUMNS,), tl.uint64) + row_key
    many = tl.zeros((COLUMNS,), tl.int64) + count
    bits = mix(keys + (column + 1).to(tl.uint64) * _STEP)
    if WEIGHTED:
        scale = mass_scale(tl.load(sums + v))
        total = tl.zeros_like(length)
        k = tl.zeros_like(length)
        while k < length:
            _, admissible, weight = _piece(
                k, first, length, weights, entry, last_entry, starts, behind, True, EXCLUDES, B
            )
            total += tl.sum(tl.where(admissible, mass_of(weight, scale), 0), axis=0)
            k += B
        return tl.umulhi(bits, tl.zeros_like(bits) + total.to(tl.uint64)).to(tl.int64)
    if REPLACE:
        return (((bits >> 32) * many.to(tl.uint64)) >> 32).to(tl.int64)
    if FANOUT <= SCANNED:
        one = tl.zeros((1,), tl.uint64) + row_key
        chosen = choose_columns(one, tl.zeros((1,), tl.int64) + count, tl.arange(0, COLUMNS), FANOUT, COLUMNS, False, 1)
        return tl.reshape(chosen, (COLUMNS,))
    some = many <= PERMUTED * FANOUT
    drawn = permuted(keys, column, many, (column < FANOUT) & (some == 0))
    return tl.where(some, selected(keys, column, many, (column < FANOUT) & some, FANOUT), drawn)


@jit
def _found(
    sought, v, first, length, weights, sums, entry, last_entry, starts, behind,
    COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr, EXCLUDES: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The positions of edges that hold what is sought: a number among those that may be drawn, or a point of mass."""
    scale = tl.zeros_like(length).to(tl.float64)
    if WEIGHTED:
        scale = mass_scale(tl.load(sums + v))
    position = tl.zeros((COLUMNS,), tl.int64)
    before = tl.zeros_like(length)
    k = tl.zeros_like(length)
    while k < length:
        number, admissible, weight = _piece(
            k, first, length, weights, entry, last_entry, starts, behind, WEIGHTED, EXCLUDES, B
        )
        size = admissible.to(tl.int64)
        if WEIGHTED:
            size = tl.where(admissible, mass_of(weight, scale), 0)
        stop = before + tl.cumsum(size, axis=0)
        here = (sought[:, None] < stop[None, :]) & (sought[:, None] >= (stop - size)[None, :])
        position += tl.sum(tl.where(here, (first + number)[None, :], 0), axis=1)
        before += tl.sum(size, axis=0)
        k += B
    return position


# Long lists by running masses (`weighted_draws.choose_by_sums`).


@jit
def exponential(bits):
    """An exponential variate from random bits, the same as the host's `weighted_draws.exponential`."""
    u = ((bits >> 11) + 1).to(tl.float64) * _TO_UNIT
    halvings = tl.zeros_like(u)
    while tl.sum((u <= _ROOT).to(tl.int32)) > 0:
        small = u <= _ROOT
        u = tl.where(small, u * 2.0, u)
        halvings += small.to(tl.float64)
    s = (1.0 - u) / (1.0 + u)
    z = s * s
    series = z * (z * (z * (z * (z * (z * _ODD_5 + _ODD_4) + _ODD_3) + _ODD_2) + _ODD_1) + _ODD_0)
    return halvings * _LOG_2 + 2.0 * (s + s * series)


@jit
def chance_below(x):
    """The chance that an exponential variate is below x, the same as the host's `weighted_draws.chance_below`."""
    y = tl.minimum(x, 40.0) * 0.015625
    chance = y * (1.0 - y * (y * (y * (y * (y * _PART_4 - _PART_3) + _PART_2) - _PART_1) + _PART_0))
    for _ in tl.static_range(6):
        chance = chance * (2.0 - chance)
    return chance


@jit
def _find_mass(sought, first, last, live, weights, scale, running, DEPTH: tl.constexpr):
    """`weighted_draws._find_mass`: positions, and the mass before each."""
    low = first // SPACING
    high = (last - 1) // SPACING
    for _ in range(DEPTH):
        middle = (low + high + 1) // 2
        open_still = live & (low < high)
        passed = tl.load(running + middle, mask=open_still, other=0) <= sought
        high = tl.where(open_still & (passed == 0), middle - 1, high)
        low = tl.where(open_still & passed, middle, low)
    inside = low * SPACING > first
    position = tl.where(inside, low * SPACING, first)
    before = tl.where(inside, tl.load(running + low, mask=live, other=0), 0)
    walking = live
    for _ in range(SPACING):
        walking = walking & (position < last - 1)
        here = mass_of(tl.load(weights + position, mask=walking, other=0).to(tl.float64), scale)
        walking = walking & (before + here <= sought)
        before += tl.where(walking, here, 0)
        position += walking.to(tl.int64)
    return position, before


@jit
def draw_summed(
    indptr, list_entries, vertices, known, out_starts, key, weights, sums, running, sources, positions, targets,
    out_weights, place, edges_room, bounds, starts, behind, seeds,
    FANOUT: tl.constexpr, COLUMNS: tl.constexpr, REPLACE: tl.constexpr, EXCLUDES: tl.constexpr,
    KEEPS_POSITIONS: tl.constexpr, KEEPS_TARGETS: tl.constexpr, NUMBERS: tl.constexpr, DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Draw for the rows whose lists are long and have no excluded edge."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    held = row < tl.load(known)
    v = tl.load(vertices + row, mask=held, other=0).to(tl.int64)
    first = tl.load(indptr + v, mask=held, other=0)
    last = tl.load(indptr + v + 1, mask=held, other=0)
    live = held & (last - first > SUMMED * FANOUT)
    if EXCLUDES:
        entry, last_entry, _ = excluded(row, bounds, behind, seeds)
        live = live & (entry == last_entry)
    if tl.sum(live.to(tl.int32)) > 0:
        scale = mass_scale(tl.load(sums + v, mask=live, other=1))
        left = _total_mass(first, last, live, weights, scale, running)
        row_key = mix(tl.load(key).to(tl.uint64) ^ v.to(tl.uint64))
        column = tl.arange(0, COLUMNS)[None, :]
        found = tl.zeros((ROWS, COLUMNS), tl.int64)
        masses = tl.zeros((ROWS, COLUMNS), tl.int64)
        below = tl.full((ROWS, COLUMNS), 1 << 62, tl.int64)
        rank = tl.zeros((ROWS,), tl.float64)
        taken = tl.zeros((ROWS,), tl.int32)
        for number in range(FANOUT):
            drawing = live & (left > 0)
            counter = tl.full((ROWS,), number, tl.uint64)
            if REPLACE:
                bits = mix(row_key + (counter + 1) * _STEP)
            else:
                spent = exponential(mix(row_key + (counter * 2 + 1) * _STEP)) / tl.maximum(left, 1).to(tl.float64)
                rank = tl.where(drawing, rank + spent, rank)
                bits = mix(row_key + (counter * 2 + 2) * _STEP)
            sought = tl.umulhi(bits, tl.maximum(left, 1).to(tl.uint64)).to(tl.int64)
            if not REPLACE:
                sought = _skip_taken(sought, below, masses)
            position, before = _find_mass(sought, first, last, drawing, weights, scale, running, DEPTH)
            here = mass_of(tl.load(weights + position, mask=drawing, other=0).to(tl.float64), scale)
            now = (column == number) & drawing[:, None]
            found = tl.where(now, position[:, None], found)
            masses = tl.where(now, here[:, None], masses)
            below = tl.where(now, before[:, None], below)
            taken += drawing.to(tl.int32)
            if not REPLACE:
                left -= tl.where(drawing, here, 0)
        real = column < taken[:, None]
        place_in_row = tl.broadcast_to(column, (ROWS, COLUMNS))
        weight = tl.zeros((ROWS, COLUMNS), tl.float64)
        if not REPLACE:
            last_lot = mix(row_key + (tl.full((ROWS,), 2 * FANOUT + 1, tl.uint64)) * _STEP)
            rank += exponential(last_lot) / tl.maximum(left, 1).to(tl.float64)
            place_in_row = tl.zeros((ROWS, COLUMNS), tl.int32)
            for other in range(FANOUT):
                there = tl.sum(tl.where(column == other, found, 0), axis=1)
                smaller = (there[:, None] < found) & (other < taken)[:, None]
                place_in_row += smaller.to(tl.int32)
            weight = tl.load(weights + found, mask=real, other=0).to(tl.float64)
            chance = chance_below(masses.to(tl.float64) * rank[:, None])
            weight = weight / tl.where(real & (left > 0)[:, None], chance, 1.0)
        at = tl.load(out_starts + row, mask=held, other=0)[:, None] + place_in_row
        rows = tl.broadcast_to(row[:, None], (ROWS, COLUMNS))
        _write(
            at, real & (at < edges_room), found, rows, weight, list_entries, sources, positions, targets,
            out_weights, place, KEEPS_POSITIONS, KEEPS_TARGETS, not REPLACE, NUMBERS,
        )  # fmt: skip


@jit
def _total_mass(first, last, live, weights, scale, running):
    """The mass of whole lists: the last running mass, and what follows it."""
    behind = (last - 1) // SPACING * SPACING
    inside = live & (behind > first)
    total = tl.load(running + behind // SPACING, mask=inside, other=0)
    begin = tl.where(inside, behind, first)
    for k in range(SPACING):
        there = live & (begin + k < last)
        total += mass_of(tl.load(weights + begin + k, mask=there, other=0).to(tl.float64), scale)
    return total


@jit
def _skip_taken(sought, below, masses):
    """A point of the mass that is left as a point of the whole mass: drawn edges before it are skipped."""
    moved = sought
    again = tl.sum(tl.where(below <= moved[:, None], masses, 0), axis=1) + sought
    while tl.sum((again != moved).to(tl.int32)) > 0:
        moved = again
        again = tl.sum(tl.where(below <= moved[:, None], masses, 0), axis=1) + sought
    return moved


@jit
def scale_weights(
    indptr, vertices, out_indptr, edges, positions, weights, out_weights, rows_room, bounds, starts, behind, seeds,
    EXCLUDES: tl.constexpr, DEPTH: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Estimator weights of edges that were drawn uniformly: weight * admissible / drawn."""
    e = tl.program_id(0) * B + tl.arange(0, B)
    held = e < tl.load(edges)
    row = row_of(out_indptr, e, rows_room, DEPTH)
    v = tl.load(vertices + row, mask=held, other=0).to(tl.int64)
    length = tl.load(indptr + v + 1, mask=held, other=0) - tl.load(indptr + v, mask=held, other=0)
    if EXCLUDES:
        length -= excluded(row, bounds, behind, seeds)[2]
    drawn = tl.load(out_indptr + row + 1, mask=held, other=1) - tl.load(out_indptr + row, mask=held, other=0)
    share = length.to(tl.float32).to(tl.float64) / tl.maximum(drawn, 1).to(tl.float64)
    weight = tl.load(weights + tl.load(positions + e, mask=held, other=0), mask=held, other=0).to(tl.float64)
    tl.store(out_weights + e, (weight * share.to(tl.float32).to(tl.float64)).to(tl.float32), mask=held)
