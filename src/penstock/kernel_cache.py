"""Where compiled kernels are kept: chosen before Numba or Triton is imported, so that no unwritable folder stops them.

Numba keeps compiled kernels beside the sources, or in the user's cache folder, and raises an error where it can write
to neither: in many containers and for many service accounts. Triton knows the home folder only. Where those fail, a
private folder under the system's temporary folder is used, and where there is none either, kernels are compiled anew by
every process.
"""

import os
import stat
import sys
import tempfile
from pathlib import Path

_NUMBA, _TRITON = "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR"


def choose_kernel_cache() -> None:
    """Set NUMBA_CACHE_DIR and TRITON_CACHE_DIR for this process and its children, where the usual folders fail."""
    if not _numba_can_write():
        folder = private_folder("numba")
        if folder is None:
            _compile_without_cache()
        else:
            os.environ[_NUMBA] = str(folder)
            if "numba" in sys.modules:
                # Numba has read its environment already.
                sys.modules["numba"].config.CACHE_DIR = str(folder)
    if not _triton_can_write() and (folder := private_folder("triton")) is not None:
        os.environ[_TRITON] = str(folder)


def private_folder(name: str) -> Path | None:
    """A folder of this user alone under the temporary folder, or None where it cannot be had.

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
    """The user's home; a user whom the system does not know has one called `~`, here. `Path.home` would raise."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111


def _numba_can_write() -> bool:
    """Whether one of the places that Numba tries by itself can hold what it compiles."""
    asked = os.environ.get(_NUMBA)
    if asked and _can_hold(Path(asked)):
        return True
    return _beside_sources() or _can_hold(_user_cache() / "numba")


def _beside_sources() -> bool:
    """Whether each package of Penstock has a `__pycache__` that can be written, or could have one."""
    root = Path(__file__).parent
    packages = [root, *(Path(found) for found, _, files in os.walk(root) if "__init__.py" in files)]
    return all(_can_hold(package / "__pycache__") for package in packages)


def _triton_can_write() -> bool:
    asked = os.environ.get(_TRITON)
    home = os.environ.get("TRITON_HOME")
    return _can_hold(Path(asked) if asked else (Path(home) if home else home_folder()) / ".triton" / "cache")


def _user_cache() -> Path:
    """As Numba finds it."""
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


def _compile_without_cache() -> None:
    """Let `cache=True` mean nothing, as there is no folder at all. Only here is Numba imported for it at once."""
    from numba.core.dispatcher import Dispatcher

    def leave_uncached(self: Dispatcher) -> None:
        """In place of `Dispatcher.enable_caching`."""

    Dispatcher.enable_caching = leave_uncached  # type: ignore[method-assign]
