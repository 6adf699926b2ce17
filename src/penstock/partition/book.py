"""The book: who owns a vertex, and which row it is there. Search in a tiny array, then subtraction."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array


class Book:
    """`bounds[type]` are the parts * trainers + 1 ascending first new IDs of the sub-parts."""

    def __init__(self, parts: int, trainers: int, bounds: dict[str, Array]) -> None:
        self.parts, self.trainers = parts, trainers
        self._fine = bounds
        self._coarse = {name: np.ascontiguousarray(fine[::trainers], np.int64) for name, fine in bounds.items()}

    def owner(self, ids: Array, node_type: str | None = None) -> Array:
        """The part of every new ID."""
        return self._search(self._coarse[self.type_named(node_type)], ids)

    def trainer(self, ids: Array, node_type: str | None = None) -> Array:
        """The trainer inside its part of every new ID."""
        return self._search(self._fine[self.type_named(node_type)], ids) % self.trainers

    def local(self, ids: Array, node_type: str | None = None, owner: Array | None = None) -> Array:
        """The row of every new ID inside its part."""
        if owner is None:
            owner = self.owner(ids, node_type)
        rows: Array = ids - self._coarse[self.type_named(node_type)][owner]
        return rows

    def range(self, part: int, node_type: str | None = None, trainer: int | None = None) -> tuple[int, int]:
        """[first, last) new IDs of a part, or of one trainer's share of it."""
        if trainer is None:
            bounds, place = self._coarse[self.type_named(node_type)], part
        else:
            bounds, place = self._fine[self.type_named(node_type)], part * self.trainers + trainer
        return int(bounds[place]), int(bounds[place + 1])

    def bounds(self, node_type: str | None = None) -> Array:
        """The first new ID of every part, and the count of all behind the last (int64)."""
        return self._coarse[self.type_named(node_type)]

    def count(self, node_type: str | None = None) -> int:
        """Vertices of a type in all parts."""
        return int(self._coarse[self.type_named(node_type)][-1])

    @property
    def node_types(self) -> list[str]:
        """Names of the node types."""
        return list(self._fine)

    def type_named(self, node_type: str | None) -> str:
        """The type itself, or the only one when none is named."""
        if node_type is not None:
            return node_type
        if len(self._fine) != 1:
            raise PenstockError(
                f"Name the node type: this partition has {', '.join(self._fine)}.", code="option-missing"
            )
        return next(iter(self._fine))

    @staticmethod
    def _search(bounds: Array, ids: Array) -> Array:
        ids = np.asarray(ids)
        if len(ids) and (ids.min() < 0 or ids.max() >= bounds[-1]):
            raise PenstockError(f"A vertex ID is outside 0..{int(bounds[-1]) - 1}.", code="id-out-of-range")
        return np.searchsorted(bounds, ids, "right") - 1
