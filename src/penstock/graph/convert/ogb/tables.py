"""OGB's `.csv.gz` files, read in blocks straight into arrays of their final size."""

import csv
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.edges import vertex_numbers
from penstock.graph.csr import index_dtype
from penstock.graph.input_files import open_regular

_BLOCK_BYTES = 16 << 20


def read_table(path: Path, rows: int, dtype: Any = None) -> Array:
    """[rows, columns] of one type; without a `dtype`, int64 if all values are whole numbers, else float32."""
    if dtype is None:
        try:
            return _fill(path, rows, np.dtype(np.int64))
        except _NotWholeError:
            return _fill(path, rows, np.dtype(np.float32))
    return _fill(path, rows, np.dtype(dtype))


def read_pairs(path: Path, rows: int, num_sources: int, num_destinations: int) -> tuple[Array, Array]:
    """Sources and destinations of an edge file, checked before they are narrowed to int32."""
    dtype = index_dtype(max(num_sources, num_destinations))
    sources, destinations = np.empty(rows, dtype), np.empty(rows, dtype)
    done = 0
    for block in _checked_blocks(path, rows, np.dtype(np.int64), 2):
        stop = done + len(block[0])
        sources[done:stop] = vertex_numbers(block[0], num_sources, str(path))
        destinations[done:stop] = vertex_numbers(block[1], num_destinations, str(path))
        done = stop
    return sources, destinations


def read_numbers(path: Path) -> Array:
    """The first column of a file of whole numbers, of any length: counts and splits."""
    return np.concatenate([np.empty(0, np.int64), *(block[0] for block in _blocks(path, np.dtype(np.int64)))])


def read_words(path: Path) -> list[list[str]]:
    """A small file as rows of strings."""
    try:
        with open_regular(path) as packed, gzip.open(packed, "rt", newline="") as file:
            return [row for row in csv.reader(file) if row]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise PenstockError(f"{path} cannot be read ({error}): download the set again.", code="damaged-file") from None


class _NotWholeError(PenstockError):
    """A file that was read as whole numbers holds something else."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="damaged-file")


def _fill(path: Path, rows: int, dtype: np.dtype[Any]) -> Array:
    table, done = np.empty((rows, _num_columns(path)), dtype), 0
    for block in _checked_blocks(path, rows, dtype, table.shape[1]):
        stop = done + len(block[0])
        for column, values in enumerate(block):
            table[done:stop, column] = values
        done = stop
    return table


def _checked_blocks(path: Path, rows: int, dtype: np.dtype[Any], columns: int) -> Iterator[list[Array]]:
    """Blocks that together have exactly the rows and columns expected."""
    done = 0
    for block in _blocks(path, dtype):
        if len(block) != columns:
            raise PenstockError(
                f"{path} has {len(block)} columns where {columns} are needed: download the set again.",
                code="damaged-file",
            )
        done += len(block[0])
        if done <= rows:
            yield block
    if done != rows:
        raise PenstockError(
            f"{path} has {done:,} rows where the set says {rows:,}: download the set again.", code="damaged-file"
        )


def _blocks(path: Path, dtype: np.dtype[Any]) -> Iterator[list[Array]]:
    """Columns of block after block."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    columns = _num_columns(path)
    if columns == 0:
        return
    types = {f"f{i}": pa.from_numpy_dtype(dtype) for i in range(columns)}
    try:
        reader = arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(autogenerate_column_names=True, block_size=_BLOCK_BYTES),
            convert_options=arrow_csv.ConvertOptions(column_types=types),
        )
        for batch in reader:
            if dtype.kind == "i" and any(column.null_count for column in batch.columns):
                raise _NotWholeError(f"{path} has an empty value where an integer is needed: download the set again.")
            yield [column.to_numpy(zero_copy_only=False) for column in batch.columns]
    except pa.ArrowInvalid as error:
        sentence = f"{path} cannot be read ({error}): download the set again."
        if dtype.kind == "i":
            raise _NotWholeError(sentence) from None
        raise PenstockError(sentence, code="damaged-file") from None
    except (OSError, EOFError) as error:
        raise PenstockError(f"{path} cannot be read ({error}): download the set again.", code="damaged-file") from None


def _num_columns(path: Path) -> int:
    """Columns of the first row; 0 for an empty file."""
    try:
        with open_regular(path) as packed, gzip.open(packed, "rb") as file:
            first = file.readline()
    except (OSError, EOFError, zlib.error) as error:
        raise PenstockError(f"{path} cannot be read ({error}): download the set again.", code="damaged-file") from None
    return first.count(b",") + 1 if first.strip() else 0
