"""Folders that appear whole or not at all."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import PenstockError

# A folder with one of these was written by Penstock and may be replaced when the user says so.
DOCUMENTS = ("graph.json", "partition.json", "export.json")


@contextmanager
def new_folder(target: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its name when the block ends well and vanishes otherwise.

    The document that makes the folder openable must be written last: then even a killed process leaves nothing that
    opens.
    """
    target = Path.cwd() / target
    check_target(target, force)
    temporary = target.parent / f".{target.name}.writing-{os.getpid()}-{threading.get_ident()}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        _replace(temporary, target)
    except OSError as error:
        raise PenstockError(_disk_sentence(error, target)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_target(target: Path, force: bool) -> None:
    """Refuse an output that exists, before any work is done for it."""
    if not target.exists():
        return
    if not target.is_dir():
        raise PenstockError(f"{target} exists and is a file: name a folder that does not exist yet.")
    if not any(target.iterdir()):
        return
    if not force:
        raise PenstockError(f"{target} exists already: add --force to replace it, or name another folder.")
    if not any((target / name).is_file() for name in DOCUMENTS):
        raise PenstockError(f"{target} exists and is no Penstock folder, so --force will not replace it: name another.")


def _replace(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
        return
    aside = target.parent / f".{target.name}.replaced-{os.getpid()}"
    target.rename(aside)
    temporary.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def _disk_sentence(error: OSError, target: Path) -> str:
    reason = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename and Path(str(error.filename)) != target else ""
    return f"Could not write {target}: {reason}{where}. Nothing was left there; free space or name another folder."
