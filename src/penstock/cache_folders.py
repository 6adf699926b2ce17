"""Folders for compiled kernels and other files that can be made again."""

import functools
import os
import stat
import sys
import tempfile
from pathlib import Path

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
