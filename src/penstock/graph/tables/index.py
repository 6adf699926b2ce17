"""From ids to vertex numbers: an index in memory, which several threads read."""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import pyarrow as pa

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.graph.ids import Ids, StringIds
from penstock.kernels import njit
from penstock.processes import run_blocks

IdKind = Literal["string", "integer"]

_BLOCK_ROWS = 1 << 15
_FIRST_SLOTS = 1 << 10
_ID_BYTES = 32
"""What an id takes beside its bytes: up to three slots and an offset or the integer itself."""


class IdIndex(ABC):
    """Ids of one kind, numbered in order of arrival."""

    kind: IdKind
    count = 0

    @property
    def is_counting(self) -> bool:
        """Whether the ids are 0, 1, 2, ... so far."""
        return False

    @abstractmethod
    def find(self, ids: pa.Array) -> Array:
        """The number of every id, -1 for unknown ones. Runs on several threads."""

    @abstractmethod
    def add(self, ids: pa.Array) -> Array:
        """The number of every id; new ones are added at the end."""

    @abstractmethod
    def size_with(self, ids: pa.Array) -> int:
        """The bytes that the index takes at most once these ids are added."""

    @abstractmethod
    def some(self, start: int, stop: int) -> pa.Array:
        """The ids of vertices [start, stop)."""

    @abstractmethod
    def ids(self) -> Ids | None:
        """All ids by vertex number, or None where they are 0..n-1."""


def new_index(kind: IdKind) -> IdIndex:
    """An empty index for ids of this kind."""
    return StringIndex() if kind == "string" else IntegerIndex()


def counted_index(count: int) -> IdIndex:
    """An index of the ids 0, 1, ..., count - 1."""
    index = IntegerIndex()
    index.count = count
    return index


class StringIndex(IdIndex):
    """Strings, kept as one run of bytes and offsets."""

    kind: IdKind = "string"

    def __init__(self) -> None:
        self._slots = np.zeros(_FIRST_SLOTS, np.uint64)
        self._offsets = np.zeros(1, np.int64)
        self._data = np.empty(0, np.uint8)

    def find(self, ids: pa.Array) -> Array:
        """The vertex numbers of ids; each distinct string of a dictionary-encoded array is looked up once."""
        if pa.types.is_dictionary(ids.type):
            numbers: Array = self.find(ids.dictionary)[ids.indices.to_numpy()]
            return numbers
        offsets, data = _string_buffers(ids)
        out = np.empty(len(ids), np.int64)

        def work(first: int, last: int) -> None:
            find_strings(offsets, data, self._slots, self._offsets, self._data, first, last, out)

        run_blocks(work, len(ids), _BLOCK_ROWS)
        return out

    def add(self, ids: pa.Array) -> Array:
        """Strings are added in their order in the array, so a dictionary is decoded first."""
        if pa.types.is_dictionary(ids.type):
            ids = ids.dictionary_decode()
        offsets, data = _string_buffers(ids)
        self._reserve(len(ids), int(offsets[-1]) - int(offsets[0]))
        out = np.empty(len(ids), np.int64)
        self.count = add_strings(offsets, data, self._slots, self._offsets, self._data, self.count, out)
        return out

    def size_with(self, ids: pa.Array) -> int:
        """Bytes at most, were all ids new."""
        return _ID_BYTES * (self.count + len(ids)) + int(self._offsets[self.count]) + int(ids.nbytes)

    def some(self, start: int, stop: int) -> pa.Array:
        """The ids of vertices [start, stop)."""
        first, last = self._offsets[start], self._offsets[stop]
        return StringIds(self._offsets[start : stop + 1] - first, self._data[first:last]).to_arrow()

    def ids(self) -> Ids | None:
        """All ids by vertex number."""
        return StringIds(self._offsets[: self.count + 1], self._data[: self._offsets[self.count]])

    def _reserve(self, rows: int, size: int) -> None:
        self._offsets = _grown(self._offsets, self.count + rows + 1)
        self._data = _grown(self._data, int(self._offsets[self.count]) + size)
        slots = _enough_slots(self._slots, self.count + rows)
        if slots is not self._slots:
            place_strings(self._offsets, self._data, self.count, slots)
            self._slots = slots


