"""Folders on object stores: each has a copy in a bounded cache of this machine, read and written as any folder is.

What is at the address counts. Before a folder is read, its copy is made equal to it: only objects that have changed are
fetched, each under a name of its own until it is whole. What was written here is sent when it is complete, the document
that makes a folder openable last, so that a process that is killed leaves nothing that opens. Where this machine has
written last and its process was killed before it could send, the copy is ahead, and is sent first.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from penstock.cache_folders import cache_folder
from penstock.errors import PenstockError, nearest
from penstock.graph.files import DOCUMENTS, make_private_folder, open_lock, replace_whole, write_whole

if TYPE_CHECKING:
    from pyarrow import fs

    from penstock.graph.addresses import Scheme

_REMOTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])")
_LIVING = "run.json"
"""The document of a folder that is read while it changes, whose files each count by themselves."""
_UNFINISHED = "unfinished.json"
"""An object that is there from before the first change until the document is."""
_LOCK = ".lock"
"""Held by the process that writes a run folder."""
_PIECE = 8 << 20
_AT_ONCE = 4
_GB = 1 << 30
_RENEWED = 3
"""How often a folder is fetched again because it was replaced meanwhile."""


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the address of an object store, as `s3://bucket/graph` is; pathlib keeps one of its slashes."""
    return bool(_REMOTE.match(os.fspath(path)))


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


def place_of(path: Path) -> Path:
    """The folder of this machine for a path, without fetching anything."""
    return ObjectFolder.at(path).local if is_remote(path) else path


def check_new(path: Path, force: bool) -> None:
    """Refuse an address at which something lies already, unless it may be replaced (`force`)."""
    folder = ObjectFolder.at(path)
    if not force and folder.is_there():
        raise PenstockError(
            f"{folder.shown} exists already: add --force (force=True in Python) to replace it, or name another folder.",
            code="file-exists",
        )


def new_copy(path: Path, force: bool) -> Path:
    """Where a new folder for a path is written: the path itself, or the copy of an address, with what may be replaced
    there.
    """
    if not is_remote(path):
        return path
    check_new(path, force)
    folder = ObjectFolder.at(path)
    if folder.is_there():
        folder.fetch()
    else:
        folder.clear()
    return folder.local


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


def send(path: Path) -> None:
    """Send what has changed in a folder, if it is the copy of an address, which then equals it."""
    folder = ObjectFolder.of(path)
    if folder is not None and path == folder.local:
        folder.send()


def send_later(path: Path) -> Callable[[], None] | None:
    """Keep what a folder holds now, and return what sends it, from any thread; None for one that is no copy."""
    folder = ObjectFolder.of(path)
    if folder is None or path != folder.local:
        return None
    return partial(folder.send, folder.pin())


def address_of(path: str | os.PathLike[str]) -> str:
    """A path as text, with both slashes of an address."""
    return _REMOTE.sub(r"\1://", os.fspath(path), count=1)


def shown(path: Path) -> str:
    """A path as users know it: an address where it is its copy."""
    folder = ObjectFolder.of(path)
    if folder is None:
        return str(path)
    below = path.relative_to(folder.local).as_posix()
    return folder.shown if below == "." else f"{folder.shown}/{below}"


class _File(NamedTuple):
    """A file of a copy and its object, as they were when they were equal: sizes, and times of writing in ns."""

    size: int
    written: int
    object_size: int
    object_written: int


