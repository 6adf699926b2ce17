"""Files that Penstock writes: never through a symbolic link, and with errors that name the file.

A path that the user names (a run folder, `--out`) may lead through links. What Penstock itself creates inside a folder
may not: somebody else could have put a link there that leads to a file of the user's.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from penstock.errors import PenstockError

TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
FEWER_FILES = "close other programs or raise the limit of open files (ulimit -n), then try again."
"""What to do about one of these errors."""
PRIVATE_UMASK = 0o077
"""Lets a process make files and folders that only the user may read."""
_PRIVATE = 0o600
_AS_UMASK_SAYS = 0o666


def open_bytes(path: Path, mode: Literal["xb", "x+b", "ab", "r+b"], buffering: int = -1) -> BinaryIO:
    """Open a file for writing. `xb` makes a new file, and fails where there is one; none of them follows a link."""
    opened: Any = open(path, mode, buffering, opener=_without_links)  # noqa: SIM115 (Path.open has no opener)
    return _regular(opened, path)  # type: ignore[no-any-return]


def open_text(path: Path, mode: Literal["x", "a"], buffering: int = -1, errors: str | None = None) -> TextIO:
    """The same for text, in UTF-8."""
    opened: Any = open(path, mode, buffering, "utf-8", errors, opener=_without_links)  # noqa: SIM115
    return _regular(opened, path)  # type: ignore[no-any-return]


def write_new(path: Path, text: str) -> None:
    """Write a document that is not there yet; for one that may be, see `atomic.write_whole`."""
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
    """A folder that only the user may enter; one that is there already stays as it is, but may not be a link."""
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
    """Around writes to a file: what the system refuses becomes a sentence that names it.

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
    # A pipe in a file's place must not keep us waiting for its reader.
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
