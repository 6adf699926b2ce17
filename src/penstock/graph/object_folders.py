"""Folders on object stores: each has a copy in a bounded cache of this machine, read and written as any folder is.

What is at the address counts. Before a folder is read, its copy is made equal to it: only objects that have changed are
fetched, each under a name of its own until it is whole. What was written here is sent when it is complete, the document
that makes a folder openable last; an object of its own is at the address from the first change until then, so that a
process that is killed leaves nothing that opens. Where this machine has written a run last and was stopped before it
could send all, the copy is ahead, and is sent first. Only a process that writes a folder removes objects.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from penstock.cache_folders import copies_folder, hold, is_held, make_room
from penstock.errors import PenstockError, nearest
from penstock.graph.files import DOCUMENTS, make_private_folder, open_lock, replace_whole, write_whole
from penstock.progress import current_progress

if TYPE_CHECKING:
    from pyarrow import fs

    from penstock.graph.addresses import Scheme

_REMOTE = re.compile(r"(s3|gs|hdfs):/{1,2}(?=[^/])|([A-Za-z][A-Za-z0-9+.-]+)://(?=[^/])")
_IN_QUERY = re.compile(r"=(https?):/(?=[^/])")
_WITH_SLASHES = r"=\1://"
_SECRET = re.compile(r"(secret|access|token|password)[^=&]*=", re.IGNORECASE)
_LIVING = "run.json"
"""The document of a folder that is read while it changes, whose files each count by themselves."""
_UNFINISHED = "unfinished.json"
"""An object that is there from before the first change until the document is; it says who writes."""
_FORMAT = "penstock-unfinished"
_LOCK = ".lock"
"""Held by the process that writes a run folder."""
_PIECE = 8 << 20
_AT_ONCE = 4
_MB = 1_000_000
_LONG = 50 * _MB
"""Transfers of so many bytes are shown."""
_RENEWED = 5
"""How often a folder is listed again because it has changed while it was read."""
_SETTLED_S = 2.0
"""Seconds after which an object that is written again has another time: stores keep whole seconds."""


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the address of an object store, as `s3://bucket/graph` is; pathlib keeps one of its slashes."""
    return bool(_REMOTE.match(os.fspath(path)))


def address_of(path: str | os.PathLike[str]) -> str:
    """A path as text, with both slashes of an address."""
    text = os.fspath(path)
    if not is_remote(text):
        return text
    before, _, query = text.partition("?")
    scheme, rest = re.split(r":/{1,2}", before, maxsplit=1)
    plain = f"{scheme.lower()}://" + "/".join(part for part in rest.split("/") if part)
    return f"{plain}?{_IN_QUERY.sub(_WITH_SLASHES, query)}" if query else plain


def shown(path: Path) -> str:
    """A path as users know it: an address where it is its copy."""
    folder = ObjectFolder.of(path)
    if folder is None:
        return str(path)
    below = path.relative_to(folder.local).as_posix() if path.is_relative_to(folder.local) else "."
    return folder.shown if below == "." else f"{folder.shown}/{below}"


# Folders that are read.


def local_copy(path: str | os.PathLike[str]) -> Path:
    """The folder of this machine for a path: the path itself, or an address's copy, with everything that is there."""
    if not is_remote(path):
        return Path(path)
    folder = ObjectFolder.at(path)
    folder.fetch()
    return folder.local


def unfetched_copy(path: str | os.PathLike[str], *documents: str) -> Path:
    """The same with some documents only, for folders whose parts are fetched when they are opened (`fetch_part`)."""
    if not is_remote(path):
        return Path(path)
    folder = ObjectFolder.at(path)
    folder.fetch(documents)
    return folder.local


def fetch_part(path: Path) -> Path:
    """A folder within a copy, with everything that is there; any other folder is returned as it is."""
    folder = ObjectFolder.of(path)
    if folder is not None:
        folder.fetch((path.relative_to(folder.local).as_posix() + "/",))
    return path


# Folders and files that are written.


def place_of(path: Path) -> Path:
    """The folder of this machine for a path, without fetching anything."""
    return ObjectFolder.at(path).local if is_remote(path) else path


def check_new(path: Path, force: bool) -> None:
    """Refuse an address at which something lies already, unless it may be replaced (`force`)."""
    folder = ObjectFolder.at(path)
    if not force and folder.is_there():
        raise folder.taken()


