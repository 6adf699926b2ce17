"""The rows between two layers, kept from the forward to the backward pass; and the gradients of these rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from penstock.train.layerwise.levels import rows_in_file

Where = Literal["device", "host", "disk"]


class KeptLevel:
    """One level's rows by node type: on the device that computes, in host memory, or in a file."""

    def __init__(
        self,
        counts: Mapping[str, int],
        where: Where,
        dtype: torch.dtype,
        device: torch.device,
        folder: Path,
        computed: torch.dtype = torch.float32,
    ) -> None:
        """`dtype` is the number type that rows are kept in, `computed` the one that they are read in."""
        self._counts, self._where, self._dtype, self._device, self._folder = counts, where, dtype, device, folder
        self._computed = computed
        self._values: dict[str, Tensor] = {}

    @property
    def types(self) -> list[str]:
        """The node types that have rows."""
        return list(self._values)

    def write(self, node_type: str, rows: slice, out: Tensor) -> None:
        """Take some rows. All rows at once are kept without a copy where they are as they should be."""
        out = out.detach()
        count = self._counts[node_type]
        as_is = out.dtype == self._dtype and (self._where == "device" or (self._where == "host" and not out.is_cuda))
        if as_is and rows.stop - rows.start == count:
            self._values[node_type] = out
            return
        if node_type not in self._values:
            self._values[node_type] = self._room((count, out.shape[1]))
        self._values[node_type][rows] = out.to(self._dtype)

    def read(self, node_type: str, rows: Tensor | None) -> Tensor:
        """Some rows, where and in the type that they are computed with; None: all of them."""
        values = self._values[node_type]
        found = values if rows is None else values.index_select(0, rows.to(values.device))
        return found.to(self._device, self._computed)

    def kept(self, node_type: str) -> Tensor:
        """All rows, where and in the type that they are kept in."""
        return self._values[node_type]

    def _room(self, shape: tuple[int, int]) -> Tensor:
        if self._where == "device":
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        if self._where == "host":
            return torch.empty(shape, dtype=self._dtype)
        if self._dtype == torch.bfloat16:
            halves = rows_in_file(shape, np.dtype(np.int16), self._folder, _WHO, _MEND)
            return torch.from_numpy(halves).view(torch.bfloat16)
        kind = np.dtype(np.float64 if self._dtype == torch.float64 else np.float32)
        return torch.from_numpy(rows_in_file(shape, kind, self._folder, _WHO, _MEND))


class LevelGradients:
    """The gradients of one level's rows, added up bin after bin."""

    def __init__(self, counts: Mapping[str, int], device: torch.device) -> None:
        self._counts, self._device = counts, device
        self._values: dict[str, Tensor] = {}

    def add(self, node_type: str, rows: Tensor | None, gradients: Tensor) -> None:
        """Add gradients of some rows, each of which is named once; None: of all rows."""
        if rows is None and node_type not in self._values:
            self._values[node_type] = gradients
            return
        known = self.all(node_type, gradients)
        if rows is None:
            known += gradients
        else:
            known.index_add_(0, rows, gradients)

    def all(self, node_type: str, like: Tensor) -> Tensor:
        """The gradients of all rows, to add to; zeros as wide as others of the level where there are none yet."""
        if node_type not in self._values:
            shape = self._counts[node_type], like.shape[1]
            self._values[node_type] = torch.zeros(shape, dtype=like.dtype, device=self._device)
        return self._values[node_type]

    def take(self, work: Any, x: Mapping[str, Any]) -> None:
        """Add what the backward pass of a bin (`PreparedBin`) left in the rows that it read."""
        for name, rows in x.items():
            if work.in_place is not None:
                work.in_place.add_gradients(name, rows, self)
            elif rows.grad is not None:
                self.add(name, work.places[name], rows.grad)

    def clear(self) -> None:
        """Drop all gradients."""
        self._values.clear()

    def of(self, node_type: str, rows: slice | Tensor) -> Tensor | None:
        """The gradients of some rows; None: no loss depends on this type's."""
        found = self._values.get(node_type)
        return None if found is None else found[rows]


_WHO, _MEND = "Training on the whole graph", "set keep to host or recompute"
