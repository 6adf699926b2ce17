"""What is known of the arrays of one node or edge type, each read once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.graph.arrays import Array
from penstock.graph.fact_record import recall, remember, state_of

RECORDED = 1 << 20
"""Bytes of a file from which on facts are remembered: a smaller one is read again as fast as its record."""


@dataclass(eq=False)
class Facts:
    """Facts by array and name.

    `folder` is where arrays are mapped from (None: all are in memory only), and `mapped` are these by file.
    `trusted` says that the user vouches for the arrays: nothing is read then.
    """

    folder: Path | None = None
    mapped: dict[str, Array] = field(default_factory=dict)
    trusted: bool = False
    _known: dict[tuple[str, str], tuple[Array, list[int]]] = field(default_factory=dict)

    def of(self, file: str, values: Array, fact: str, find: Callable[[Array], list[int]]) -> list[int]:
        """A fact about an array, found now unless it is known. `file` is the array's name without `.npy`."""
        known = self._known.get((file, fact))
        # Whoever puts another array in its place has it read again.
        if known is None or known[0] is not values:
            known = values, self._recalled(file, values, fact, find)
            self._known[file, fact] = known
        return known[1]

    def where(self, file: str, values: Array, owner: str) -> str:
        """How errors name an array: its file, or its name and whose it is."""
        path = self._path(file, values)
        return f"{file} of {owner}" if path is None else str(path)

    def _recalled(self, file: str, values: Array, fact: str, find: Callable[[Array], list[int]]) -> list[int]:
        path = self._path(file, values)
        if path is None or values.nbytes < RECORDED:
            return find(values)
        if (found := recall(path, fact)) is not None:
            return found
        before = state_of(path)
        found = find(values)
        remember(path, fact, found, before)
        return found

    def _path(self, file: str, values: Array) -> Path | None:
        """The file that an array is mapped from; an array that was put in its place has none."""
        return self.folder / f"{file}.npy" if self.folder is not None and self.mapped.get(file) is values else None
