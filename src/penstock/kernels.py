"""Numba's `njit` for Penstock's kernels, which keeps what it compiled under a key made from the sources.

Numba by itself keeps compiled kernels beside each source file, so every checkout and virtual environment compiles them
again, and a kernel is not compiled anew when a kernel or constant that it takes from another file changes.
Here a module's kernels are kept in the user's cache folder, under a digest of its source and of every source of
Penstock that it imports, directly or not. Checkouts with the same sources share them.
"""

import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import CacheImpl

from penstock.cache_folders import kernel_folder

_PACKAGE = Path(__file__).parent
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(penstock[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+(penstock[\w.]*))",
    re.MULTILINE,
)
_KEPT_SECONDS = 30 * 24 * 3600


Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def njit(**options: Any) -> Callable[[Kernel], Kernel]:
    """`numba.njit`, without its cache where no folder can hold one; kernels are then compiled by every process."""
    if kernel_folder() is None:
        options["cache"] = False
    compiled: Callable[[Kernel], Kernel] = numba.njit(**options)
    return compiled


@functools.cache
def source_key(module: Path) -> str:
    """A digest of a module of Penstock and of all that it imports from Penstock, whatever folder they lie in."""
    digest = hashlib.sha256()
    for source in sorted(_imported(module)):
        digest.update(f"{source.relative_to(_PACKAGE)}\0".encode())
        digest.update(_text(source).encode())
    return digest.hexdigest()[:32]


def _imported(module: Path) -> set[Path]:
    """A module and all modules of Penstock that it imports, directly or not."""
    found, waiting = {module}, [module]
    while waiting:
        new = _imports(waiting.pop()) - found
        found |= new
        waiting += new
    return found


@functools.cache
def _imports(module: Path) -> set[Path]:
    names: set[str] = set()
    for package, imported, plain in _IMPORT.findall(_text(module)):
        names |= {package or plain, *(f"{package}.{name}" for name in re.findall(r"\w+", imported))}
    # The package itself has no kernel, and imports its names on demand.
    return {file for name in names if (file := _file_of(name)) is not None and file != _PACKAGE / "__init__.py"}


@functools.cache
def _file_of(name: str) -> Path | None:
    """The source of a module or package, or None for another name."""
    path = _PACKAGE.joinpath(*name.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@functools.cache
def _text(module: Path) -> str:
    return module.read_text(encoding="utf-8")


class SourceKeyedLocator:
    """Tells Numba where the kernels of one function are cached; Numba calls it in place of its own locators."""

    def __init__(self, file: Path, line: int, folder: Path) -> None:
        self._py_file = str(file)  # Numba reads this name when it warns
        self._line, self._key = line, source_key(file)
        self._modules = folder / ".".join(file.relative_to(_PACKAGE).with_suffix("").parts)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "SourceKeyedLocator | None":
        """A locator for a function of Penstock; None for others, for which Numba tries its own locators."""
        path, folder = Path(file), kernel_folder()
        if folder is None or not path.is_relative_to(_PACKAGE):
            return None
        locator = cls(path, function.__code__.co_firstlineno, folder)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator

    def ensure_cache_path(self) -> None:
        """Make the folder, and remove folders of the same module that were not used for a month."""
        folder = self._modules / self._key
        try:
            os.utime(folder)
            return
        except OSError:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in self._modules.iterdir():
            if time.time() - other.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)

    def get_cache_path(self) -> str:
        """The folder of this module's kernels, which depends on its sources."""
        return str(self._modules / self._key)

    def get_source_stamp(self) -> str:
        """The digest of the sources that the kernels were compiled from."""
        return self._key

    def get_disambiguator(self) -> str:
        """The function's line, which tells functions of one name in one module apart."""
        return str(self._line)


_LOCATORS: list[Any] = CacheImpl._locator_classes
_LOCATORS.insert(0, SourceKeyedLocator)