def new_copy(path: Path, force: bool) -> Path:
    """Where a new folder for a path is written: the path itself, or the copy of an address, which is claimed where
    nothing is there yet. `send` sends it.
    """
    if not is_remote(path):
        return path
    folder = ObjectFolder.at(path)
    folder.claim(force)
    return folder.local


def abandon(path: Path) -> None:
    """Give up a claim of `new_copy`, if nothing was sent."""
    folder = ObjectFolder.of(path)
    if folder is not None and path == folder.local:
        folder.abandon()


def send(path: Path) -> None:
    """Make what is at an address equal to its copy, which this process writes; other folders stay as they are."""
    folder = ObjectFolder.of(path)
    if folder is not None and path == folder.local:
        folder.send()


def send_later(path: Path) -> Callable[[], None] | None:
    """Keep the files that a folder has now; returns what sends them, from any thread; None for one that is no copy."""
    folder = ObjectFolder.of(path)
    if folder is None or path != folder.local:
        return None
    return partial(folder.send, folder.pin())


def place_of_file(path: Path) -> Path:
    """Where a file is read and written: the path itself, or for an address a file of this machine, with what is there.
    `send_file` sends it.
    """
    if not is_remote(path):
        return path
    address, query = address_of(path).partition("?")[::2]
    parent, _, name = address.rpartition("/")
    folder = ObjectFolder.at(parent + (f"?{query}" if query else ""))
    folder.fetch_file(name)
    return folder.local / name


def send_file(path: Path) -> None:
    """Send a file that `place_of_file` has named, if it belongs to an address."""
    folder = ObjectFolder.of(path)
    if folder is not None and path.parent == folder.local:
        folder.send_file(path.name)


class _File(NamedTuple):
    """A file of a copy and its object, as they were when they were equal: sizes, and times of writing in ns."""

    size: int
    written: int
    object_size: int
    object_written: int
    """-1 where the object was so young that it may change without a change of its time."""

    def is_object(self, listed: tuple[int, int] | None) -> bool:
        """Whether an object is as it was; a young one may be."""
        return listed is not None and listed[0] == self.object_size and self.object_written in (-1, listed[1])


class _ChangedMeanwhile(Exception):  # noqa: N818 (it is caught where it is meant)
    """An object is not what was listed a moment ago."""


