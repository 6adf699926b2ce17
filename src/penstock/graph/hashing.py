"""Random choices from a counter-based hash, so that no result depends on threads or on order.

Every draw is a pure function of a seed and of what it is for (a vertex, a position, a round). Nothing here keeps state.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
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


@njit(nogil=True, cache=True, inline="always")
def below(bits: np.uint64, bound: int) -> int:
    """64 random bits as an integer in [0, bound); the bias is below bound / 2^53."""
    return int(unit(bits) * bound)


def key_of(seed: int, purpose: str) -> np.uint64:
    """A stream of its own for each purpose under one seed."""
    value = seed & 0xFFFFFFFFFFFFFFFF
    for byte in purpose.encode():
        value = _mix_plain(value ^ byte)
    return np.uint64(value)


def keys_of(seed: int, before: str, numbers: int, after: str) -> Array:
    """`key_of(seed, f"{before}{number}{after}")` of every number below `numbers`, as uint64."""
    out = np.empty(numbers, np.uint64)
    _continue_keys(key_of(seed, before), np.frombuffer(after.encode(), np.uint8), out)
    return out


@njit(nogil=True, cache=True)
def _continue_keys(value: np.uint64, after: Array, out: Array) -> None:
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
    """`mix` after adding the golden step, in Python integers, for keys made outside kernels."""
    mask = 0xFFFFFFFFFFFFFFFF
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


@njit(nogil=True, cache=True)
def unit_draws(key: np.uint64, start: int, out: np.ndarray) -> None:
    """Fill `out[i]` with the uniform draw of counter `start + i`."""
    for i in range(out.shape[0]):
        out[i] = unit(draw(key, np.uint64(start + i)))
