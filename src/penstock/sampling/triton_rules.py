"""Rules of samplers as a GPU computes them, in Triton: each is the twin of a kernel in the sampler's own module.

A rule that keeps entries of lists is called with the hop's key, the source of each entry, the length of the list it is
in, which entries there are, three tables of the program, and the fan-out; one that weighs them with the source, the
length, the position in the graph's lists, which entries there are, the tables and the fan-out.
"""

import triton.language as tl

from penstock.gpu_kernels import jit
from penstock.sampling.device.kernels import UNNUMBERED
from penstock.sampling.device.list_kernels import draw_bits

_SCALE = tl.constexpr(float(1 << 53))


@jit
def keep_shared(key, source, length, held, table_a, table_b, table_c, FANOUT: tl.constexpr):
    """`labor.draw_shared`: the first 53 bits of the source's number against a chance, which both sides round alike."""
    if FANOUT < 0:
        return held
    bits = (draw_bits(key, source.to(tl.uint64)) >> 11).to(tl.float64)
    chance = tl.full(length.shape, FANOUT, tl.float64) / tl.maximum(length, 1).to(tl.float64)
    return (length <= FANOUT) | (bits < chance * _SCALE)


@jit
def weigh_shared(source, length, position, held, table_a, table_b, table_c, FANOUT: tl.constexpr):
    """One over the chance of an edge, rounded as float32 is."""
    if FANOUT < 0:
        return tl.full(length.shape, 1.0, tl.float32)
    return tl.maximum(tl.math.div_rn(length.to(tl.float32), tl.full(length.shape, FANOUT, tl.float32)), 1.0)


@jit
def keep_drawn(key, source, length, held, times, running, total, FANOUT: tl.constexpr):
    """`layerwise._link`: edges from vertices that were drawn."""
    return tl.load(times + source, mask=held, other=0) > 0


@jit
def weigh_drawn(source, length, position, held, times, running, total, FANOUT: tl.constexpr):
    """`layerwise.FastGCN`: times drawn / times expected, by the step of the running sums."""
    drawn = tl.load(times + source, mask=held, other=1).to(tl.float64)
    below = tl.load(running + source - 1, mask=held & (source > 0), other=0.0)
    chance = (tl.load(running + source, mask=held, other=1.0) - below) / tl.load(total)
    return (drawn / (FANOUT * chance)).to(tl.float32)


@jit
def keep_important(key, source, length, held, times, mass, layer, FANOUT: tl.constexpr):
    """`layerwise.Ladies`: edges from vertices that were drawn, or all where there are few."""
    return (tl.load(layer) <= FANOUT) | (tl.load(times + source, mask=held, other=0) > 0)


@jit
def weigh_important(source, length, position, held, times, mass, layer, FANOUT: tl.constexpr):
    """Times drawn / times expected, by mass."""
    drawn = tl.load(times + source, mask=held, other=1).to(tl.float64)
    expected = FANOUT * tl.load(mass + source, mask=held, other=1).to(tl.float64) / tl.load(layer + 1).to(tl.float64)
    return tl.where(tl.load(layer) <= FANOUT, 1.0, (drawn / expected).to(tl.float32))


@jit
def keep_inside(key, source, length, held, place, weights, table_c, FANOUT: tl.constexpr):
    """`induced._induce_lists`: edges from vertices of the batch."""
    return tl.load(place + source, mask=held, other=UNNUMBERED) < UNNUMBERED


@jit
def weigh_inside(source, length, position, held, place, weights, table_c, FANOUT: tl.constexpr):
    """The weight that `saint.Saint` gives an edge in every subgraph."""
    return tl.load(weights + position, mask=held, other=1.0)