class ObjectFolder:
    """A folder on an object store, and its copy here."""

    def __init__(self, address: str, place: Path) -> None:
        before, _, self._query = address.partition("?")
        self._scheme, _, rest = before.partition("://")
        self._host, _, below = rest.partition("/")
        self._below = unquote(below)
        self.shown = f"{self._scheme}://{self._host}/{self._below}".rstrip("/")
        self._place, self.local = place, place / "copy" / (self._below.rpartition("/")[2] or self._host)

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> "ObjectFolder":
        """The folder at an address; its place in the cache is made, and stays while this process lives."""
        address = address_of(path)
        _check_address(address)
        place = copies_folder() / hashlib.sha256(address.encode()).hexdigest()[:16]
        place.parent.mkdir(parents=True, exist_ok=True)
        while not is_held(place):
            make_private_folder(place)
            (place / "copy").mkdir(exist_ok=True)
            write_whole(place / "address", address)
            hold(place)
        return cls(address, place)

    @classmethod
    def of(cls, path: Path) -> "ObjectFolder | None":
        """The folder of whose copy a path is, or in whose copy it lies."""
        if "copy" not in path.parts:  # asked at every line of a log; finding the cache takes system calls
            return None
        objects = copies_folder()
        if not path.is_relative_to(objects) or path == objects:
            return None
        place = objects / path.relative_to(objects).parts[0]
        with suppress(OSError):
            return cls((place / "address").read_text("utf-8"), place)
        return None

    @cached_property
    def _kind(self) -> "Scheme":
        from penstock.graph.addresses import SCHEMES

        return SCHEMES[self._scheme]

    @cached_property
    def _system(self) -> "fs.FileSystem":
        from penstock.graph.addresses import opened_system

        with self._reaching("read"):
            return opened_system(self._scheme, self._host, self._query)

    @cached_property
    def _base(self) -> str:
        return self._kind.path(self._host, f"/{self._below}").rstrip("/")

    # What is at the address.

    def is_there(self) -> bool:
        """Whether anything lies at the address but what a stopped process left before it was complete."""
        listed = self._listed()
        return bool(listed) and _UNFINISHED not in listed

    def taken(self) -> PenstockError:
        """The error where a new folder would replace one."""
        return PenstockError(
            f"{self.shown} exists already: add --force (force=True in Python) to replace it, or name another folder.",
            code="file-exists",
        )

    def _listed(self) -> dict[str, tuple[int, int]]:
        """Size and time of writing of every object below the address, by its path from there."""
        from pyarrow import fs

        with self._reaching("read"):
            found = self._system.get_file_info(fs.FileSelector(self._base, recursive=True, allow_not_found=True))
        return {
            each.path[len(self._base) + 1 :]: (each.size or 0, each.mtime_ns or 0)
            for each in found
            if each.type == fs.FileType.File
        }

    # Reading.

    def fetch(self, only: tuple[str, ...] = ()) -> None:
        """Make the copy equal to what is at the address; `only`: names of documents, or of folders with a slash."""
        with self._alone():
            if self._is_written_here():
                return
            for left in self._place.glob("pinned-*"):
                shutil.rmtree(left, ignore_errors=True)
            known = self._known()
            for _ in range(_RENEWED):
                listed = self._listed()
                self._check_whole(listed)
                if self._is_ahead(known, listed):
                    self._send(known, self.local, removes=False)
                    listed = self._listed()
                try:
                    self._fetch_listed(known, {name: each for name, each in listed.items() if _is_among(name, only)})
                except _ChangedMeanwhile:
                    continue
                after = self._listed()
                if _UNFINISHED in after or any(after.get(n) != listed.get(n) for n in DOCUMENTS if n != _LIVING):
                    continue
                if not only:
                    self._drop_others(known, listed)
                self._note(known)
                return
        raise PenstockError(
            f"{self.shown} was replaced while it was read: wait for who writes it, then run the command again.",
            code="external-failure",
        )

    def _check_whole(self, listed: Mapping[str, Any]) -> None:
        if not listed:
            raise PenstockError(
                f"{self.shown} does not exist: check the address, then run the command again.", code="file-not-found"
            )
        if _UNFINISHED in listed:
            raise PenstockError(
                f"{self.shown} is not complete: wait for who writes it; if nobody does, run the command that writes it"
                " again.",
                code="damaged-file",
            )

    def _fetch_listed(self, known: dict[str, _File], listed: Mapping[str, tuple[int, int]]) -> None:
        wanted = [name for name, each in listed.items() if not self._is_same(known.get(name), name, each)]
        for name in wanted:
            self._check_name(name)
        self._make_room(sum(listed[name][0] for name in wanted))
        grows = _LIVING in listed
        young = time.time_ns() - int(_SETTLED_S * 1e9)
        with _told("Fetching", self.shown, sum(listed[name][0] for name in wanted)) as moved:
            # The document that makes the folder openable comes last.
            for last in (False, True):
                some = [name for name in wanted if (name in DOCUMENTS) is last]
                with ThreadPoolExecutor(_AT_ONCE, "fetch") as pool:
                    fetched = pool.map(lambda name: self._fetch_one(name, listed[name][0], grows, moved), some)
                    for name, _ in zip(some, fetched, strict=True):
                        size, written = listed[name]
                        known[name] = _File(*self._stat(name), size, written if written < young else -1)

    def _is_same(self, known: _File | None, name: str, listed: tuple[int, int]) -> bool:
        """Whether a file of the copy is certainly its object."""
        return known is not None and known[2:] == listed and self._stat(name) == known[:2]

    def _fetch_one(self, name: str, size: int, grows: bool, moved: Callable[[int], None] = lambda _: None) -> None:
        target = self.local / name
        target.parent.mkdir(parents=True, exist_ok=True)

        def copy(file: Any) -> None:
            read = 0
            with self._reaching("read", name):
                try:
                    with self._system.open_input_stream(f"{self._base}/{name}") as stream:
                        while piece := stream.read(_PIECE):
                            read += file.write(piece)
                            moved(len(piece))
                except FileNotFoundError:
                    raise _ChangedMeanwhile from None
            if read < size and self._listed().get(name, (size,))[0] == size:
                raise PenstockError(
                    f"{self.shown}/{name} ended after {read:,} of {size:,} bytes: the connection was cut, run the"
                    " command again.",
                    code="external-failure",
                )
            if read != size and not (grows and read > size):
                raise _ChangedMeanwhile

        replace_whole(target, copy)

    def fetch_file(self, name: str) -> None:
        """Make one file of the copy equal to its object; without an object there is none."""
        from pyarrow import fs

        with self._alone():
            self._check_name(name)
            with self._reaching("read", name):
                found = self._system.get_file_info(f"{self._base}/{name}")
            (self.local / name).unlink(missing_ok=True)
            if found.type == fs.FileType.File:
                self._make_room(found.size)
                self._fetch_one(name, found.size, True)
                self._note({**self._known(), name: _File(*self._stat(name), found.size, -1)})

    def _drop_others(self, known: dict[str, _File], listed: Mapping[str, Any]) -> None:
        """Remove files of the copy that are not at the address."""
        for name in [*_files(self.local), *known]:
            if name not in listed:
                (self.local / name).unlink(missing_ok=True)
                known.pop(name, None)

    # Writing.

    def claim(self, force: bool) -> None:
        """Begin a new folder: where nothing is there, others are told; what is there must be known to be replaced."""
        with self._alone():
            if self._is_written_here():
                raise PenstockError(
                    f"{self.shown} is in use by another process: wait for it or stop it.", code="in-use"
                )
            listed = self._listed()
            if listed and _UNFINISHED not in listed:
                if not force:
                    raise self.taken()
                self._fetch_listed({}, {name: each for name, each in listed.items() if name in DOCUMENTS})
                self._note({})
                write_whole(self._replaces, json.dumps(_documents_of(listed)))
                return
            if listed:
                self._check_left(force)
            self._remove(name for name in listed if name != _UNFINISHED)
            shutil.rmtree(self.local, ignore_errors=True)
            self._note({})
            self._replaces.unlink(missing_ok=True)
            self._mark()

    def _check_left(self, force: bool) -> None:
        """Refuse what somebody else may be writing now."""
        with self._reaching("read", _UNFINISHED), self._system.open_input_stream(f"{self._base}/{_UNFINISHED}") as file:
            text = file.read(_PIECE)
        try:
            who = json.loads(text)
        except ValueError:
            who = None
        if not isinstance(who, dict) or who.get("format") != _FORMAT:
            raise PenstockError(
                f"{self.shown} holds objects that are not Penstock's, which are not replaced: name another address.",
                code="file-exists",
            )
        here = who.get("host") == socket.gethostname()
        if not force and who.get("process") != os.getpid() and (not here or _lives(who.get("process"))):
            raise PenstockError(
                f"{self.shown} is being written by process {who.get('process')} of {who.get('host')}: wait for it, or"
                " add --force (force=True in Python) if it was stopped.",
                code="in-use",
            )

    def abandon(self) -> None:
        """Remove the claim, if nothing else is at the address."""
        with self._alone(), suppress(PenstockError):
            if self._listed().keys() == {_UNFINISHED}:
                self._remove([_UNFINISHED])

    def _mark(self) -> None:
        who = {"format": _FORMAT, "host": socket.gethostname(), "process": os.getpid()}
        self._write_object(_UNFINISHED, iter([json.dumps(who).encode()]))

    def pin(self) -> Path:
        """A folder with links to all files of the copy, which may be removed or replaced then; logs still grow."""
        pinned = self._place / f"pinned-{token_hex(4)}"
        for name in _files(self.local):
            (pinned / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                (pinned / name).hardlink_to(self.local / name)
        return pinned

    def send(self, pinned: Path | None = None) -> None:
        """Make what is at the address equal to the copy, or to what was `pinned` of it."""
        try:
            with self._alone():
                self._send(self._known(), pinned or self.local, removes=True)
        finally:
            if pinned is not None:
                shutil.rmtree(pinned, ignore_errors=True)

    def _send(self, known: dict[str, _File], source: Path, removes: bool) -> None:
        files, flying = _files(source), self._flying()
        if not any(name in DOCUMENTS for name in files):
            raise PenstockError(
                f"The copy of {self.shown} in {self.local} has no document: it was removed, and nothing was sent.",
                code="damaged-file",
            )
        changed = [n for n, stat in files.items() if n not in known or known[n][:2] != stat or n in flying]
        gone = [name for name in known if name not in files] if removes else []
        documents = [name for name in changed if name in DOCUMENTS and (name != _LIVING or name not in known)]
        # Until all of it is there, whoever compares knows which objects are in between.
        write_whole(self._sending, json.dumps([*changed, *gone]))
        if documents:
            gone += self._begin_replacing(known, files)
        # A checkpoint, in a folder of its own, comes after what a run had logged until then.
        changed.sort(key=lambda name: (name in DOCUMENTS, "/" in name, name))
        # Only in a run's folder does the order of all files count; elsewhere documents come last.
        in_any_order = 0 if _LIVING in files else sum(name not in DOCUMENTS for name in changed)
        with (
            _told("Sending", self.shown, sum(files[name][0] for name in changed)) as moved,
            ThreadPoolExecutor(_AT_ONCE, "send") as pool,
        ):
            list(pool.map(lambda name: self._send_one(name, source, moved), changed[:in_any_order]))
            for name in changed[in_any_order:]:
                self._send_one(name, source, moved)
        self._remove(gone + ([_UNFINISHED] if documents else []))
        listed = self._listed() if changed else {}
        known.update({name: _File(*files[name], *listed.get(name, (-1, -1))) for name in changed})
        for name in gone:
            known.pop(name, None)
        self._note(known)
        self._replaces.unlink(missing_ok=True)

    def _begin_replacing(self, known: Mapping[str, _File], files: Iterable[str]) -> list[str]:
        """Make what is at the address not open, so that nobody opens a document with arrays of another; returns the
        objects that the new folder does not have. What appeared since the command began is not replaced.
        """
        listed = self._listed()
        theirs = {name: each for name, each in _documents_of(listed).items() if name not in known}
        try:
            expected = json.loads(self._replaces.read_text("utf-8"))
        except (OSError, ValueError):
            expected = {}
        if theirs and theirs != expected:
            raise PenstockError(
                f"{self.shown} has appeared while this was made, and is not replaced: add --force (force=True in"
                " Python), or name another folder.",
                code="file-exists",
            )
        self._mark()
        self._remove(name for name in listed if name in DOCUMENTS)
        return [name for name in listed if name not in files and name not in DOCUMENTS and name != _UNFINISHED]

    def send_file(self, name: str) -> None:
        """Make one object equal to the file of the copy, which is not needed any more."""
        with self._alone():
            self._send_one(name, self.local)
            (self.local / name).unlink(missing_ok=True)
            self._note({other: each for other, each in self._known().items() if other != name})

    def _send_one(self, name: str, source: Path, moved: Callable[[int], None] = lambda _: None) -> None:
        try:
            file = (source / name).open("rb")
        except FileNotFoundError:
            return
        with file:
            self._write_object(name, iter(partial(file.read, _PIECE), b""), moved)

    def _write_object(self, name: str, pieces: Iterator[bytes], moved: Callable[[int], None] = lambda _: None) -> None:
        with self._reaching("written", name):
            try:
                with self._system.open_output_stream(f"{self._base}/{name}") as stream:
                    for piece in pieces:
                        stream.write(piece)
                        moved(len(piece))
            except BaseException:
                # What was written until then became the object when the stream was closed.
                with suppress(Exception):
                    self._system.delete_file(f"{self._base}/{name}")
                raise

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with self._reaching("written", name), suppress(FileNotFoundError):
                self._system.delete_file(f"{self._base}/{name}")

    # The copy.

    def _stat(self, name: str) -> tuple[int, int]:
        try:
            stat = (self.local / name).stat()
        except OSError:
            return -1, -1
        return stat.st_size, stat.st_mtime_ns

    def _check_name(self, name: str) -> None:
        """An object's name may not lead out of the copy."""
        if any(part.startswith(".") or not part for part in name.split("/")):
            raise PenstockError(
                f"{self.shown} holds the object {name!r}, which no folder of Penstock has: remove it, or name another"
                " address.",
                code="wrong-file",
            )

    def _is_ahead(self, known: Mapping[str, _File], listed: Mapping[str, tuple[int, int]]) -> bool:
        """Whether the copy of a run has changed and what is at the address has not, since they were equal; objects that
        were being sent are in between.
        """
        files, flying = _files(self.local), self._flying()
        names = {*known, *listed} - flying
        equal = all(name in known and known[name].is_object(listed.get(name)) for name in names)
        if _LIVING not in files or not known or not equal:
            return False
        return bool(flying) or any(known.get(name, (-1, -1))[:2] != stat for name, stat in files.items())

    def _is_written_here(self) -> bool:
        """Whether a process of this machine is writing the copy."""
        if not (self.local / _LOCK).exists():
            return False
        try:
            os.close(open_lock(self.local / _LOCK))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @property
    def _sending(self) -> Path:
        """Names that are being sent or removed, or were when a process was stopped."""
        return self._place / "sending.json"

    @property
    def _replaces(self) -> Path:
        """The documents at the address that the copy may replace."""
        return self._place / "replaces.json"

    def _flying(self) -> set[str]:
        try:
            return set(map(str, json.loads(self._sending.read_text("utf-8"))))
        except (OSError, ValueError, TypeError):
            return set()

    def _known(self) -> dict[str, _File]:
        try:
            found = json.loads((self._place / "known.json").read_text("utf-8"))
            return {str(name): _File(*map(int, each)) for name, each in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _note(self, known: Mapping[str, _File]) -> None:
        """Keep what is equal now; nothing is being sent any more."""
        write_whole(self._place / "known.json", json.dumps(known))
        self._sending.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Remove copies that were used longest ago, and by no process now, until so many bytes fit."""
        make_room(size, self._place, _is_dispensable, self.shown)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time compares the copy with the address."""
        descriptor = os.open(self._place / "turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            # Where a file system has no locks, nobody else can be noticed.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _reaching(self, done: str, name: str = "") -> Iterator[None]:
        """Turns errors of pyarrow and the network into one sentence that names the address."""
        import pyarrow as pa

        from penstock.graph.addresses import access_error, problem_of

        where = f"{self.shown}/{name}" if name else self.shown
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            found = access_error(error, where, self._kind.rights, done)
            raise found or PenstockError(
                f"{where} could not be {done} ({problem_of(error)}): correct the address, or try again.",
                code="external-failure",
            ) from None


@contextmanager
def _told(doing: str, what: str, size: int) -> Iterator[Callable[[int], None]]:
    """Shows how much of a long transfer is done, which any thread may say."""
    if size < _LONG:
        yield lambda _: None
        return
    progress, lock, done = current_progress(), Lock(), 0

    def moved(more: int) -> None:
        nonlocal done
        with lock:
            before, done = done, done + more
            progress.advance(done // _MB - before // _MB)

    with progress.step(f"{doing} {what}", size // _MB, "MB"):
        yield moved


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of writing of every file of a folder; unfinished and private ones are left out."""
    found = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place) / name
            if not name.startswith(".") and not path.is_symlink():
                with suppress(FileNotFoundError):
                    stat = path.stat()
                    found[path.relative_to(folder).as_posix()] = stat.st_size, stat.st_mtime_ns
    return found


def _is_dispensable(place: Path) -> bool:
    """Whether a copy has nothing that was not sent. An import that goes on after a kill lies beside its folder."""
    folder = ObjectFolder.of(place / "copy")
    if folder is None or {name: each[:2] for name, each in folder._known().items()} != _files(folder.local):
        return False
    return not any(each.name.startswith(".") for each in (place / "copy").iterdir())


def _documents_of(listed: Mapping[str, tuple[int, int]]) -> dict[str, list[int]]:
    return {name: list(each) for name, each in listed.items() if name in DOCUMENTS}


def _lives(process: object) -> bool:
    return isinstance(process, int) and Path(f"/proc/{process}").exists()


def _is_among(name: str, only: tuple[str, ...]) -> bool:
    return not only or any(name == each or (each.endswith("/") and name.startswith(each)) for each in only)


def _check_address(address: str) -> None:
    from penstock.graph.addresses import SCHEMES

    before, _, query = address.partition("?")
    scheme, _, rest = before.partition("://")
    host = rest.partition("/")[0]
    if scheme not in SCHEMES or scheme == "file":
        known = [name for name in SCHEMES if name != "file"]
        raise PenstockError(
            f"{scheme}:// is an unknown scheme of an address{nearest(scheme, known)}", code="unknown-name"
        )
    if "@" in rest or (":" in host and scheme != "hdfs") or _SECRET.search(query):
        raise PenstockError(
            f"The address ({scheme}://...) holds a key, which run folders would keep: set the variables of the"
            " environment that its documentation names instead.",
            code="invalid-value",
        )
    if any(part.startswith(".") for part in unquote(rest).split("/")):
        raise PenstockError(
            f"{before} has a part that begins with a dot, which no folder of Penstock has: name another address.",
            code="invalid-value",
        )
