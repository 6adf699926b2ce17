"""From ids to vertex numbers where the ids do not fit into memory.

Ids are divided by their hashes. They are looked up all at once: those of an edge table are divided as well, and one
group of buckets after the other is read, known ids and asked ones together. The index in memory would answer the same.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.graph.arrays import Array, ArrayWriter, open_array
from penstock.graph.ids import Ids, StringIds
from penstock.graph.tables.bucket_files import BucketFile, MemoryBound, NumberFile, Piece, groups_of
from penstock.graph.tables.index import IdIndex, IdKind, id_buckets, new_index
from penstock.kernels import njit

BUCKETS = 1024
_ROW_BYTES = 16
"""What a row of a block takes beside its id while it is divided."""
_INDEX_BYTES = 56
"""What an id takes in an index beside its own bytes, with its number."""
_MOVED = 1 << 18


class IdFile:
    """Ids in order of arrival, in blocks divided by their hashes; `position` is the place of an id in its block.

    The files of one that is `known` were completed by another process.
    """

    def __init__(self, folder: Path, kind: IdKind, bound: MemoryBound, known: bool = False) -> None:
        self.kind, self.bound = kind, bound
        columns: dict[str, Any] = {"position": (np.uint32, ())}
        if kind == "integer":
            columns["key"] = (np.int64, ())
        self.file = BucketFile(folder, BUCKETS, columns, kind == "string", known)
        self.rows = self.file.rows
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

    def reopen(self) -> None:
        """Add ids behind those of complete files."""
        self.file.more()

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
        self.file.append(id_buckets(ids, BUCKETS), columns, texts)


class DiskIndex:
    """The ids of a node type in order of arrival, on disk; written into the graph's own files as they come.

    With a `state` that another process has noted, its files are gone on with. The index may be of a shard: the ids from
    number `first` on.
    """

    def __init__(
        self,
        kind: IdKind,
        work: Path,
        target: Path,
        bound: MemoryBound,
        state: dict[str, Any] | None = None,
        first: int | None = None,
    ) -> None:
        self.kind, self.count, self._bound = kind, 0, bound
        self._first, self._begin = first or 0, 0 if first is None else None
        self._known = IdFile(work, kind, bound, known=state is not None)
        names = ("ids.offsets", "ids.bytes") if kind == "string" else ("ids",)
        kinds = {"ids.offsets": np.int64, "ids.bytes": np.uint8, "ids": np.int64}
        paths = {name: target / f"{name}.npy" for name in names}
        if state is not None:
            self._writers = [ArrayWriter.existing(path).reopen() for path in paths.values()]
            self.count, self._counting, self._closed = state["count"], state["counting"], True
            return
        self._writers = [ArrayWriter(path, kinds[name]) for name, path in paths.items()]
        if kind == "string":
            self._writers[0].append(np.zeros(1, np.int64))
        self._counting, self._closed = kind == "integer", False

    def noted(self) -> tuple[dict[str, Any], list[ArrayWriter]]:
        """What another process needs to go on from here: a state, and the files."""
        self._close()
        return {"count": self.count, "counting": self._counting}, [*self._known.file.files, *self._writers]

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
        if self._begin is None and len(keys):
            self._begin = int(keys[0])
        begin = first + (self._begin or 0)
        self._counting = self._counting and np.array_equal(keys, np.arange(begin, begin + len(keys)))
        self._writers[0].append(keys)

    def append_created(self, ids: pa.Array, numbers: Array) -> None:
        """Keep the ids that `answer` has created, as they are met again; `numbers` are those of all ids."""
        fresh = _first_met(numbers, self._first + self._known.rows)
        if len(fresh):
            self.append(ids.take(pa.array(fresh)))

    @property
    def counts_from(self) -> int | None:
        """The first id where all are integers, each one more than that before it; None where they are not."""
        return self._begin if self._counting else None

    def size(self) -> int:
        """The bytes that an index of all ids takes."""
        return int(self._known.sizes().sum())

    def repeated(self) -> tuple[int, int] | None:
        """The first id that occurs a second time: its number there, and where it occurred first."""
        self._close()
        groups = groups_of(self._known.sizes(), self._bound.group_bytes)
        return min((found for group in groups if (found := self._load(group).repeated) is not None), default=None)

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
                known = self._load(group)
                for piece in asked.file.pieces(*group):
                    found, missing = known.look_up(piece, creates, lost)
                    unknown += missing
                    numbers.write(piece.start, found)
                created[place + 1] = known.created
            if created.any():
                self._number_created(asked, numbers, groups, np.cumsum(created), work)
        self.count = self._known.rows + int(created.sum())
        return FoundNumbers(asked.file, numbers.read(), unknown, int(created.sum()))

    def ids(self) -> Ids | None:
        """All ids by vertex number, mapped, or None where they are 0..n-1. Nothing can be looked up any more."""
        self.release()
        if self._counting:
            return None
        arrays = [open_array(writer.path) for writer in self._writers]
        return StringIds(*arrays) if self.kind == "string" else arrays[0]

    def leftovers(self) -> list[Path]:
        """What is not needed once all ids are known."""
        return [self._known.file.folder, *(writer.path for writer in self._writers if self._counting)]

    def release(self) -> None:
        """Close the files of the index, which stay on disk."""
        for writer in self._writers:
            writer.close()
        self._known.file.release()

    def _close(self) -> None:
        if not self._closed:
            self._known.close()
            self._closed = True

    def _load(self, group: tuple[int, int]) -> "KnownGroup":
        return KnownGroup(self.kind, [(self._known.file, 0)], group)

    def _number_created(
        self, asked: IdFile, numbers: NumberFile, groups: list[tuple[int, int]], ends: Array, work: Path
    ) -> None:
        """Number new ids in order of arrival. Until then a number of -2 - k is the k-th new id of its group."""
        filled, count, values = ends[:-1].copy(), self._known.rows, numbers.read()
        with NumberFile(work / "created.npy", int(ends[-1])) as table:
            for block in range(asked.file.blocks):
                some = values[slice(*asked.file.rows_of(block))]
                new_groups = created_in_order(asked.file, block, some, groups, filled - ends[:-1])
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
                if renumber(some, of_group):
                    numbers.write(piece.start, some)
        table.path.unlink()


class KnownGroup:
    """The ids of some buckets of files, each with the number of its first id: the ids of a node type in memory."""

    def __init__(self, kind: IdKind, known: Iterable[tuple[BucketFile, int]], group: tuple[int, int]) -> None:
        self._index, pieces = new_index(kind), list[Array]()
        self.repeated: tuple[int, int] | None = None
        """The first id that is there twice: its number there, and where it occurred first."""
        for file, first in known:
            for piece in file.pieces(*group):
                before = self._index.count
                local, numbers = self._index.add(_ids(piece)), _places(piece) + first
                fresh = _first_met(local, before)
                pieces.append(numbers[fresh])
                if len(fresh) < len(local) and self.repeated is None:
                    row = int(np.setdiff1d(np.arange(len(local)), fresh, assume_unique=True)[0])
                    self.repeated = int(numbers[row]), int(np.concatenate(pieces)[local[row]])
        self._numbers = np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    @property
    def created(self) -> int:
        """How many ids were created by `look_up`."""
        return self._index.count - len(self._numbers)

    def id_of(self, number: int) -> Any:
        """The id that has a number."""
        place = int(np.flatnonzero(self._numbers == number)[0])
        return self._index.some(place, place + 1)[0].as_py()

    def look_up(self, piece: Piece, creates: bool, lost: Array | None) -> tuple[Array, int]:
        """The numbers of a piece's ids, -1 for unknown ones, and how many those are.

        With `creates` the k-th new id of the group has the number -2 - k, except in rows that are `lost`.
        """
        ids = _ids(piece)
        found = self._index.find(ids)
        if creates:
            _create(self._index, ids, found, piece, lost)
        return found, _translate(found, self._numbers)


def created_in_order(
    asked: BucketFile, block: int, numbers: Array, groups: list[tuple[int, int]], counts: Array
) -> Array:
    """The groups of the new ids of a block of ids, in order of arrival.

    `counts` are the groups' new ids before the block, `numbers` those of its ids as `look_up` gives them.
    """
    bounds = asked.column("bounds")[block]
    group_of = np.repeat(np.arange(len(groups)), [last - first for first, last in groups])
    positions = asked.column("position")[slice(*asked.rows_of(block))]
    return _in_order(numbers, positions, np.repeat(group_of, np.diff(bounds)), counts)


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

    def again(self, after: int = 0) -> None:
        """Begin with the first number, or after so many."""
        self._block, self._left = 0, self._left[:0]
        while after:
            start, stop = self._asked.rows_of(self._block)
            rows = stop - start
            if rows > after:
                self.take(after)
                return
            self._block, after = self._block + 1, after - rows

    @property
    def rows(self) -> int:
        """The number of ids that the index knows."""
        return len(self._numbers)

    def _next(self) -> Array:
        start, stop = self._asked.rows_of(self._block)
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
def renumber(numbers: Array, created: Array) -> int:
    """Give new ids their numbers; returns how many rows have one."""
    changed = 0
    for i in range(numbers.shape[0]):
        if numbers[i] < -1:
            numbers[i] = created[-2 - numbers[i]]
            changed += 1
    return changed
