"""Folders that appear complete or not at all, here and on object stores."""

import fcntl
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from penstock.errors import PenstockError
from penstock.graph.files import (
    DOCUMENTS,
    claimed,
    make_private_folder,
    read_document,
    remove_left,
    remove_unclaimed,
    unfinished,
)
from penstock.graph.object_folders import abandon, check_new, is_remote, new_copy, place_of, send


@contextmanager
def new_folder(target: Path, force: bool = False) -> Iterator[Path]:
    """A temporary folder beside `target` that gets its name when the block succeeds and is removed otherwise.

    The document that makes the folder openable must be written last: then even a killed process leaves nothing that
    opens. Where the target is the address of an object store, the folder is sent there at the end.
    """
    target = new_copy(Path(target), force)
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
        send(target)
    except BaseException as error:
        abandon(target)
        if isinstance(error, OSError):
            raise PenstockError(_disk_sentence(error, target), code="write-failed") from error
        raise
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
    target = new_copy(target, force).resolve()
    check_target(target, force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(target)
        work, lock = _held_folder(target)
    except OSError as error:
        raise PenstockError(_disk_sentence(error, target), code="write-failed") from error
    is_placed = False
    try:
        yield work
        _replace(work / "new", target, force)
        is_placed = True
        send(target)
        shutil.rmtree(work, ignore_errors=True)
    except BaseException as error:
        kept = keeps(error)
        abandon(target)
        if not kept:
            shutil.rmtree(work, ignore_errors=True)
        elif is_placed:
            # It could not be sent to its address: the next process for this target finds it done.
            with suppress(OSError):
                target.rename(work / "new")
        if isinstance(error, OSError):
            raise PenstockError(_disk_sentence(error, target, kept), code="write-failed") from error
        raise
    finally:
        os.close(lock)


JOURNAL = "journal"


def lasting_name(target: Path) -> Path:
    """The folder beside a target that lasts when its process is killed."""
    target = place_of(target).resolve()
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


def remove_unfinished(target: Path) -> None:
    """Remove what killed processes have left beside a folder that is about to be written."""
    replaced = list(target.parent.glob(f".{glob.escape(target.name)}.replaced-*"))
    for left in target.parent.glob(f".{glob.escape(target.name)}.writing-*"):
        remove_left(left)
    lasting = lasting_name(target)
    if lasting.is_dir() and not lasting.is_symlink() and not (lasting / JOURNAL).exists():
        remove_unclaimed(lasting)
    # A process killed between two renames leaves the former folder as the only copy: restore it.
    for left in replaced if target.exists() else []:
        shutil.rmtree(left, ignore_errors=True)


def check_target(target: Path, force: bool) -> None:
    """Refuse an output that exists, before any work is done for it and again before it is replaced."""
    if is_remote(target):
        check_new(target, force)
        return
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
    if not any(_is_ours(target / name) for name in DOCUMENTS):
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
