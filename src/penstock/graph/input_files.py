"""Files that Penstock reads: regular files alone, and documents of bounded size.

A path may lead to a named pipe, whose reader waits for somebody to write, or to a device that never ends. Both are
refused with an OSError, like any other file that cannot be read.
"""

import io
import os
import stat
from pathlib import Path
from typing import BinaryIO, TextIO

MOST_BYTES = 256 << 20
"""Of a document: those that people and programs write have some thousands, and of the largest clusters millions."""
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
        # What was looked at before may have been replaced since.
        _check(os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return file


def open_lines(path: Path) -> TextIO:
    """The same as UTF-8 text, for files that are read line by line, of any length."""
    return io.TextIOWrapper(open_regular(path), "utf-8", newline="")


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is not a regular file, for readers that open a path by themselves. Nothing is opened."""
    _check(os.stat(path).st_mode)  # noqa: PTH116 (paths may be given as text)


def read_document(path: Path) -> str:
    """The text of a document; ValueError if it is too large for one, or is not UTF-8."""
    with open_regular(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB, the most that a document may have")
    return content.decode("utf-8")


def _check(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise OSError(f"it is {kind}, and only regular files are read")


def _without_waiting(path: str, flags: int) -> int:
    # Without O_NONBLOCK, a pipe is opened when somebody writes to it.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