class IntegerIndex(IdIndex):
    """Integers. As long as they are 0, 1, 2, ... in order nothing is stored and nothing looked up."""

    kind: IdKind = "integer"

    def __init__(self) -> None:
        self._counting = True
        self._slots = np.zeros(_FIRST_SLOTS, np.uint64)
        self._known = np.empty(0, np.int64)

    @property
    def is_counting(self) -> bool:
        """Whether the ids are 0, 1, 2, ... so far."""
        return self._counting

    def find(self, ids: pa.Array) -> Array:
        """int64 numbers of int64 ids."""
        keys = _integers(ids)
        if self._counting:
            return np.where((keys >= 0) & (keys < self.count), keys, -1)
        out = np.empty(len(keys), np.int64)

        def work(first: int, last: int) -> None:
            find_integers(keys, self._slots, self._known, first, last, out)

        run_blocks(work, len(keys), _BLOCK_ROWS)
        return out

    def add(self, ids: pa.Array) -> Array:
        """int64 numbers of int64 ids."""
        keys = _integers(ids)
        if self._counting:
            if self._counts_on(keys):
                self.count += len(keys)
                return keys
            self._stop_counting()
        self._reserve(len(keys))
        out = np.empty(len(keys), np.int64)
        self.count = add_integers(keys, self._slots, self._known, self.count, out)
        return out

    def size_with(self, ids: pa.Array) -> int:
        """Bytes at most, were all ids new; none as long as they count on."""
        if self._counting and self._counts_on(_integers(ids)):
            return 0
        return _ID_BYTES * (self.count + len(ids))

    def some(self, start: int, stop: int) -> pa.Array:
        """The ids of vertices [start, stop)."""
        return pa.array(np.arange(start, stop) if self._counting else self._known[start:stop])

    def ids(self) -> Ids | None:
        """All ids by vertex number, or None where they are 0..n-1."""
        known = self._known[: self.count]
        return None if self._counting or np.array_equal(known, np.arange(self.count)) else known

    def _counts_on(self, keys: Array) -> bool:
        return np.array_equal(keys, np.arange(self.count, self.count + len(keys)))

    def _stop_counting(self) -> None:
        self._counting = False
        self._known = np.arange(self.count)
        self._slots = _enough_slots(self._slots, self.count)
        place_integers(self._known, self.count, self._slots)

    def _reserve(self, rows: int) -> None:
        self._known = _grown(self._known, self.count + rows)
        slots = _enough_slots(self._slots, self.count + rows)
        if slots is not self._slots:
            place_integers(self._known, self.count, slots)
            self._slots = slots


def _string_buffers(strings: pa.Array) -> tuple[Array, Array]:
    """Offsets and bytes of an Arrow string array, uncopied and read-only (one compiled kernel serves all)."""
    wide = pa.types.is_large_string(strings.type)
    _, offsets_buffer, data_buffer = strings.buffers()
    if len(strings) == 0 or offsets_buffer is None:
        return _frozen(np.zeros(1, np.int64)), _frozen(np.empty(0, np.uint8))
    offsets = np.frombuffer(offsets_buffer, np.int64 if wide else np.int32)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return _frozen(offsets[strings.offset : strings.offset + len(strings) + 1]), _frozen(data)


def _integers(ids: pa.Array) -> Array:
    return _frozen(ids.to_numpy(zero_copy_only=False))


def _frozen(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _grown(array: Array, size: int) -> Array:
    """The array with room for `size` elements, at least doubled when it grows."""
    if size <= len(array):
        return array
    grown = np.empty(max(size, 2 * len(array)), array.dtype)
    grown[: len(array)] = array
    return grown


def _enough_slots(slots: Array, ids: int) -> Array:
    """The slots, or new and empty ones when the ids would fill more than two thirds."""
    size = len(slots)
    while 3 * ids > 2 * size:
        size *= 2
    return slots if size == len(slots) else np.zeros(size, slots.dtype)


def id_buckets(ids: pa.Array, buckets: int) -> Array:
    """The bucket of every id, by bits of its hash that slots do not use; `buckets` is a power of two."""
    if pa.types.is_integer(ids.type):
        return _buckets_of_integers(_integers(ids), buckets - 1)
    return _buckets_of_strings(*_string_buffers(ids), buckets - 1)


# Kernels of the index: open addressing with linear probing over ids kept as they were given.
#
# A slot is 0 when free, else 24 bits of the id's hash above 40 bits of its number plus one. The bits of hash only save
# comparisons: an id is found when its bytes are equal, never because its hash is.

_ONE, _EIGHT, _S32, _S40 = np.uint64(1), np.uint64(8), np.uint64(32), np.uint64(40)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NUMBER = np.uint64((1 << 40) - 1)
_BUCKET_BITS = np.uint64(30)

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


@njit(nogil=True, cache=True)
def _buckets_of_strings(offsets: Array, data: Array, mask: int) -> Array:
    out = np.empty(offsets.shape[0] - 1, np.uint16)
    for i in range(out.shape[0]):
        start, length = _bounds(offsets, i)
        out[i] = (_hash_bytes(data, start, length) >> _BUCKET_BITS) & np.uint64(mask)
    return out


@njit(nogil=True, cache=True)
def _buckets_of_integers(keys: Array, mask: int) -> Array:
    out = np.empty(keys.shape[0], np.uint16)
    for i in range(keys.shape[0]):
        out[i] = (mix(np.uint64(keys[i])) >> _BUCKET_BITS) & np.uint64(mask)
    return out


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
