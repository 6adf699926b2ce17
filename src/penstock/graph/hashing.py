"""Random choices from a counter-based hash, so that no result depends on threads or on order.

Every draw is a pure function of a seed and of what it is for (a vertex, a position, a round). Nothing here keeps state.
"""

from typing import Final

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_S32, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_TO_UNIT = 1.0 / (1 << 53)


@njit(nogil=True, cache=True, inline="always")
def mix(value: np.uint64) -> np.uint64:
    """A bijection on 64 bits in which every input bit moves every output bit (SplitMix64's finaliser)."""
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@njit(nogil=True, cache=True, inline="always")
def draw(key: np.uint64, counter: np.uint64) -> np.uint64:
    """The `counter`-th 64 random bits of the stream named by `key`."""
    return mix(mix(key + _GOLDEN) ^ (counter * _GOLDEN))


@njit(nogil=True, cache=True, inline="always")
def unit(bits: np.uint64) -> float:
    """64 random bits as a float in [0, 1)."""
    return float(bits >> _S11) * _TO_UNIT


@njit(nogil=True, cache=True)
def share_of(bits: np.uint64, total: np.uint64) -> np.uint64:
    """64 random bits as a whole number below `total`: the upper half of their product."""
    low = (bits & _LOW) * (total & _LOW)
    middle = (bits >> _S32) * (total & _LOW) + (low >> _S32)
    other = (bits & _LOW) * (total >> _S32) + (middle & _LOW)
    return (bits >> _S32) * (total >> _S32) + (middle >> _S32) + (other >> _S32)


@njit(nogil=True, cache=True, inline="always")
def below(bits: np.uint64, bound: int) -> int:
    """64 random bits as an integer in [0, bound); the bias is below bound / 2^53."""
    return int(unit(bits) * bound)


DRAWS: Final = 3
"""The version of draws of new runs; run folders and checkpoints record theirs (`draws` of a job). Versions 2 and 3 have
the same keys; samplers say which of their draws version 3 has defined anew (`SamplerEntry.is_redefined`).
"""


def seed_of(seed: int, draws: int) -> int:
    """A user's seed as `key_of` takes it: itself, and for draws of version 1 its complement, which is negative."""
    return ~seed if draws == 1 else seed


def key_of(seed: int, purpose: str, *fields: str | int) -> np.uint64:
    """A separate random stream for each purpose under one seed; `purpose` has a `{}` for every field.

    The seed is mixed before anything else, and texts follow their lengths, so that no two seeds and no two lists of
    fields give related keys. Version 1 (a negative seed, see `seed_of`) hashed the characters of the purpose onto the
    seed itself: where a purpose began with the epoch, small seeds shared their batches.
    """
    if seed < 0:
        return np.uint64(_absorb(~seed & _MASK, purpose.format(*fields).encode()))
    value = _absorb_text(_mix_plain(seed & _MASK), purpose)
    for each in fields:
        value = _absorb_text(value, each) if isinstance(each, str) else _absorb_number(value, each)
    return np.uint64(value)


def document_key(seed: int, purpose: str, *fields: str | int) -> np.uint64:
    """The key of what a seed identifies in scripts and papers: a synthetic graph, a numbered split, candidates of a
    ranking.

    It is of version 1 in every release, so that the same number stays the same graph. Its purposes begin with different
    letters, and so seeds share nothing.
    """
    return key_of(seed_of(seed, 1), purpose, *fields)


def seed_for(seed: int, purpose: str, *fields: str | int) -> int:
    """A derived seed for a purpose, with the version of draws of `seed`; below 2**52, so that JSON keeps it."""
    own = int(key_of(seed, purpose, *fields)) >> 12
    return own if seed >= 0 else ~own


def keys_of(seed: int, purpose: str, before: int, numbers: int, after: str) -> Array:
    """`key_of(seed, purpose, before, number, after)` of every number below `numbers`, as uint64."""
    out = np.empty(numbers, np.uint64)
    if seed < 0:
        head, _, tail = purpose.format(before, "\0", after).partition("\0")
        _continue_first_keys(key_of(seed, head), np.frombuffer(tail.encode(), np.uint8), out)
    else:
        _continue_keys(key_of(seed, purpose, before), np.frombuffer(after.encode(), np.uint8), out)
    return out


_MASK = 0xFFFFFFFFFFFFFFFF
_NUMBER = np.uint64(_MASK)
"""Marks a number of 64 bits where a text has its length."""


def _absorb(value: int, text: bytes) -> int:
    for byte in text:
        value = _mix_plain(value ^ byte)
    return value


def _absorb_text(value: int, text: str) -> int:
    encoded = text.encode()
    return _absorb(_mix_plain(value ^ len(encoded)), encoded)


def _absorb_number(value: int, number: int) -> int:
    return _mix_plain(_mix_plain(value ^ _MASK) ^ (number & _MASK))


@njit(nogil=True, cache=True)
def _continue_keys(value: np.uint64, after: Array, out: Array) -> None:
    """Absorb each number, and then a text, as `key_of` does."""
    value = mix((value ^ _NUMBER) + _GOLDEN)
    for number in range(out.shape[0]):
        key = mix((value ^ np.uint64(number)) + _GOLDEN)
        key = mix((key ^ np.uint64(after.shape[0])) + _GOLDEN)
        for k in range(after.shape[0]):
            key = mix((key ^ np.uint64(after[k])) + _GOLDEN)
        out[number] = key


@njit(nogil=True, cache=True)
def _continue_first_keys(value: np.uint64, after: Array, out: Array) -> None:
    """The same for draws of version 1, whose numbers are written out in digits."""
    digits = np.empty(20, np.uint8)
    for number in range(out.shape[0]):
        key, rest, used = value, number, 0
        while used == 0 or rest > 0:
            digits[used] = ord("0") + rest % 10
            rest //= 10
            used += 1
        for k in range(used - 1, -1, -1):
            key = mix((key ^ np.uint64(digits[k])) + _GOLDEN)
        for k in range(after.shape[0]):
            key = mix((key ^ np.uint64(after[k])) + _GOLDEN)
        out[number] = key


def _mix_plain(value: int) -> int:
    """`mix` after adding the golden-ratio step, in Python integers, for keys made outside kernels."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@njit(nogil=True, cache=True)
def unit_draws(key: np.uint64, count: int, start: int = 0) -> Array:
    """The uniform draws of the counters `start`, `start + 1`, ..., so many, as float64."""
    out = np.empty(count)
    for i in range(count):
        out[i] = unit(draw(key, np.uint64(start + i)))
    return out
