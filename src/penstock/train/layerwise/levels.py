"""The outputs of one layer, which the next one reads: in memory or in a file."""

import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.store.files import take_blocks
from penstock.store.source import ArraySource
from penstock.train.layerwise.chunks import Chunk


class Level(Protocol):
    """The outputs of one layer: its engine writes them, the next layer's reads them."""

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        """Take the outputs of a chunk."""

    def fetch(self, node_type: str, ids: Array) -> torch.Tensor:
        """The outputs of some vertices, all of which have been computed, on the device that computes."""


class HostLevel:
    """The outputs of some rows of every type in the host's memory, or in a file in `folder` when they are large."""

    def __init__(self, rows: dict[str, Array], in_memory: int, folder: Path, device: torch.device) -> None:
        self.rows, self.values, self._in_memory, self._folder = rows, dict[str, Array](), in_memory, folder
        self._device = device

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        """Take the outputs of a chunk."""
        if chunk.node_type not in self.values:
            self.values[chunk.node_type] = self._room((len(self.rows[chunk.node_type]), out.shape[1]))
        self.values[chunk.node_type][chunk.start : chunk.start + len(out)] = out.detach().float().cpu().numpy()

    def fetch(self, node_type: str, ids: Array) -> torch.Tensor:
        """The outputs of some vertices."""
        rows = self.rows[node_type]
        places = ids if len(rows) and rows[-1] == len(rows) - 1 else np.searchsorted(rows, ids)
        found: torch.Tensor = ArraySource(self.values[node_type]).read(places, self._device)
        return found

    def _room(self, shape: tuple[int, int]) -> Array:
        if shape[0] * shape[1] * 4 <= self._in_memory:
            return np.empty(shape, np.float32)
        return rows_in_file(shape, np.dtype(np.float32), self._folder, "Exact inference", "raise inference_mb")


def rows_in_file(shape: tuple[int, int], dtype: np.dtype[Any], folder: Path, what: str, mend: str) -> Array:
    """Rows in a file that goes with the last array on it. `what` needs it; `mend` says what to do if it cannot be."""
    size = shape[0] * shape[1] * dtype.itemsize
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".level-") as file:
            take_blocks(file.fileno(), size)
            return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)
    except OSError as error:
        raise PenstockError(
            f"{what} needs {size / 1e6:,.0f} MB in a file in {folder} ({error.strerror or error}): free space, or"
            f" {mend}.",
            code="write-failed",
        ) from error
