"""From ids to vertex numbers: an index in memory that is read by several threads, and one on disk for ids beyond it.

The index on disk divides ids by their hashes. Ids are looked up there all at once: those of an edge table are divided
as well, and one group of buckets after the other is read, known ids and asked ones together. The answers are the same.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.graph.arrays import Array, ArrayWriter, open_array
from penstock.graph.blocks import run_blocks
from penstock.graph.hashing import mix
from penstock.graph.ids import Ids, StringIds
from penstock.graph.tables.bucket_files import BucketFile, MemoryBound, NumberFile, Piece, groups_of
from penstock.kernels import njit

IdKind = Literal["string", "integer"]

_BLOCK_ROWS = 1 << 15
_FIRST_SLOTS = 1 << 10
_ID_BYTES = 32
"""What an id takes beside its bytes: up to three slots and an offset or the integer itself."""


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


# Ids on disk.

_BUCKETS = 1024
_ROW_BYTES = 16
"""What a row of a block takes beside its id while it is divided."""
_INDEX_BYTES = 56
"""What an id takes in an index beside its own bytes, with its number."""
_MOVED = 1 << 18


class IdFile:
    """Ids in order of arrival, in blocks divided by their hashes; `position` is the place of an id in its block."""

    def __init__(self, folder: Path, kind: IdKind, bound: MemoryBound) -> None:
        self.kind, self.bound, self.rows = kind, bound, 0
        columns: dict[str, Any] = {"position": (np.uint32, ())}
        if kind == "integer":
            columns["key"] = (np.int64, ())
        self.file = BucketFile(folder, _BUCKETS, columns, texts=kind == "string")
        self._waiting: list[pa.Array] = []
        self._size = 0

    def append(self, ids: pa.Array) -> None:
        """Add ids behind the others."""
        ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
        self._waiting.append(ids)
        self._size += ids.nbytes + _ROW_BYTES * len(ids)
        self.rows += len(ids)
        if self._size >= self.bound.block_bytes:
            self._write()

    def close(self) -> None:
        """Write what waits; the ids can be read then."""
        self._write()
        self.file.close()

    def sizes(self) -> Array:
        """The bytes that an index of each bucket's ids takes."""
        text = self.file.text_bytes() / max(1, self.rows)
        sizes: Array = (self.file.counts() * (_INDEX_BYTES + text)).astype(np.int64)
        return sizes

    def _write(self) -> None:
        if not self._waiting:
            return
        ids = pa.concat_arrays([_wide(each) for each in self._waiting])
        self._waiting, self._size = [], 0
        columns = {"position": np.arange(len(ids), dtype=np.uint32)}
        texts = None
        if self.kind == "string":
            texts = StringIds.from_arrow(ids)
        else:
            columns["key"] = ids.to_numpy(zero_copy_only=False)
        self.file.append(id_buckets(ids, _BUCKETS), columns, texts)


