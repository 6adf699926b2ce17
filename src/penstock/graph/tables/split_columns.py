"""Split columns: which rows are train, val and test."""

import numpy as np
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.graph.tables.reader import TableChunk
from penstock.graph.tables.vocabulary import as_text

NO_SPLIT = -1
_CODES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "": NO_SPLIT}


def fold_codes(chunk: TableChunk, column: str) -> Array:
    """int8 place of each row's split in train, val, test; -1 for none."""
    encoded = pc.dictionary_encode(as_text(chunk.column(column)))
    words = encoded.dictionary.to_pylist()
    codes = np.array([_CODES.get(word.strip().lower(), -2) for word in words] + [NO_SPLIT], np.int8)
    out: Array = codes[encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)]
    wrong = np.flatnonzero(out == -2)
    if len(wrong):
        value = chunk.column(column)[int(wrong[0])].as_py()
        raise PenstockError(
            f"{chunk.place(wrong[0], column)}: {value!r} is not a split: use {', '.join(SPLITS)}, or leave it empty"
            " for none.",
            code="unknown-name",
        )
    return out
