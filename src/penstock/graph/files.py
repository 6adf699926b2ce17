"""Files and folders that Penstock reads and writes: only regular ones, and written completely or not at all."""

import errno
import fcntl
import io
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


# Documents that appear complete or not at all, as folders do (`new_folders`). Until then they have a name that begins
# with a dot, and are locked by the process that writes them. A killed process leaves them, and the next writer there
# removes them.

DOCUMENTS = ("graph.json", "partition.json", "export.json", "run.json", "config.json")
"""A folder that Penstock wrote has one of these, whose `format` identifies it."""
_UNFINISHED = re.compile(r"\..+\.writing-[0-9a-f]{8}")


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


def remove_unfinished_below(folder: Path) -> None:
    """Remove what killed processes have left in a folder and below it."""
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            remove_left(Path(place) / name)


def remove_left(path: Path) -> None:
    """Remove an unfinished file or folder, unless a process is still writing it."""
    if _UNFINISHED.fullmatch(path.name) and not path.is_symlink():
        remove_unclaimed(path)


def remove_unclaimed(path: Path) -> None:
    """Remove a file or folder, unless a process holds it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(descriptor)


def take_blocks(descriptor: int, size: int) -> None:
    """Allocate the disk's blocks now: writing to a mapped file with holes kills the process where the disk is full."""
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS has no such call: write the blocks.
    for start in range(0, size, 1 << 20):
        os.pwrite(descriptor, bytes(min(1 << 20, size - start)), start)
