"""Gradients of a group that was sent, which come back in one or several messages."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.train.whole.shared.cut_plan import CutLevel


class ArrivingGroup:
    """What is here of one group's gradients; rows that no gradient comes for have zeros."""

    def __init__(self, level: CutLevel, place: int) -> None:
        self._counts = {kind: level.sent[place].count(kind) for kind in level.sent[place].rows}
        self._missing = {
            number
            for number, each in enumerate(level.awaited)
            for parts in each.parts.values()
            for group, _ in parts
            if group == place
        }
        self.values: dict[str, Array] = {}
        """By node type; types that no loss depends on are left out."""

    def take(self, kind: str, rows: Array, values: Array) -> None:
        """Gradients of some rows of the group."""
        if kind not in self.values:
            self.values[kind] = np.zeros((self._counts[kind], values.shape[1]), values.dtype)
        self.values[kind][rows] = values

    def is_complete(self, message: int) -> bool:
        """Whether all is here, now that one of the level's messages is."""
        self._missing.discard(message)
        return not self._missing