class DiskIndex:
    """The ids of a node type in order of arrival, on disk; written into the graph's own files as they come."""

    def __init__(self, kind: IdKind, work: Path, target: Path, bound: MemoryBound) -> None:
        self.kind, self.count, self._bound = kind, 0, bound
        self._known = IdFile(work, kind, bound)
        names = ("ids.offsets", "ids.bytes") if kind == "string" else ("ids",)
        kinds = {"ids.offsets": np.int64, "ids.bytes": np.uint8, "ids": np.int64}
        self._writers = [ArrayWriter(target / f"{name}.npy", kinds[name]) for name in names]
        if kind == "string":
            self._writers[0].append(np.zeros(1, np.int64))
        self._counting, self._closed = kind == "integer", False

    def take(self, index: IdIndex) -> None:
        """All ids of an index in memory, in their order."""
        for start in range(0, index.count, _MOVED):
            self.append(index.some(start, min(start + _MOVED, index.count)))

    def append(self, ids: pa.Array) -> None:
        """Number ids that are all new."""
        if self._closed:
            self._known.file.more()
            self._closed = False
        ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
        first = self._known.rows
        self._known.append(ids)
        self.count = max(self.count, self._known.rows)
        if self.kind == "string":
            texts = StringIds.from_arrow(ids)
            self._writers[0].append(texts.offsets[1:] + self._writers[1].rows)
            self._writers[1].append(texts.data)
            return
        keys = ids.to_numpy(zero_copy_only=False)
        self._counting = self._counting and np.array_equal(keys, np.arange(first, first + len(keys)))
        self._writers[0].append(keys)

    def append_created(self, ids: pa.Array, numbers: Array) -> None:
        """Keep the ids that `answer` has created, as they are met again; `numbers` are those of all ids."""
        fresh = _first_met(numbers, self._known.rows)
        if len(fresh):
            self.append(ids.take(pa.array(fresh)))

    def repeated(self) -> tuple[int, int] | None:
        """The first id that occurs a second time: its number there, and where it occurred first."""
        self._close()
        groups = groups_of(self._known.sizes(), self._bound.group_bytes)
        return min((found for group in groups if (found := self._load(*group)[2]) is not None), default=None)

    def id_of(self, number: int) -> Any:
        """The id of a vertex, once all of them are known."""
        for writer in self._writers:
            writer.close()
        if self.kind == "integer":
            return int(open_array(self._writers[0].path)[number])
        return StringIds(*(open_array(writer.path) for writer in self._writers))[number]

    def answer(self, asked: IdFile, work: Path, creates: bool, lost: Array | None = None) -> "FoundNumbers":
        """The numbers of ids, -1 for unknown ones. With `creates` those are numbered in order of arrival, except in
        rows that are `lost`; their ids are added by `append_created`.
        """
        self._close()
        asked.close()
        groups = groups_of(self._known.sizes() + asked.sizes() * creates, self._bound.group_bytes)
        created = np.zeros(len(groups) + 1, np.int64)
        unknown = 0
        with NumberFile(work / "numbers.npy", asked.rows) as numbers:
            for place, group in enumerate(groups):
                index, of_index, _ = self._load(*group)
                for piece in asked.file.pieces(*group):
                    ids = _ids(piece)
                    found = index.find(ids)
                    if creates:
                        _create(index, ids, found, piece, lost)
                    unknown += _translate(found, of_index)
                    numbers.write(piece.start, found)
                created[place + 1] = index.count - len(of_index)
            if created.any():
                self._number_created(asked, numbers, groups, np.cumsum(created), work)
        self.count = self._known.rows + int(created.sum())
        return FoundNumbers(asked.file, numbers.read(), unknown, int(created.sum()))

    def ids(self) -> Ids | None:
        """All ids by vertex number, mapped, or None where they are 0..n-1. Nothing can be looked up any more."""
        self.release()
        self._known.file.remove()
        if self._counting:
            self._writers[0].path.unlink()
            return None
        arrays = [open_array(writer.path) for writer in self._writers]
        return StringIds(*arrays) if self.kind == "string" else arrays[0]

    def release(self) -> None:
        """Close the files of the index, which stay on disk."""
        for writer in self._writers:
            writer.close()
        self._known.file.release()

    def _close(self) -> None:
        if not self._closed:
            self._known.close()
            self._closed = True

    def _load(self, first: int, last: int) -> tuple[IdIndex, Array, tuple[int, int] | None]:
        """An index of the ids of some buckets, the numbers of its ids, and the first id that is there twice."""
        index, pieces = new_index(self.kind), list[Array]()
        repeated: tuple[int, int] | None = None
        for piece in self._known.file.pieces(first, last):
            before = index.count
            local, numbers = index.add(_ids(piece)), _places(piece)
            fresh = _first_met(local, before)
            pieces.append(numbers[fresh])
            if len(fresh) < len(local) and repeated is None:
                row = int(np.setdiff1d(np.arange(len(local)), fresh, assume_unique=True)[0])
                repeated = int(numbers[row]), int(np.concatenate(pieces)[local[row]])
        return index, np.concatenate(pieces) if pieces else np.empty(0, np.int64), repeated

    def _number_created(
        self, asked: IdFile, numbers: NumberFile, groups: list[tuple[int, int]], ends: Array, work: Path
    ) -> None:
        """Number new ids in order of arrival. Until then a number of -2 - k is the k-th new id of its group."""
        group_of = np.repeat(np.arange(len(groups)), [last - first for first, last in groups])
        filled, count, values = ends[:-1].copy(), self._known.rows, numbers.read()
        with NumberFile(work / "created.npy", int(ends[-1])) as table:
            for block in range(asked.file.blocks):
                bounds = asked.file.column("bounds")[block]
                start, stop = int(bounds[0]), int(bounds[-1])
                positions = asked.file.column("position")[start:stop]
                of_rows = np.repeat(group_of, np.diff(bounds))
                new_groups = _in_order(values[start:stop], positions, of_rows, filled - ends[:-1])
                for group in np.unique(new_groups).tolist():
                    fresh = np.flatnonzero(new_groups == group)
                    table.write(int(filled[group]), count + fresh)
                    filled[group] += len(fresh)
                count += len(new_groups)
        final = table.read()
        for place, group in enumerate(groups):
            of_group = np.array(final[ends[place] : ends[place + 1]])
            for piece in asked.file.pieces(*group):
                some = np.array(values[piece.start : piece.start + len(piece.columns["position"])])
                if _renumber(some, of_group):
                    numbers.write(piece.start, some)
        table.path.unlink()


