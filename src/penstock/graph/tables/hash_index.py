"""Kernels of the id index: open addressing with linear probing over ids kept as they were given.

A slot is 0 when free, else 24 bits of the id's hash above 40 bits of its number plus one. The bits of hash
only save comparisons: an id is found when its bytes are equal, never because its hash is.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.kernels import njit

_ONE, _EIGHT, _S32, _S40 = np.uint64(1), np.uint64(8), np.uint64(32), np.uint64(40)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NUMBER = np.uint64((1 << 40) - 1)

# Hashes are computed, and first slots read, for this many ids before any is compared: the CPU then has many reads in
# flight instead of one after the other, which halves the time of a lookup.
_GROUP = 64


@njit(nogil=True, cache=True)
def find_strings(
    offsets: Array,
    data: Array,
    slots: Array,
    known_offsets: Array,
    known_data: Array,
    first: int,
    last: int,
    out: Array,
) -> None:
    """`out[i]`: the number of string i, or -1, for i in [first, last)."""
    mask = np.uint64(slots.shape[0] - 1)
    hashes = np.empty(_GROUP, np.uint64)
    first_slots = np.empty(_GROUP, np.uint64)
    for base in range(first, last, _GROUP):
        size = min(_GROUP, last - base)
        for j in range(size):
            start, length = _bounds(offsets, base + j)
            hashes[np.uint64(j)] = _hash_bytes(data, start, length)
        for j in range(size):
            first_slots[np.uint64(j)] = slots[hashes[np.uint64(j)] & mask]
        for j in range(size):
            start, length = _bounds(offsets, base + j)
            hashed, slot = hashes[np.uint64(j)], first_slots[np.uint64(j)]
            position = hashed & mask
            while slot != 0:
                if slot >> _S40 == hashed >> _S40:
                    known, known_length = _bounds(known_offsets, (slot & _NUMBER) - _ONE)
                    if known_length == length and _same_bytes(data, start, known_data, known, length):
                        break
                position = (position + _ONE) & mask
                slot = slots[position]
            out[np.uint64(base + j)] = _number(slot)


@njit(nogil=True, cache=True)
def add_strings(
    offsets: Array, data: Array, slots: Array, known_offsets: Array, known_data: Array, count: int, out: Array
) -> int:
    """`out[i]`: the number of string i, which is added when new. Returns how many ids there are then."""
    mask = np.uint64(slots.shape[0] - 1)
    for i in range(out.shape[0]):
        start, length = _bounds(offsets, i)
        hashed = _hash_bytes(data, start, length)
        position = hashed & mask
        slot = slots[position]
        while slot != 0:
            if slot >> _S40 == hashed >> _S40:
                known, known_length = _bounds(known_offsets, (slot & _NUMBER) - _ONE)
                if known_length == length and _same_bytes(data, start, known_data, known, length):
                    break
            position = (position + _ONE) & mask
            slot = slots[position]
        if slot == 0:
            end = np.uint64(known_offsets[count])
            for k in range(length):
                known_data[end + np.uint64(k)] = data[start + np.uint64(k)]
            known_offsets[count + 1] = end + length
            slot = slots[position] = _slot(hashed, count)
            count += 1
        out[i] = _number(slot)
    return count


@njit(nogil=True, cache=True)
def place_strings(known_offsets: Array, known_data: Array, count: int, slots: Array) -> None:
    """Fill empty slots with ids that are all different."""
    mask = np.uint64(slots.shape[0] - 1)
    for number in range(count):
        start, length = _bounds(known_offsets, number)
        hashed = _hash_bytes(known_data, start, length)
        position = hashed & mask
        while slots[position] != 0:
            position = (position + _ONE) & mask
        slots[position] = _slot(hashed, number)


@njit(nogil=True, cache=True)
def find_integers(keys: Array, slots: Array, known: Array, first: int, last: int, out: Array) -> None:
    """`out[i]`: the number of integer i, or -1, for i in [first, last)."""
    mask = np.uint64(slots.shape[0] - 1)
    for row in range(first, last):
        i = np.uint64(row)
        position = mix(np.uint64(keys[i])) & mask
        slot = slots[position]
        while slot != 0 and known[(slot & _NUMBER) - _ONE] != keys[i]:
            position = (position + _ONE) & mask
            slot = slots[position]
        out[i] = _number(slot)


@njit(nogil=True, cache=True)
def add_integers(keys: Array, slots: Array, known: Array, count: int, out: Array) -> int:
    """`out[i]`: the number of integer i, which is added when new. Returns how many ids there are then."""
    mask = np.uint64(slots.shape[0] - 1)
    for i in range(out.shape[0]):
        hashed = mix(np.uint64(keys[i]))
        position = hashed & mask
        slot = slots[position]
        while slot != 0 and known[(slot & _NUMBER) - _ONE] != keys[i]:
            position = (position + _ONE) & mask
            slot = slots[position]
        if slot == 0:
            known[count] = keys[i]
            slot = slots[position] = _slot(hashed, count)
            count += 1
        out[i] = _number(slot)
    return count


@njit(nogil=True, cache=True)
def place_integers(known: Array, count: int, slots: Array) -> None:
    """Fill empty slots with ids that are all different."""
    mask = np.uint64(slots.shape[0] - 1)
    for number in range(count):
        hashed = mix(np.uint64(known[number]))
        position = hashed & mask
        while slots[position] != 0:
            position = (position + _ONE) & mask
        slots[position] = _slot(hashed, number)


# The functions below are inlined: as calls they would cost more than they do. The probe itself is written out where it
# is used: Numba counts references to arrays that pass through two inlined functions, which takes four times as long as
# the lookup.


@njit(nogil=True, cache=True, inline="always")
def _slot(hashed: np.uint64, number: int) -> np.uint64:
    return ((hashed >> _S40) << _S40) | np.uint64(number + 1)


@njit(nogil=True, cache=True, inline="always")
def _number(slot: np.uint64) -> np.int64:
    """The number of the id in a slot, -1 when it is free."""
    return np.int64(slot & _NUMBER) - np.int64(1)


@njit(nogil=True, cache=True, inline="always")
def _bounds(offsets: Array, i: int) -> tuple[np.uint64, np.uint64]:
    """Where a string starts and how long it is; unsigned, so that no index is checked for being negative."""
    start = np.uint64(offsets[np.uint64(i)])
    return start, np.uint64(offsets[np.uint64(i) + _ONE]) - start


@njit(nogil=True, cache=True, inline="always")
def _hash_bytes(data: Array, start: np.uint64, length: np.uint64) -> np.uint64:
    hashed = length * _GOLDEN
    if length >= _EIGHT:
        position, last = start, start + length - _EIGHT
        while position < last:
            hashed = _fold(hashed, _word(data, position))
            position += _EIGHT
        hashed = _fold(hashed, _word(data, last))
    else:
        word = np.uint64(0)
        for k in range(length):
            word = (word << _EIGHT) | np.uint64(data[start + np.uint64(k)])
        hashed = _fold(hashed, word)
    return mix(hashed)


@njit(nogil=True, cache=True, inline="always")
def _same_bytes(data: Array, start: np.uint64, known: Array, known_start: np.uint64, length: np.uint64) -> bool:
    same = True
    if length >= _EIGHT:
        k, last = np.uint64(0), length - _EIGHT
        while same and k < last:
            same = _word(data, start + k) == _word(known, known_start + k)
            k += _EIGHT
        same = same and _word(data, start + last) == _word(known, known_start + last)
    else:
        for j in range(length):
            same = same and data[start + np.uint64(j)] == known[known_start + np.uint64(j)]
    return same


@njit(nogil=True, cache=True, inline="always")
def _word(data: Array, at: np.uint64) -> np.uint64:
    """Eight bytes as one number: the compiler makes one unaligned read of it."""
    low = (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
    )
    high = (
        np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
    )
    return low | high


@njit(nogil=True, cache=True, inline="always")
def _fold(hashed: np.uint64, word: np.uint64) -> np.uint64:
    hashed = (hashed ^ word) * _GOLDEN
    return hashed ^ (hashed >> _S32)
