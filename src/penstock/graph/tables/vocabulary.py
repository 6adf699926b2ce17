"""Words and the codes they are stored as."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.tables.reader import TableChunk


class Vocabulary:
    """The words of a column in order: as given, or those met in a first pass, sorted (numbers by value)."""

    def __init__(self, words: list[str] | None = None) -> None:
        self.is_given = words is not None
        self._words = words
        self._met: set[str] = set()

    @property
    def words(self) -> list[str]:
        """The word of every code."""
        if self._words is None:
            self._words = _in_order(self._met)
        return self._words

    def learn(self, values: pa.Array) -> None:
        """Take note of the words of a chunk."""
        if not self.is_given:
            self._met.update(word for word in as_text(pc.unique(values)).to_pylist() if word is not None)

    def codes(self, values: pa.Array, chunk: TableChunk, column: str) -> Array:
        """int32 codes, -1 where there is no word."""
        words = as_text(values)
        found = pc.index_in(words, value_set=pa.array(self.words, words.type))
        if found.null_count != words.null_count:
            row = pc.and_(found.is_null(), words.is_valid()).index(True).as_py()
            word = words[row].as_py()
            raise PenstockError(
                f"{chunk.place(row, column)}: {word!r} is not one of the categories in the spec: add it there.",
                code="unknown-name",
            )
        codes: Array = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        return codes


def as_text(values: pa.Array) -> pa.Array:
    """Any plain column as strings."""
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _in_order(words: set[str]) -> list[str]:
    try:
        return sorted(words, key=lambda word: (int(word), word))
    except ValueError:
        return sorted(words)
