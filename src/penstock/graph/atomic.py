"""Folders and documents that appear whole or not at all."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from penstock.errors import PenstockError
from penstock.graph.output_files import open_bytes, writing

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
        temporary = target.parent / f".{target.name}.writing-{token_hex(4)}"
        temporary.mkdir()
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
    temporary = path.with_name(f".{path.name}.writing-{token_hex(4)}")
    with writing(path):
        try:
            with open_bytes(temporary, "xb") as file:
                write(file)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


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
        found = json.loads(document.read_text())
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
