"""Files and folders that Penstock reads and writes: only regular ones, and written completely or not at all."""

import errno
import fcntl
import glob
import io
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Literal, TextIO

from penstock.errors import PenstockError

# Files that Penstock reads: only regular files, and documents of bounded size. A path may lead to a named pipe, whose
# reader waits for a writer, or to a device that never ends. Both are refused with an OSError, like any other file that
# cannot be read.

MOST_BYTES = 256 << 20
"""The largest size of a document: usual ones have some thousand bytes, those of the largest clusters millions."""
_PIECE = 1 << 20
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """A regular file, open for reading; links to one are followed."""
    check_regular(path)
    file = open(path, "rb", buffering, opener=_without_waiting)  # noqa: SIM115 (Path.open has no opener)
    try:
        # The file may have been replaced since it was checked.
        _check(os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return file


def open_lines(path: Path) -> TextIO:
    """The same as UTF-8 text, for files that are read line by line, of any length."""
    return io.TextIOWrapper(open_regular(path), "utf-8", newline="")


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is not a regular file, for readers that open a path themselves. Nothing is opened."""
    _check(os.stat(path).st_mode)  # noqa: PTH116 (paths may be given as text)


def read_document(path: Path) -> str:
    """The text of a document; ValueError if it is too large for one, or is not UTF-8."""
    content = bytearray()
    with open_regular(path) as file:
        # In pieces: Python takes memory for as many bytes as are asked for, and most documents are small.
        while len(content) <= MOST_BYTES and (piece := file.read(_PIECE)):
            content += piece
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB, the most that a document may have")
    return content.decode("utf-8")


def _check(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise OSError(f"it is {kind}, and only regular files are read")


def _without_waiting(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


# Files that Penstock writes: never through a symbolic link, and with errors that name the file. A path that the user
# names (a run folder, `--out`) may lead through links. What Penstock itself creates inside a folder may not: another
# user could have put a link there that leads to a file of this user's.

TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
FEWER_FILES = "close other programs or raise the limit of open files (ulimit -n), then try again."
"""What to do about one of these errors."""
PRIVATE_UMASK = 0o077
"""The umask for files and folders that only the user may read."""
_PRIVATE = 0o600
_AS_UMASK_SAYS = 0o666


def check_ending(path: Path, wrong: str, *endings: str) -> None:
    """Refuse, before there is anything to write, a file whose name ends differently or whose folder does not exist."""
    if path.suffix not in endings:
        raise PenstockError(f"{path} is {wrong}: end its name in {' or '.join(endings)}.", code="invalid-value")
    if not path.parent.is_dir():
        raise PenstockError(
            f"The folder {path.parent} does not exist: make it, or write {path.name} elsewhere.", code="file-not-found"
        )


def open_bytes(path: Path, mode: Literal["xb", "x+b", "ab", "r+b"], buffering: int = -1) -> BinaryIO:
    """Open a file for writing. `xb` makes a new file, and fails where there is one; none of them follows a link."""
    opened: Any = open(path, mode, buffering, opener=_without_links)  # noqa: SIM115 (Path.open has no opener)
    return _regular(opened, path)  # type: ignore[no-any-return]


def open_text(path: Path, mode: Literal["x", "a"], buffering: int = -1, errors: str | None = None) -> TextIO:
    """The same for text, in UTF-8."""
    opened: Any = open(path, mode, buffering, "utf-8", errors, opener=_without_links)  # noqa: SIM115
    return _regular(opened, path)  # type: ignore[no-any-return]


def write_new(path: Path, text: str) -> None:
    """Write a document that does not exist yet; to replace one, see `write_whole`."""
    with open_text(path, "x") as file:
        file.write(text)


def open_lock(path: Path) -> int:
    """The descriptor of a lock file that this process now holds; BlockingIOError if another one does.

    The lock ends with the process. The file is private to the user and is never truncated.
    """
    descriptor = _without_links(path, os.O_RDWR | os.O_CREAT, _PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_private(path: Path, flags: int) -> int:
    """The descriptor of a file that only the user may read."""
    return _without_links(path, flags, _PRIVATE)


def make_private_folder(path: Path) -> Path:
    """A folder that only the user may enter; an existing one is kept, but may not be a link."""
    try:
        path.mkdir(0o700)
    except FileExistsError:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise PenstockError(_refusal(path), code="write-failed") from None
    return path


def refuse_links(folder: Path) -> None:
    """Refuse to write into a folder that has a symbolic link among its entries."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise PenstockError(_refusal(folder / entry.name), code="write-failed")


@contextmanager
def writing(path: Path, advice: str | None = None) -> Iterator[None]:
    """A context for writes to a file: errors of the system become a sentence that names it.

    The system names a file when it cannot be opened, but not when a write to it fails.
    """
    try:
        yield
    except OSError as error:
        raise PenstockError(
            f"Could not write {path}: {error.strerror or error}. {advice or _advice(error)}", code="write-failed"
        ) from error


def _advice(error: OSError) -> str:
    """What to do about a write that the system refuses."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Choose a folder that you may write to."
    if error.errno in TOO_MANY_FILES:
        return FEWER_FILES.capitalize()
    if error.errno == errno.ENAMETOOLONG:
        return "Choose a shorter name."
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return "Choose another path."
    return "Free space, then try again."


def _without_links(path: str | Path, flags: int, mode: int = _AS_UMASK_SAYS) -> int:
    # Opening a pipe must not wait for its reader.
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and Path(path).is_symlink():
            raise PenstockError(_refusal(Path(path)), code="write-failed") from None
        raise


def _regular(opened: Any, path: Path) -> Any:
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise PenstockError(
            f"{path} is not a regular file, and Penstock writes only to those: remove it, then try again.",
            code="write-failed",
        )
    return opened


def _refusal(path: Path) -> str:
    what = "is a symbolic link" if path.is_symlink() else "is no folder"
    return f"{path} {what}, and Penstock does not write through it: remove it, then try again."


# Folders and documents that appear complete or not at all. Until then they have a name that begins with a dot, and are
# locked by the process that writes them. A killed process leaves them, and the next writer there removes them.

_UNFINISHED = re.compile(r"\..+\.writing-[0-9a-f]{8}")
# A folder that Penstock wrote has one of these, whose `format` identifies it.
_DOCUMENTS = ("graph.json", "partition.json", "export.json", "run.json", "config.json")


@contextmanager
def new_folder(target: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `target` that gets its name when the block succeeds and is removed otherwise.

    The document that makes the folder openable must be written last: then even a killed process leaves nothing that
    opens.
    """
    target = Path(target)
    temporary = None
    try:
        target = target.resolve()
        check_target(target, force)
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(target)
        temporary = unfinished(target)
        temporary.mkdir()
        with claimed(temporary):
            yield temporary
            _replace(temporary, target, force)
    except OSError as error:
        raise PenstockError(_disk_sentence(error, target), code="write-failed") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def lasting_folder(target: Path, force: bool, keeps: Callable[[BaseException], bool]) -> Iterator[Path]:
    """A folder beside `target` that a killed process leaves, and that the next one for this target finds again.

    The block makes a folder `new` in it, which gets the target's name when the block succeeds. The rest is removed
    then, and after an error unless `keeps` says otherwise. Without a file `JOURNAL` nobody could go on with it: whoever
    writes the target next removes it.
    """
    target = target.resolve()
    check_target(target, force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(target)
        work, lock = _held_folder(target)
    except OSError as error:
        raise PenstockError(_disk_sentence(error, target), code="write-failed") from error
    try:
        yield work
        _replace(work / "new", target, force)
        shutil.rmtree(work, ignore_errors=True)
    except BaseException as error:
        kept = keeps(error)
        if not kept:
            shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, OSError):
            raise PenstockError(_disk_sentence(error, target, kept), code="write-failed") from error
        raise
    finally:
        os.close(lock)


JOURNAL = "journal"


def lasting_name(target: Path) -> Path:
    """The folder beside a target that lasts when its process is killed."""
    target = target.resolve()
    return target.with_name(f".{target.name}.unfinished")


def _held_folder(target: Path) -> tuple[Path, int]:
    """The folder that lasts beside a target, and the descriptor by which this process alone holds it."""
    work = lasting_name(target)
    while True:
        make_private_folder(work)
        try:
            lock = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            # Another process has just removed it.
            continue
        try:
            _hold(lock, work, target)
            # The process that held it before may have finished and removed it.
            if work.exists() and os.path.samestat(work.lstat(), os.fstat(lock)):
                return work, lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _hold(lock: int, work: Path, target: Path) -> None:
    """Lock a folder, which must be this user's: what lies there is gone on with."""
    if os.fstat(lock).st_uid != os.geteuid():
        raise PenstockError(f"{work} belongs to another user: remove it, or name another output.", code="not-permitted")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PenstockError(
            f"{target} is being written by another process: wait for it or stop it, or name another output.",
            code="in-use",
        ) from None
    except OSError:
        # Where a file system has no locks, nobody else can be noticed.
        return


def write_whole(path: Path, text: str) -> None:
    """Write or replace a document; if the disk is full, the old one stays and nothing else is left."""
    # An unpaired surrogate is legal in JSON but not in a file.
    replace_whole(path, lambda file: file.write(text.encode("utf-8", "replace")))


def replace_whole(path: Path, write: Callable[[BinaryIO], object], durable: bool = False) -> None:
    """The same for any file, written by a callback. A link in its place is replaced.

    A `durable` file is on the disk when this returns, and survives a power cut.
    """
    temporary = unfinished(path)
    with writing(path):
        try:
            with open_bytes(temporary, "xb") as file, claimed(temporary):
                write(file)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
                # Closed before it is renamed: some file systems report write errors only then.
                file.close()
                temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def unfinished(path: Path) -> Path:
    """The temporary name of a file or folder until it is complete."""
    return path.with_name(f".{path.name}.writing-{token_hex(4)}")


@contextmanager
def claimed(temporary: Path) -> Iterator[None]:
    """Within the context, an unfinished file or folder is marked as being written by a process."""
    descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Where a file system has no locks, leftovers cannot be told from files in use, and nothing is removed.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove_unfinished(target: Path) -> None:
    """Remove what killed processes have left beside a folder that is about to be written."""
    replaced = list(target.parent.glob(f".{glob.escape(target.name)}.replaced-*"))
    for left in target.parent.glob(f".{glob.escape(target.name)}.writing-*"):
        _remove_left(left)
    lasting = lasting_name(target)
    if lasting.is_dir() and not lasting.is_symlink() and not (lasting / JOURNAL).exists():
        _remove_unclaimed(lasting)
    # A process killed between two renames leaves the former folder as the only copy: restore it.
    for left in replaced if target.exists() else []:
        shutil.rmtree(left, ignore_errors=True)


def remove_unfinished_below(folder: Path) -> None:
    """Remove what killed processes have left in a folder and below it."""
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            _remove_left(Path(place) / name)


def _remove_left(path: Path) -> None:
    """Remove an unfinished file or folder, unless a process is still writing it."""
    if _UNFINISHED.fullmatch(path.name) and not path.is_symlink():
        _remove_unclaimed(path)


def _remove_unclaimed(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(descriptor)


def check_target(target: Path, force: bool) -> None:
    """Refuse an output that exists, before any work is done for it and again before it is replaced."""
    target = target.resolve()
    if Path.cwd().is_relative_to(target):
        raise PenstockError(f"{target} is the folder you are in: name another for the output.", code="file-exists")
    if not target.exists():
        return
    if not target.is_dir():
        raise PenstockError(
            f"{target} exists and is a file: name a folder that does not exist yet.", code="file-exists"
        )
    if not any(target.iterdir()):
        return
    if not force:
        raise PenstockError(
            f"{target} exists already: add --force (force=True in Python) to replace it, or name another folder.",
            code="file-exists",
        )
    if not any(_is_ours(target / name) for name in _DOCUMENTS):
        raise PenstockError(
            f"{target} exists and is not a Penstock folder, so --force does not replace it: name another folder.",
            code="file-exists",
        )


def _is_ours(document: Path) -> bool:
    try:
        found = json.loads(read_document(document))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and str(found.get("format", "")).startswith("penstock-")


def _replace(temporary: Path, target: Path, force: bool) -> None:
    check_target(target, force)
    if not force or not target.exists():
        # Renaming onto a folder that was filled a moment ago fails, as it should.
        temporary.rename(target)
        return
    replace_folder(temporary, target)


def replace_folder(temporary: Path, target: Path) -> None:
    """Replace a folder by another; the former is removed afterwards, and restored if that fails."""
    aside = target.parent / f".{target.name}.replaced-{token_hex(4)}"
    target.rename(aside)
    try:
        temporary.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _disk_sentence(error: OSError, target: Path, kept: bool = False) -> str:
    reason = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename and Path(str(error.filename)) != target else ""
    if kept:
        return f"Could not write {target}: {reason}{where}. Free space; the same command then goes on from there."
    return f"Could not write {target}: {reason}{where}. Nothing was left there; free space or name another folder."


def take_blocks(descriptor: int, size: int) -> None:
    """Allocate the disk's blocks now: writing to a mapped file with holes kills the process where the disk is full."""
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS has no such call: write the blocks.
    for start in range(0, size, 1 << 20):
        os.pwrite(descriptor, bytes(min(1 << 20, size - start)), start)