class ObjectFolder:
    """A folder on an object store, and its copy here."""

    def __init__(self, address: str, place: Path) -> None:
        before, _, self._query = address.partition("?")
        scheme, _, rest = before.partition("://")
        self._scheme, self._host, _ = scheme.lower(), *rest.partition("/")[::2]
        self._below = unquote(rest.partition("/")[2]).strip("/")
        self.shown = f"{self._scheme}://{self._host}/{self._below}"
        self._place, self.local = place, place / (self._below.rpartition("/")[2] or self._host)

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> "ObjectFolder":
        """The folder at an address; its place in the cache is made."""
        address = address_of(path)
        _check_address(address)
        place = _objects() / hashlib.sha256(address.encode()).hexdigest()[:16]
        place.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(place)
        folder = cls(address, place)
        if not folder._address.exists():
            write_whole(folder._address, address)
        folder._hold()
        return folder

    @classmethod
    def of(cls, path: Path) -> "ObjectFolder | None":
        """The folder of whose copy a path is, or in whose copy it lies."""
        objects = _objects()
        if not path.is_relative_to(objects) or path == objects:
            return None
        place = objects / path.relative_to(objects).parts[0]
        with suppress(OSError):
            return cls((place / "address").read_text("utf-8"), place)
        return None

    @property
    def _address(self) -> Path:
        return self._place / "address"

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
        """Whether anything lies at the address but what a killed process left before it was complete."""
        listed = self._listed()
        return bool(listed) and not _is_unfinished(listed)

    def clear(self) -> None:
        """Remove what a killed process left at the address, and the copy."""
        with self._alone():
            self._remove(list(self._listed()))
            shutil.rmtree(self.local, ignore_errors=True)
            (self._place / "known.json").unlink(missing_ok=True)

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
                if not listed:
                    raise PenstockError(
                        f"{self.shown} does not exist: check the address, then run the command again.",
                        code="file-not-found",
                    )
                if _is_unfinished(listed):
                    raise PenstockError(
                        f"{self.shown} is not complete: wait for who writes it; if nobody does, run the command that"
                        " writes it again.",
                        code="damaged-file",
                    )
                if self._is_ahead(known, listed):
                    self._send(known, self.local)
                    return
                self._fetch_listed(known, {name: each for name, each in listed.items() if _is_among(name, only)})
                if not only:
                    self._drop_others(known, listed)
                self._write_known(known)
                after = self._listed()
                if all(after.get(name) == listed.get(name) for name in DOCUMENTS if name != _LIVING):
                    return
        raise PenstockError(
            f"{self.shown} was replaced while it was read: wait for who writes it, then run the command again.",
            code="external-failure",
        )

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
                self._fetch_one(name, found.size)

    def _fetch_listed(self, known: dict[str, _File], listed: Mapping[str, tuple[int, int]]) -> None:
        wanted = [
            name
            for name, (size, written) in listed.items()
            if name not in known or known[name][2:] != (size, written) or self._stat(name) != known[name][:2]
        ]
        for name in wanted:
            self._check_name(name)
        self._make_room(sum(listed[name][0] for name in wanted))
        # The document that makes the folder openable comes last.
        for some in (
            [name for name in wanted if name not in DOCUMENTS],
            [name for name in wanted if name in DOCUMENTS],
        ):
            with ThreadPoolExecutor(_AT_ONCE, "fetch") as pool:
                fetched = pool.map(lambda name: self._fetch_one(name, listed[name][0]), some)
                for name, _ in zip(some, fetched, strict=True):
                    known[name] = _File(*self._stat(name), *listed[name])

    def _fetch_one(self, name: str, size: int) -> None:
        target = self.local / name
        target.parent.mkdir(parents=True, exist_ok=True)

        def copy(file: Any) -> None:
            read = 0
            with self._reaching("read", name), self._system.open_input_stream(f"{self._base}/{name}") as stream:
                while piece := stream.read(_PIECE):
                    read += file.write(piece)
            if read != size:
                raise PenstockError(
                    f"{self.shown}/{name} ended after {read:,} of {size:,} bytes: the connection was cut, or it is"
                    " being replaced; run the command again.",
                    code="external-failure",
                )

        replace_whole(target, copy)

    def _drop_others(self, known: dict[str, _File], listed: Mapping[str, Any]) -> None:
        """Remove files of the copy that are not at the address."""
        for name in [*self._files(self.local), *known]:
            if name not in listed:
                (self.local / name).unlink(missing_ok=True)
                known.pop(name, None)

    # Writing.

    def pin(self) -> Path:
        """A folder with links to all files of the copy: they stay what they are, whatever is removed or replaced."""
        pinned = self._place / f"pinned-{token_hex(4)}"
        for name in self._files(self.local):
            (pinned / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                (pinned / name).hardlink_to(self.local / name)
        return pinned

    def send(self, pinned: Path | None = None) -> None:
        """Make what is at the address equal to the copy, or to what was `pinned` of it."""
        try:
            with self._alone():
                self._send(self._known(), pinned or self.local)
        finally:
            if pinned is not None:
                shutil.rmtree(pinned, ignore_errors=True)

    def send_file(self, name: str) -> None:
        """Make one object equal to the file of the copy."""
        with self._alone():
            self._send_one(name, self.local)

    def _send(self, known: dict[str, _File], source: Path) -> None:
        files = self._files(source)
        changed = [name for name, stat in files.items() if name not in known or known[name][:2] != stat]
        gone = [name for name in known if name not in files]
        documents = [name for name in changed if name in DOCUMENTS and (name != _LIVING or name not in known)]
        if documents:
            # Nobody may open the former document with arrays of the new one.
            self._write_object(_UNFINISHED, iter([b"{}"]))
            self._remove([name for name in documents if name in known])
        # A checkpoint, in a folder of its own, comes after what a run had logged until then.
        changed.sort(key=lambda name: (name in DOCUMENTS, "/" in name, name))
        for name in changed:
            self._send_one(name, source)
        self._remove(gone + ([_UNFINISHED] if documents else []))
        listed = self._listed() if changed else {}
        known.update({name: _File(*files[name], *listed.get(name, (-1, -1))) for name in changed})
        for name in gone:
            known.pop(name)
        self._write_known(known)

    def _send_one(self, name: str, source: Path) -> None:
        with suppress(FileNotFoundError), (source / name).open("rb") as file:
            self._write_object(name, iter(partial(file.read, _PIECE), b""))

    def _write_object(self, name: str, pieces: Iterator[bytes]) -> None:
        with self._reaching("written", name), self._system.open_output_stream(f"{self._base}/{name}") as stream:
            for piece in pieces:
                stream.write(piece)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            with self._reaching("written", name), suppress(FileNotFoundError):
                self._system.delete_file(f"{self._base}/{name}")

    # The copy.

    def _files(self, folder: Path) -> dict[str, tuple[int, int]]:
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

    def _stat(self, name: str) -> tuple[int, int]:
        try:
            stat = (self.local / name).stat()
        except OSError:
            return -1, -1
        return stat.st_size, stat.st_mtime_ns

    def _check_name(self, name: str) -> None:
        """An object's name may not lead out of the copy."""
        if any(part in ("", ".", "..") or part.startswith(".") for part in name.split("/")):
            raise PenstockError(
                f"{self.shown} holds the object {name!r}, which no folder of Penstock has: remove it, or name another"
                " address.",
                code="wrong-file",
            )

    def _is_ahead(self, known: Mapping[str, _File], listed: Mapping[str, tuple[int, int]]) -> bool:
        """Whether the copy has changed and what is at the address has not, since they were equal."""
        if not known or listed != {name: each[2:] for name, each in known.items()}:
            return False
        files = self._files(self.local)
        return _LIVING in files and files != {name: each[:2] for name, each in known.items()}

    def _is_written_here(self) -> bool:
        """Whether a process of this machine is writing the copy."""
        if not (self.local / _LOCK).exists():
            return False
        try:
            os.close(open_lock(self.local / _LOCK))
        except BlockingIOError:
            return True
        return False

    def _known(self) -> dict[str, _File]:
        try:
            found = json.loads((self._place / "known.json").read_text("utf-8"))
            return {str(name): _File(*map(int, each)) for name, each in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write_known(self, known: Mapping[str, _File]) -> None:
        write_whole(self._place / "known.json", json.dumps(known))

    # The cache.

    def _hold(self) -> None:
        """Keep the copy in the cache while this process lives, and note that it is used."""
        if self._place not in _held:
            descriptor = os.open(self._place / "held", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            _held[self._place] = descriptor
        os.utime(_held[self._place])

    def _make_room(self, size: int) -> None:
        """Remove copies that were used longest ago, and by no process now, until so many bytes fit."""
        bound = _bound()
        places = sorted((each for each in _objects().iterdir() if each.is_dir()), key=_last_used)
        sizes = {each: _bytes_below(each) for each in places}
        for place in places:
            if sum(sizes.values()) + size <= bound:
                return
            if place != self._place and _dropped(place):
                sizes.pop(place)
        if sum(sizes.values()) + size > bound:
            raise PenstockError(
                f"{self.shown} needs {size / _GB:.3g} GiB of the cache for objects, {_objects()}, which may hold"
                f" {bound / _GB:.3g} GiB and has {sum(sizes.values()) / _GB:.3g} in use: set {_BOUND} to more, or"
                " PENSTOCK_CACHE to a folder on a larger disk.",
                code="too-large",
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time compares the copy with the address."""
        descriptor = os.open(self._place / "turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
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
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            found = access_error(error, where, self._kind.rights, done)
            raise found or PenstockError(
                f"{where} could not be {done} ({problem_of(error)}): correct the address, or try again.",
                code="external-failure",
            ) from None


_BOUND = "PENSTOCK_OBJECTS_GB"
_held: dict[Path, int] = {}
"""Copies that this process uses, and the descriptors that keep them in the cache."""


def _objects() -> Path:
    return Path(os.path.realpath(cache_folder())) / "objects"


def _bound() -> int:
    """The most bytes that copies may have together: as asked for, else half of what the disk has free, and they."""
    asked = os.environ.get(_BOUND)
    if asked is None:
        return shutil.disk_usage(_objects()).free // 2 + _bytes_below(_objects())
    try:
        bound = float(asked)
    except ValueError:
        bound = -1.0
    if not bound > 0:
        raise PenstockError(f"{_BOUND} is {asked!r}: give a number of GiB above 0.", code="invalid-value")
    return int(bound * _GB)


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(place) / name).lstat().st_size
    return total


def _last_used(place: Path) -> float:
    with suppress(OSError):
        return (place / "held").stat().st_mtime
    return 0.0


def _dropped(place: Path) -> bool:
    """Remove a copy that no process uses, and that has nothing which was not sent."""
    try:
        descriptor = os.open(place / "held", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder = ObjectFolder.of(place)
        if folder is None or {name: each[:2] for name, each in folder._known().items()} != folder._files(folder.local):
            return False
        shutil.rmtree(place, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _is_unfinished(listed: Mapping[str, Any]) -> bool:
    return _UNFINISHED in listed


def _is_among(name: str, only: tuple[str, ...]) -> bool:
    return not only or any(name == each or (each.endswith("/") and name.startswith(each)) for each in only)


def _check_address(address: str) -> None:
    from penstock.graph.addresses import SCHEMES

    scheme, _, rest = address.partition("?")[0].partition("://")
    host = rest.partition("/")[0]
    if scheme.lower() not in SCHEMES or scheme.lower() == "file":
        known = [name for name in SCHEMES if name != "file"]
        raise PenstockError(
            f"{scheme}://{host.rpartition('@')[2]} has an unknown scheme{nearest(scheme.lower(), known)}",
            code="unknown-name",
        )
    if "@" in host or "secret_key=" in address or "access_key=" in address:
        raise PenstockError(
            f"The address of {scheme}://{host.rpartition('@')[2]} holds a key, which run folders would keep: set the"
            " variables of the environment that its documentation names instead.",
            code="invalid-value",
        )
