"""Parquet files as a stream of record batches."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 17
_BUFFER_BYTES = 1 << 20


def parquet_batches(path: Path, columns: list[str], ids: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, some of its columns. `ids` stay dictionary-encoded where the file has them so."""
    metadata = pq.read_metadata(path)
    encoded = [name for name in ids if _is_dictionary_encoded(metadata, name)]
    # Left alone, pyarrow loads the raw bytes of the whole file before the first batch.
    with pq.ParquetFile(path, read_dictionary=encoded, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
        yield from file.iter_batches(_batch_rows(metadata, columns), columns=columns)


def _batch_rows(metadata: pq.FileMetaData, columns: list[str]) -> int:
    """Rows that make a batch of the usual size, by what the file says its columns take."""
    size = sum(int(chunk.total_uncompressed_size) for chunk in _column_chunks(metadata, columns))
    return max(256, min(_BATCH_ROWS, _BATCH_BYTES * int(metadata.num_rows) // max(1, size)))


def _is_dictionary_encoded(metadata: pq.FileMetaData, name: str) -> bool:
    """Whether strings can be looked up once per distinct one instead of once per row.

    A string stored plainly takes at least its 4 bytes of length: a column that takes less is mostly codes.
    """
    chunks = list(_column_chunks(metadata, [name]))
    strings = all(chunk.physical_type == "BYTE_ARRAY" for chunk in chunks)
    values = sum(int(chunk.num_values) for chunk in chunks)
    return strings and sum(int(chunk.total_uncompressed_size) for chunk in chunks) < 4 * values


def _column_chunks(metadata: pq.FileMetaData, names: list[str]) -> Iterator[pq.ColumnChunkMetaData]:
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for position in range(metadata.num_columns):
            chunk = row_group.column(position)
            # A list is stored as leaves below its name.
            if chunk.path_in_schema in names or chunk.path_in_schema.split(".")[0] in names:
                yield chunk
