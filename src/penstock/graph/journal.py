"""The journal of long work on a folder: what is done, so that the same command goes on after it was killed.

Imports within a bound on memory have one, and cuts of graph folders.

A note is a line of one file, a checksum and JSON, and is on the disk before the next step begins. It names a step, what
the step found, and the files it wrote: their first rows, for later steps may add more, and a checksum of those. What
was stopped goes on after the last note that was written whole and whose files, with those of all notes before it, hold
what was noted. Whatever else lies in the folder is removed.
"""

import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import Code, PenstockError
from penstock.graph.arrays import ArrayWriter, read_header, settle_rows
from penstock.graph.files import open_bytes, open_regular, replace_whole
from penstock.graph.new_folders import JOURNAL, lasting_folder
from penstock.progress import Progress
from penstock.version import __version__

FORMAT = 1
"""Another number where notes or files change their meaning: what was stopped before begins anew."""
_PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class Sources:
    """What a folder is made from; work that was stopped goes on only where none of it has changed."""

    spec: str
    """What is asked for: the spec of an import, the options of a cut."""
    files: dict[str, list[int]]
    """Of every file that is read: its size, and its time of modification in nanoseconds."""
    version: str = __version__
    format: int = FORMAT
    changed: str = "the spec has changed"
    """The subject and verb for another `spec`."""
    cluster: bool = False
    """Whether its steps are divided among the tasks of a cluster."""

    def difference(self, before: Mapping[str, Any]) -> str | None:
        """What has changed since the work began, as the subject and verb of a sentence."""
        if (before.get("version"), before.get("format")) != (self.version, self.format):
            return "the version of Penstock has changed"
        if before.get("cluster", False) != self.cluster:
            return "that one ran on one machine" if self.cluster else "that one ran on a cluster"
        if before.get("spec") != self.spec:
            return self.changed
        known = before.get("files", {})
        other = [name for name in {**known, **self.files} if known.get(name) != self.files.get(name)]
        return f"{other[0]} has changed" if other else None


@dataclass(frozen=True)
class Resumption:
    """Where work that was stopped goes on: after so many of its steps, and so many pieces of the next one."""

    step: int
    of: int
    after: str
    pieces: int

    def __str__(self) -> str:
        done = f"step {self.step} of {self.of}: {self.after}" if self.step else f"the start, step 0 of {self.of}"
        more = f", and {self.pieces} {'piece' if self.pieces == 1 else 'pieces'} of the next" if self.pieces else ""
        return f"goes on after {done}{more}"


class About(NamedTuple):
    """How sentences call the work."""

    work: str
    """Such as "import"."""
    kept: str
    """The work of this kind that can go on, such as "a cut of a graph folder"."""


class Proof(NamedTuple):
    """What a note says of a `.npy` file: the type and shape of its first rows, and the checksum of their bytes."""

    dtype: str
    shape: list[int]
    checksum: int


