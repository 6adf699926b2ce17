"""Folders for compiled kernels and other files that can be made again."""

import fcntl
import functools
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from penstock.errors import PenstockError

# Where compiled kernels are kept: a folder that can be written, so that no unwritable one stops a command.
#
# The user's cache folder holds what Numba compiles (see `penstock.kernels`), the home folder what Triton does. In many
# containers and for many service accounts neither can be written. There a private folder under the system's temporary
# folder is used, and where there is none either, kernels are compiled anew by every process.

_NUMBA, _TRITON = "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR"


@functools.cache
def kernel_folder() -> Path | None:
    """The folder for kernels that Numba compiled, or None where none can be written.

    It is what NUMBA_CACHE_DIR says, where that can be written.
    """
    asked = os.environ.get(_NUMBA)
    for folder in ([Path(asked)] if asked else []) + [_user_cache() / "penstock" / "kernels"]:
        if _can_hold(folder):
            return folder.absolute()
    return private_folder("kernels")


def choose_triton_cache() -> None:
    """Set TRITON_CACHE_DIR for this process and its children, where the default folder cannot be written."""
    asked = os.environ.get(_TRITON)
    home = os.environ.get("TRITON_HOME")
    usual = Path(asked) if asked else (Path(home) if home else home_folder()) / ".triton" / "cache"
    if not _can_hold(usual) and (folder := private_folder("triton")) is not None:
        os.environ[_TRITON] = str(folder)


def private_folder(name: str) -> Path | None:
    """A folder of this user alone under the temporary folder, or None where none can be made.

    Numba unpickles what it finds in its cache, so the folder must not be one that another user prepared: it is neither
    a symbolic link nor owned by someone else, and only its owner may write to it.
    """
    try:
        folder = Path(tempfile.gettempdir()) / f"penstock-{os.geteuid()}"
        for each in (folder, folder / name):
            try:
                each.mkdir(mode=0o700)
            except FileExistsError:
                found = each.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                    return None
        tempfile.TemporaryFile(dir=folder / name).close()
    except OSError:
        return None
    return folder / name


def home_folder() -> Path:
    """The user's home, or the literal path `~` for a user whom the system does not know, where
    `Path.home` would raise.
    """
    return Path(os.path.expanduser("~"))  # noqa: PTH111


def _user_cache() -> Path:
    """This user's folder for caches, by the operating system's convention."""
    if sys.platform == "darwin":
        return home_folder() / "Library" / "Caches"
    asked = os.environ.get("XDG_CACHE_HOME")
    return Path(asked) if asked else home_folder() / ".cache"


def _can_hold(folder: Path) -> bool:
    """Whether files can be made in a folder, or in the folder that it would be made in. Nothing is created."""
    folder = folder.absolute()
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    effective = os.access in os.supports_effective_ids
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK, effective_ids=effective)


# The cache folder for what can be made again.


def cache_folder() -> Path:
    """PENSTOCK_CACHE, or `penstock` under the user's cache folder."""
    asked = os.environ.get("PENSTOCK_CACHE")
    if asked:
        return Path(asked)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else home_folder() / ".cache") / "penstock"


# Copies of what lies on object stores, each in a place of its own, in a cache with a bound.

_BOUND = "PENSTOCK_OBJECTS_GB"
_GB = 1 << 30
_held: dict[Path, int] = {}
"""Copies that this process uses, and the descriptors that keep them in the cache."""


def copies_folder() -> Path:
    """The folder of all copies."""
    return Path(os.path.realpath(cache_folder() / "objects"))


def hold(place: Path) -> None:
    """Keep a copy in the cache while this process lives, unless another process has just removed it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(place / "held", flags, 0o600)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    with suppress(FileNotFoundError):
        if os.path.samestat((place / "held").lstat(), os.fstat(descriptor)):
            _held[place] = descriptor
            return
    os.close(descriptor)


def is_held(place: Path) -> bool:
    """Whether this process keeps a copy; the copy then counts as used now."""
    if place not in _held:
        return False
    with suppress(OSError):
        os.utime(_held[place])
    return True


def make_room(size: int, own: Path, is_dispensable: Callable[[Path], bool], what: str) -> None:
    """Remove copies that were used longest ago, and by no process now, until so many bytes fit for `what`, which is
    copied to its `own` place.
    """
    bound = _bound()
    places = sorted((each for each in copies_folder().iterdir() if each.is_dir()), key=_last_used)
    sizes = {each: _bytes_below(each) for each in places}
    for place in places:
        if sum(sizes.values()) + size <= bound:
            return
        if place != own and _dropped(place, is_dispensable):
            sizes.pop(place)
    if sum(sizes.values()) + size > bound:
        raise PenstockError(
            f"{what} needs {size / _GB:.3g} GiB of the cache for objects, {copies_folder()}, which may hold"
            f" {bound / _GB:.3g} GiB and has {sum(sizes.values()) / _GB:.3g} in use: set {_BOUND} to more, or"
            " PENSTOCK_CACHE to a folder on a larger disk.",
            code="too-large",
        )


def _bound() -> int:
    """The most bytes that copies may have together: as asked for, else half of what the disk has free, and they."""
    asked = os.environ.get(_BOUND)
    if asked is None:
        return shutil.disk_usage(copies_folder()).free // 2 + _bytes_below(copies_folder())
    try:
        bound = float(asked)
    except ValueError:
        bound = -1.0
    if not 0 < bound < 1e9:
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


def _dropped(place: Path, is_dispensable: Callable[[Path], bool]) -> bool:
    """Remove a copy that no process uses, if it can be made again."""
    try:
        descriptor = os.open(place / "held", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_dispensable(place):
            return False
        aside = place.with_name(f".dropped-{token_hex(4)}")
        place.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
