"""A NumPy archive whose arrays are read when they are asked for, and never unpickled."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array

_UNREADABLE = "is not a readable .npz archive of plain arrays"


class Archive(Mapping[str, Array]):
    """The arrays of an `.npz` file by name. Arrays that nobody asks for may be of any kind."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise PenstockError(f"{path} does not exist: check the path.", code="file-not-found")
        if not zipfile.is_zipfile(path):
            raise PenstockError(
                f"{path} is not an .npz archive: copy it again, or write one with numpy.savez.", code="wrong-file"
            )
        self._read: dict[str, Array] = {}
        try:
            self._file: Any = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise PenstockError(f"{path} {_UNREADABLE} ({error}): make it again.", code="damaged-file") from None

    def close(self) -> None:
        """Let the file go; arrays that were read stay."""
        self._file.close()

    def __getitem__(self, key: str) -> Array:
        if key not in self._read:
            if key not in self._file.files:
                raise KeyError(key)
            try:
                self._read[key] = self._file[key]
            except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                raise PenstockError(
                    f"it {_UNREADABLE} (array {key}: {error}): make it again.", code="damaged-file"
                ) from None
        return self._read[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.files)

    def __len__(self) -> int:
        return len(self._file.files)

    def strings(self, key: str) -> list[str] | None:
        """An array of strings, or None where there is none or it holds Python objects, which would be unpickled."""
        try:
            found = self.get(key)
        except PenstockError:
            return None
        return found.tolist() if found is not None and found.dtype.kind == "U" and found.ndim == 1 else None