class FolderJournal:
    """The notes of some work in a folder. Without a folder nothing is noted, and nothing was done before."""

    def __init__(self, folder: Path | None = None, steps: Sequence[str] = ()) -> None:
        self._folder, self._steps, self.owner = folder, steps, token_hex(8)
        self._states: dict[str, Any] = {}
        self._proofs: dict[str, Proof] = {}
        self.nodes: dict[str, Any] = {}
        """The last that was noted of each node type."""

    @property
    def is_kept(self) -> bool:
        """Whether notes are written: whether it has a folder."""
        return self._folder is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is no note to go on from."""
        return not self._states

    def state(self, step: str) -> Any:
        """What a step that is done has found; None where it is not done."""
        return self._states.get(step)

    def pieces(self, step: str) -> tuple[int, Any]:
        """How many pieces of a step are done, and what the last of them has found."""
        count = 0
        while piece_of(step, count) in self._states:
            count += 1
        return count, self._states.get(piece_of(step, count - 1))

    def note(
        self,
        step: str,
        state: Any = True,
        files: Iterable[ArrayWriter | Path] = (),
        gone: Iterable[Path] = (),
        nodes: Mapping[str, Any] | None = None,
        proofs: Mapping[str, Proof] | None = None,
    ) -> None:
        """Note that a step is done. Paths that are `gone` are needed no more, and removed once that is noted.

        `proofs` are those of files that another process has written and read.
        """
        gone = list(gone)
        if self._folder is not None:
            note = {
                "step": step,
                "state": state,
                "gone": [str(path.relative_to(self._folder)) for path in gone],
                "files": dict(map(self._proved, files)) | dict(proofs or {}),
                "nodes": dict(nodes or {}),
            }
            self._apply(note)
            self._write(note)
        for path in gone:
            _remove(path)

    def proof(self, name: str) -> Proof:
        """What was noted of a file last."""
        return self._proofs[name]

    def resume(self, sources: Sources) -> tuple[Resumption | None, str | None]:
        """Go on with what lies in the folder, or begin anew: where it goes on, and what could not be gone on with."""
        assert self._folder is not None, "only a journal in a folder can be resumed"
        about, *notes = [*_lines(self._folder / JOURNAL)] or [{}]
        if not about:
            problem = "its journal is missing or damaged" if any(self._folder.iterdir()) else None
        else:
            problem = sources.difference(about) or (None if notes else "no step of it was done")
        kept = 0 if problem else self._unharmed(notes)
        if kept < len(notes) and not problem:
            problem = "files of it are missing or damaged"
        for note in notes[:kept]:
            self._apply(note)
        # From now on tasks of a process that had it before add nothing (`check_owner`).
        lines = [{**asdict(sources), "owner": self.owner}, *notes[:kept]]
        replace_whole(self._folder / JOURNAL, lambda file: file.writelines(map(_line, lines)), durable=True)
        self._clear()
        return self._resumption() if kept else None, problem

    def _resumption(self) -> Resumption:
        done = [step for step in self._states if step in self._steps]
        pieces = len(self._states) - 1 - list(self._states).index(done[-1]) if done else len(self._states)
        return Resumption(len(done), len(self._steps), done[-1] if done else "", pieces)

    def _write(self, note: Mapping[str, Any]) -> None:
        assert self._folder is not None, "without a folder nothing is noted"
        with open_bytes(self._folder / JOURNAL, "ab") as file:
            file.write(_line(note))
            file.flush()
            os.fsync(file.fileno())

    def _apply(self, note: Mapping[str, Any]) -> None:
        self._states[note["step"]] = note["state"]
        self.nodes |= note["nodes"]
        for path in note["gone"]:
            for name in _below(path, self._proofs):
                del self._proofs[name]
        self._proofs |= {name: Proof(*proof) for name, proof in note["files"].items()}

    def _proved(self, file: ArrayWriter | Path) -> tuple[str, Proof]:
        """The proof of all rows that a file has; those proved before are not read again."""
        assert self._folder is not None, "without a folder nothing is noted"
        writer = file if isinstance(file, ArrayWriter) else ArrayWriter.existing(file)
        writer.flush()
        name, dtype = str(writer.path.relative_to(self._folder)), writer.dtype.str
        known = self._proofs.get(name, Proof(dtype, [0, *writer.row_shape], 0))
        return name, proof_of(writer, known)

    def _unharmed(self, notes: Sequence[Mapping[str, Any]]) -> int:
        """How many notes in order can be built on: all files that are needed after the last of them are whole."""
        assert self._folder is not None, "only a journal in a folder has notes"
        broken = np.zeros(len(notes) + 1, np.bool_)
        needed: dict[str, list[tuple[int, Proof]]] = {}
        for place, note in enumerate(notes):
            for path in note["gone"]:
                for name in list(_below(path, needed)):
                    # From the note that names it first to the one after which it is gone.
                    broken[needed.pop(name)[0][0] + 1 : place + 1] = True
            for name, proof in note["files"].items():
                needed.setdefault(name, []).append((place, Proof(*proof)))
        for name, proofs in needed.items():
            whole = _whole_proofs(self._folder / name, [proof for _, proof in proofs])
            if whole < len(proofs):
                broken[proofs[whole][0] + 1 :] = True
        return int(np.flatnonzero(~broken)[-1])

    def _clear(self) -> None:
        """Remove what no note names, and have every other file end with the rows that were noted."""
        assert self._folder is not None, "only a journal in a folder has notes"
        for place, folders, files in os.walk(self._folder, topdown=False):
            for name in files:
                path = Path(place, name)
                if str(path.relative_to(self._folder)) not in self._proofs and path != self._folder / JOURNAL:
                    path.unlink()
            for name in folders:
                path = Path(place, name)
                if path.is_symlink():
                    path.unlink()
                elif not any(path.iterdir()):
                    path.rmdir()
        for name, proof in self._proofs.items():
            settle_rows(self._folder / name, proof.shape[0])


def check_owner(folder: Path, owner: str, version: str) -> None:
    """Refuse a task on a node with another version, or of a process whose journal another has taken over since."""
    if version != __version__:
        raise PenstockError(
            f"A node has Penstock {__version__} and the command runs with {version}: install one version on all nodes;"
            " the same command then goes on.",
            code="external-failure",
        )
    if next(_lines(folder / JOURNAL), {}).get("owner") != owner:
        raise PenstockError(
            f"{folder} is written by another command now, or cannot be read: wait for that one.",
            code="external-failure",
        )


_PASSING: tuple[Code, ...] = ("external-failure", "write-failed", "file-not-found", "not-permitted", "peer-lost")
"""Errors after which the same command may succeed: what is done is kept for it."""


@contextmanager
def noted_folder(
    target: Path, force: bool, journal: FolderJournal, sources: Sources, about: About, progress: Progress
) -> Iterator[Resumption | None]:
    """A `lasting_folder` of which the journal's notes are kept when the block is stopped.

    It begins with what was left there, or anew, and one line says so; it yields where it goes on.
    """

    def keeps(error: BaseException) -> bool:
        return not journal.is_empty and not (isinstance(error, PenstockError) and error.code not in _PASSING)

    try:
        with lasting_folder(target, force, keeps) as work:
            yield _resumed(journal, work, sources, f"{target}: the {about.work} that was stopped", about, progress)
    except KeyboardInterrupt as interrupt:
        if keeps(interrupt):
            raise KeyboardInterrupt("Interrupted: what is done is kept, and the same command goes on.") from None
        raise


def _resumed(
    journal: FolderJournal, work: Path, sources: Sources, subject: str, about: About, progress: Progress
) -> Resumption | None:
    resumed, problem = None, None
    if journal.is_kept:
        resumed, problem = journal.resume(sources)
    elif _empty(work):
        problem = f"only {about.kept} can go on"
    if resumed:
        progress.note(f"{subject} {resumed}{f' ({problem})' if problem else ''}.")
    elif problem:
        progress.note(f"{subject} begins anew, because {problem}.")
    return resumed


def proof_of(writer: ArrayWriter, known: Proof | None = None) -> Proof:
    """The proof of all rows that a file has; the rows of one that is known are not read again."""
    known = known or Proof(writer.dtype.str, [0, *writer.row_shape], 0)
    width = _width(known)
    with open_regular(writer.path) as opened:
        read_header(opened)
        opened.seek(known.shape[0] * width, os.SEEK_CUR)
        checksum = _checksum(opened, (writer.rows - known.shape[0]) * width, known.checksum)
    return Proof(known.dtype, [writer.rows, *writer.row_shape], checksum)


def piece_of(step: str, number: int) -> str:
    """The name under which a piece of a step is noted."""
    return f"{step}, piece {number}"


def _empty(folder: Path) -> bool:
    """Remove what lies in a folder; returns whether there was something."""
    left = list(folder.iterdir())
    for path in left:
        _remove(path)
    return bool(left)


def _line(note: Mapping[str, Any]) -> bytes:
    text = json.dumps(note).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines up to the first one that was not written whole."""
    # Whatever cannot be read was never noted.
    with suppress(OSError, ValueError), open_regular(path) as file:
        for line in file:
            checksum, _, text = line.partition(b" ")
            if not text.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text[:-1]):
                return
            yield json.loads(text)