class FoundNumbers:
    """The numbers of the ids that were asked for, block by block in the order in which they were."""

    def __init__(self, asked: BucketFile, numbers: Array, unknown: int, created: int) -> None:
        self.unknown, self.created = unknown, created
        self._asked, self._numbers = asked, numbers
        self._block, self._left = 0, np.empty(0, np.int64)

    def take(self, rows: int) -> Array:
        """The next numbers; a copy."""
        parts = [self._left[:rows]]
        self._left = self._left[rows:]
        missing = rows - len(parts[0])
        while missing:
            block = self._next()
            parts.append(block[:missing])
            self._left = block[missing:]
            missing -= len(parts[-1])
        return np.concatenate(parts)

    def again(self) -> None:
        """Begin with the first number."""
        self._block, self._left = 0, self._left[:0]

    @property
    def rows(self) -> int:
        """The number of ids that the index knows."""
        return len(self._numbers)

    def _next(self) -> Array:
        bounds = self._asked.column("bounds")[self._block]
        start, stop = int(bounds[0]), int(bounds[-1])
        self._block += 1
        out = np.empty(stop - start, np.int64)
        out[self._asked.column("position")[start:stop]] = self._numbers[start:stop]
        return out


def _wide(ids: pa.Array) -> pa.Array:
    """Strings with offsets that do not overflow where many arrays are joined."""
    return ids.cast(pa.large_string()) if pa.types.is_string(ids.type) else ids


def _ids(piece: Piece) -> pa.Array:
    return pa.array(piece.columns["key"]) if piece.texts is None else piece.texts.to_arrow()


def _places(piece: Piece) -> Array:
    """The places of a piece's ids among all, in order of arrival."""
    return piece.columns["position"].astype(np.int64) + piece.block


def _first_met(numbers: Array, count: int) -> Array:
    """The rows where a number beyond `count` stands for the first time; such numbers ascend by one."""
    before = np.maximum.accumulate(np.concatenate([[count - 1], numbers]))[:-1]
    return np.flatnonzero(numbers > before)


def _create(index: IdIndex, ids: pa.Array, found: Array, piece: Piece, lost: Array | None) -> None:
    """Add the ids of a piece that were not found, in order of arrival, except those of lost rows."""
    unknown = found < 0 if lost is None else (found < 0) & ~lost[_places(piece)]
    new = np.flatnonzero(unknown)
    if len(new):
        new = new[np.argsort(piece.columns["position"][new])]
        found[new] = index.add(ids.take(pa.array(new)))


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


# Kernels of the index on disk.


@njit(nogil=True, cache=True, writes=("found",))
def _translate(found: Array, numbers: Array) -> int:
    """Replace places in an index by vertex numbers; a new id's becomes -2 - k. Returns how many are unknown."""
    unknown, known = 0, numbers.shape[0]
    for i in range(found.shape[0]):
        place = found[i]
        if place >= known:
            found[i] = known - 2 - place
        elif place >= 0:
            found[i] = numbers[place]
        else:
            unknown += 1
    return unknown


@njit(nogil=True, cache=True, writes=())
def _in_order(numbers: Array, positions: Array, groups: Array, counts: Array) -> Array:
    """The groups of the new ids of a block, in order of arrival; `counts` are the groups' new ids before the block."""
    at = np.empty(positions.shape[0], np.int64)
    for i in range(positions.shape[0]):
        at[positions[i]] = i
    counts, out, size = counts.copy(), np.empty(positions.shape[0], np.int64), 0
    for place in range(at.shape[0]):
        row = at[place]
        if numbers[row] < -1 and -2 - numbers[row] == counts[groups[row]]:
            counts[groups[row]] += 1
            out[size] = groups[row]
            size += 1
    return out[:size].copy()


@njit(nogil=True, cache=True, writes=("numbers",))
def _renumber(numbers: Array, created: Array) -> int:
    """Give new ids their numbers; returns how many rows have one."""
    changed = 0
    for i in range(numbers.shape[0]):
        if numbers[i] < -1:
            numbers[i] = created[-2 - numbers[i]]
            changed += 1
    return changed
