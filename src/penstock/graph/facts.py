"""Facts about the arrays of one node or edge type, each found once.

Facts about the large files of a folder are kept in the user's cache, so that a folder is checked once. The record is in
the cache folder and not beside the arrays, because graphs are often read-only and because a folder that came from
elsewhere must not vouch for itself. If the cache cannot be written nothing is remembered, and the folder is checked
every time.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from penstock.cache_folders import cache_folder
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument, read_checked
from penstock.graph.files import open_regular, read_document, write_whole

RECORDED = 1 << 20
"""Files from this size on have their facts remembered: a smaller one is read again as fast as its record."""


@dataclass(eq=False)
class Facts:
    """Facts by array and name.

    `folder` is where arrays are mapped from (None: all are in memory only), and `mapped` are these by file. `trusted`:
    the user vouches for the arrays, and nothing is read.
    """

    folder: Path | None = None
    mapped: dict[str, Array] = field(default_factory=dict)
    trusted: bool = False
    _known: dict[tuple[str, str], tuple[Array, list[int]]] = field(default_factory=dict)

    def of(self, file: str, values: Array, fact: str, find: Callable[[Array], list[int]]) -> list[int]:
        """A fact about an array, found now unless it is known. `file` is the array's name without `.npy`."""
        known = self._known.get((file, fact))
        # An array that replaces another one is read again.
        if known is None or known[0] is not values:
            known = values, self._recalled(file, values, fact, find)
            self._known[file, fact] = known
        return known[1]

    def where(self, file: str, values: Array, owner: str) -> str:
        """The name of an array in errors: its file, or its name and owner."""
        path = self._path(file, values)
        return f"{file} of {owner}" if path is None else str(path)

    def _recalled(self, file: str, values: Array, fact: str, find: Callable[[Array], list[int]]) -> list[int]:
        path = self._path(file, values)
        if path is None or values.nbytes < RECORDED:
            return find(values)
        if (found := recall(path, fact)) is not None:
            return found
        before = state_of(path)
        found = find(values)
        remember(path, fact, found, before)
        return found

    def _path(self, file: str, values: Array) -> Path | None:
        """The file that an array is mapped from; None for an array that replaced it."""
        return self.folder / f"{file}.npy" if self.folder is not None and self.mapped.get(file) is values else None


FORMAT = "penstock-checked"
VERSION = 1
"""Incremented when facts change their meaning: older records are then made again."""
_SAMPLES = 16
_SAMPLE_BYTES = 4096
_MOST_PRUNED = 200


class FileFacts(StrictDocument):
    """The state of a file when it was read, and what was found."""

    size: int
    modified_ns: int
    changed_ns: int
    checksum: str = Field(description="of samples: the beginning, the end and 14 places between them")
    facts: dict[str, list[int]] = Field(default_factory=dict)

    def is_of(self, other: "FileFacts") -> bool:
        """Whether both describe the same state of a file."""
        return self.model_dump(exclude={"facts"}) == other.model_dump(exclude={"facts"})


class RecordDocument(StrictDocument):
    """One record: the files of a folder that holds arrays."""

    format: str = FORMAT
    version: int = VERSION
    folder: str
    files: dict[str, FileFacts] = Field(default_factory=dict)


def recall(file: Path, fact: str) -> list[int] | None:
    """A remembered fact about a file, if the file has not changed since."""
    place = _place(file)
    if place is None or not place.exists():
        return None
    known = _read(place, file.parent).files.get(file.name)
    if known is None or fact not in known.facts:
        return None
    state = state_of(file)
    return known.facts[fact] if state is not None and known.is_of(state) else None


def remember(file: Path, fact: str, value: list[int], before: FileFacts | None) -> None:
    """Keep a fact about a file that was in the state `before` when reading it began."""
    place = _place(file)
    with suppress(OSError, PenstockError):
        state = state_of(file)
        if place is None or before is None or state is None or not state.is_of(before):
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        record = _read(place, file.parent)
        known = record.files.get(file.name)
        kept = known.facts if known is not None and known.is_of(state) else {}
        record.files[file.name] = state.model_copy(update={"facts": {**kept, fact: value}})
        if not place.exists():
            _prune(place.parent)
        write_whole(place, json.dumps(record.model_dump()) + "\n")


def state_of(file: Path) -> FileFacts | None:
    """The present state of a file; None if it cannot be determined."""
    try:
        with open_regular(file, buffering=0) as opened:
            about = os.fstat(opened.fileno())
            checksum = hashlib.blake2b(digest_size=16)
            last = max(0, about.st_size - _SAMPLE_BYTES)
            for place in dict.fromkeys(last * number // (_SAMPLES - 1) for number in range(_SAMPLES)):
                checksum.update(os.pread(opened.fileno(), _SAMPLE_BYTES, place))
    except OSError:
        return None
    return FileFacts(
        size=about.st_size,
        modified_ns=about.st_mtime_ns,
        changed_ns=about.st_ctime_ns,
        checksum=checksum.hexdigest(),
    )


def _place(file: Path) -> Path | None:
    """The record of the folder that a file is in; None where there is no cache folder."""
    try:
        folder = str(file.parent.resolve())
        return cache_folder() / "checked" / f"{hashlib.blake2b(os.fsencode(folder), digest_size=16).hexdigest()}.json"
    except (OSError, RuntimeError):
        return None


def _read(place: Path, folder: Path) -> RecordDocument:
    """The record, or an empty one where it is missing, damaged, of another folder or of another release."""
    empty = RecordDocument(folder=os.fsencode(folder.resolve()).decode("utf-8", "replace"))
    if not place.exists():
        return empty
    with suppress(PenstockError):
        found = read_checked(place, RecordDocument, FORMAT, VERSION)
        return found if found.folder == empty.folder else empty
    return empty


def _prune(folder: Path) -> None:
    """Delete records of folders that are gone."""
    for number, place in enumerate(folder.glob("*.json")):
        if number >= _MOST_PRUNED:
            return
        with suppress(OSError, ValueError, AttributeError, TypeError):
            named: Any = json.loads(read_document(place)).get("folder")
            if not Path(named).is_dir():
                place.unlink()
