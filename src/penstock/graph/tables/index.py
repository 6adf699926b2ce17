"""From ids to vertex numbers: an index that grows while tables stream by and is read by several threads."""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import pyarrow as pa

from penstock.graph.arrays import Array
from penstock.graph.blocks import run_blocks
from penstock.graph.ids import Ids, StringIds
from penstock.graph.tables import hash_index

IdKind = Literal["string", "integer"]

_BLOCK_ROWS = 1 << 15
_FIRST_SLOTS = 1 << 10


class IdIndex(ABC):
    """Ids of one kind, numbered in order of arrival."""

    kind: IdKind
    count = 0

    @abstractmethod
    def find(self, ids: pa.Array) -> Array:
        """The number of every id, -1 for unknown ones. Runs on several threads."""

    @abstractmethod
    def add(self, ids: pa.Array) -> Array:
        """The number of every id; new ones are added at the end."""

    @abstractmethod
    def ids(self) -> Ids | None:
        """All ids by vertex number, or None where they are 0..n-1."""


def new_index(kind: IdKind) -> IdIndex:
    """An empty index for ids of this kind."""
    return StringIndex() if kind == "string" else IntegerIndex()


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
            hash_index.find_strings(offsets, data, self._slots, self._offsets, self._data, first, last, out)

        run_blocks(work, len(ids), _BLOCK_ROWS)
        return out

    def add(self, ids: pa.Array) -> Array:
        """Strings are added in their order in the array, so a dictionary is decoded first."""
        if pa.types.is_dictionary(ids.type):
            ids = ids.dictionary_decode()
        offsets, data = _string_buffers(ids)
        self._reserve(len(ids), int(offsets[-1]) - int(offsets[0]))
        out = np.empty(len(ids), np.int64)
        self.count = hash_index.add_strings(offsets, data, self._slots, self._offsets, self._data, self.count, out)
        return out

    def ids(self) -> Ids | None:
        """All ids by vertex number."""
        return StringIds(self._offsets[: self.count + 1], self._data[: self._offsets[self.count]])

    def _reserve(self, rows: int, size: int) -> None:
        self._offsets = _grown(self._offsets, self.count + rows + 1)
        self._data = _grown(self._data, int(self._offsets[self.count]) + size)
        slots = _enough_slots(self._slots, self.count + rows)
        if slots is not self._slots:
            hash_index.place_strings(self._offsets, self._data, self.count, slots)
            self._slots = slots


class IntegerIndex(IdIndex):
    """Integers. As long as they are 0, 1, 2, ... in order nothing is stored and nothing looked up."""

    kind: IdKind = "integer"

    def __init__(self) -> None:
        self._counting = True
        self._slots = np.zeros(_FIRST_SLOTS, np.uint64)
        self._known = np.empty(0, np.int64)

    def find(self, ids: pa.Array) -> Array:
        """int64 numbers of int64 ids."""
        keys = _integers(ids)
        if self._counting:
            return np.where((keys >= 0) & (keys < self.count), keys, -1)
        out = np.empty(len(keys), np.int64)

        def work(first: int, last: int) -> None:
            hash_index.find_integers(keys, self._slots, self._known, first, last, out)

        run_blocks(work, len(keys), _BLOCK_ROWS)
        return out

    def add(self, ids: pa.Array) -> Array:
        """int64 numbers of int64 ids."""
        keys = _integers(ids)
        if self._counting:
            if np.array_equal(keys, np.arange(self.count, self.count + len(keys))):
                self.count += len(keys)
                return keys
            self._stop_counting()
        self._reserve(len(keys))
        out = np.empty(len(keys), np.int64)
        self.count = hash_index.add_integers(keys, self._slots, self._known, self.count, out)
        return out

    def ids(self) -> Ids | None:
        """All ids by vertex number, or None where they are 0..n-1."""
        known = self._known[: self.count]
        return None if self._counting or np.array_equal(known, np.arange(self.count)) else known

    def _stop_counting(self) -> None:
        self._counting = False
        self._known = np.arange(self.count)
        self._slots = _enough_slots(self._slots, self.count)
        hash_index.place_integers(self._known, self.count, self._slots)

    def _reserve(self, rows: int) -> None:
        self._known = _grown(self._known, self.count + rows)
        slots = _enough_slots(self._slots, self.count + rows)
        if slots is not self._slots:
            hash_index.place_integers(self._known, self.count, slots)
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