def _below(path: str, names: Iterable[str]) -> Iterator[str]:
    """The names that are a path, or lie below it."""
    return (name for name in list(names) if name == path or name.startswith(f"{path}/"))


def _whole_proofs(path: Path, proofs: Sequence[Proof]) -> int:
    """How many proofs of a file that grew hold, from the first on."""
    checksum = rows = holding = 0
    try:
        with open_regular(path) as file:
            header = read_header(file)
            room = os.fstat(file.fileno()).st_size - file.tell()
            for proof in proofs:
                width = _width(proof)
                alike = header.dtype.str == proof.dtype and list(header.shape[1:]) == proof.shape[1:]
                if not alike or header.fortran or proof.shape[0] * width > room:
                    break
                checksum = _checksum(file, (proof.shape[0] - rows) * width, checksum)
                if checksum != proof.checksum:
                    break
                rows, holding = proof.shape[0], holding + 1
    except (OSError, ValueError):
        return 0
    return holding


def _width(proof: Proof) -> int:
    """The bytes of a row."""
    return int(np.dtype(proof.dtype).itemsize * np.prod(proof.shape[1:], dtype=np.int64))


def _checksum(file: Any, size: int, before: int) -> int:
    """The checksum of so many bytes more."""
    checksum, buffer = before, memoryview(bytearray(min(size, _PIECE_BYTES)))
    while size and (count := file.readinto(buffer[: min(size, _PIECE_BYTES)])):
        checksum = zlib.crc32(buffer[:count], checksum)
        size -= count
    return checksum


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
