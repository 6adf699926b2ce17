"""Kernels of a batch of triples on a GPU: entities that replace an end are drawn, and true triples are marked.

A triple is looked up by one number, (relation * entities + kept end) * entities + entity, in a sorted array of the true
ones. Draws are those of `penstock.sampling.triples.negatives`, bit for bit.
"""

import triton
import triton.language as tl

from penstock.sampling.device.kernels import mix

_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_TO_UNIT = tl.constexpr(1.0 / (1 << 53))


@triton.jit
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
    """Entities [groups, k] that stand against the triples of a group: what counts for none of them is drawn again.

    `queries` are the triples' numbers with entity 0, `own` the ends that are replaced, `total` how many triples the
    batch has. `sums` are sums of the entities' weights.
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
                clashes = clashes | _is_known(tl.load(queries + i) + found, known, known_count, DEPTH, B)
            useless = tl.where(clashes, useless, 0)
            i += 1
        attempt += 1
    tl.store(drawn + g.to(tl.int64) * k + j, found, mask=inside)


@triton.jit
def _is_known(sought, known, count, DEPTH: tl.constexpr, B: tl.constexpr):
    """Whether each number is in a sorted array."""
    left = tl.zeros((B,), tl.int64)
    right = left + count
    for _ in range(DEPTH):
        middle = (left + right) // 2
        open_still = left < right
        below = tl.load(known + middle, mask=open_still, other=0) < sought
        left = tl.where(open_still & below, middle + 1, left)
        right = tl.where(open_still, tl.where(below, right, middle), right)
    return (left < count) & (tl.load(known + left, mask=left < count, other=-1) == sought)


@triton.jit
def _weighted(unit, sums, entities, DEPTH: tl.constexpr, B: tl.constexpr):
    """The entity at a share of the sum of all weights."""
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


@triton.jit
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
