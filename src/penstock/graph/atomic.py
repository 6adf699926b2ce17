"""Folders and documents that appear whole or not at all.

Until then they have a name that begins with a dot, and are locked by the process that writes them. One that was killed
leaves them, and whoever writes there next removes them.
"""

import fcntl
import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from penstock.errors import PenstockError
from penstock.graph.input_files import read_document
from penstock.graph.output_files import open_bytes, writing

_UNFINISHED = re.compile(r"\..+\.writing-[0-9a-f]{8}")
# A folder that Penstock wrote has one of these, whose `format` says so.
_DOCUMENTS = ("graph.json", "partition.json", "export.json", "run.json", "config.json")


@contextmanager
def new_folder(target: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its name when the block ends well and vanishes otherwise.

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


def write_whole(path: Path, text: str) -> None:
    """Write or replace a document; where the disk is full, the one before stays and nothing else is left."""
    # Half a surrogate pair is legal in JSON but not in a file.
    replace_whole(path, lambda file: file.write(text.encode("utf-8", "replace")))


def replace_whole(path: Path, write: Callable[[BinaryIO], object], durable: bool = False) -> None:
    """The same for a file of any kind, by whoever writes to the open file. A link in its place is replaced.

    A file that is `durable` is on the disk when this returns, and outlives a power cut.
    """
    temporary = unfinished(path)
    with writing(path):
        try:
            with open_bytes(temporary, "xb") as file, claimed(temporary):
                write(file)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
                # Closed before it takes its name: some file systems say only then that it could not be written.
                file.close()
                temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def unfinished(path: Path) -> Path:
    """The name that a file or folder has until it is whole."""
    return path.with_name(f".{path.name}.writing-{token_hex(4)}")


@contextmanager
def claimed(temporary: Path) -> Iterator[None]:
    """Within it, an unfinished file or folder is known as one that a process is still writing."""
    descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Where a file system has no locks, nobody can tell what was left there, and nothing is removed.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove_unfinished(target: Path) -> None:
    """Remove what killed processes have left of a folder that is about to be written, beside it."""
    replaced = list(target.parent.glob(f".{glob.escape(target.name)}.replaced-*"))
    for left in target.parent.glob(f".{glob.escape(target.name)}.writing-*"):
        _remove_left(left)
    # Killed between two renames, a process leaves the folder that was there before: it is the only one then.
    for left in replaced if target.exists() else []:
        shutil.rmtree(left, ignore_errors=True)


def remove_unfinished_below(folder: Path) -> None:
    """Remove what killed processes have left in a folder and below it."""
    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            _remove_left(Path(place) / name)


def _remove_left(path: Path) -> None:
    """Remove an unfinished file or folder, unless a process is still writing it."""
    if not _UNFINISHED.fullmatch(path.name) or path.is_symlink():
        return
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
        # Renaming onto a folder that someone filled a moment ago fails, as it should.
        temporary.rename(target)
        return
    replace_folder(temporary, target)


def replace_folder(temporary: Path, target: Path) -> None:
    """Put a folder in the place of another, which is removed afterwards and put back if that fails."""
    aside = target.parent / f".{target.name}.replaced-{token_hex(4)}"
    target.rename(aside)
    try:
        temporary.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _disk_sentence(error: OSError, target: Path) -> str:
    reason = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename and Path(str(error.filename)) != target else ""
    return f"Could not write {target}: {reason}{where}. Nothing was left there; free space or name another folder."
