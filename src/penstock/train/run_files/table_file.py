"""Tables as files: predictions and embeddings by the extension's format, and a run's epochs as metrics.csv."""

import csv
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.errors import PenstockError, nearest
from penstock.graph.files import check_regular, open_lines, open_text, replace_whole, write_whole, writing
from penstock.graph.object_folders import address_of, is_remote, send_file

if TYPE_CHECKING:
    import pyarrow as pa


# Tables of predictions and embeddings as files: the extension says which format is written.

_ROWS = 65_536
"""Rows written at a time."""


def check_table_file(out: Path, force: bool) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if is_remote(out):
        out = Path(address_of(out).partition("?")[0])
    if out.is_dir():
        raise PenstockError(
            f"{out} is a folder: name the file to write, such as {out / 'table.parquet'}.", code="wrong-file"
        )
    if out.suffix.lower() not in WRITERS:
        given = f"the extension {out.suffix!r}" if out.suffix else "no extension"
        raise PenstockError(
            f"{out} has {given}, which does not name a format{nearest(out.suffix.lower(), WRITERS)}",
            code="unknown-name",
        )
    if os.path.lexists(out) and not force:
        raise PenstockError(
            f"{out} exists already: add --force to replace it, or name another file.", code="file-exists"
        )


def write_table(table: "pa.Table", out: Path) -> None:
    """Write a table in the format of its extension. The file gets its name when it is complete."""
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(out, lambda file: WRITERS[out.suffix.lower()](table, file))
    send_file(out)


def read_vectors(file: Path, column: str) -> tuple[Any, Any]:
    """The ids (an array of Arrow or of NumPy) and the matrix of a table that `write_table` wrote."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_regular(file)
        if file.suffix.lower() == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return pa.array(arrays["id"]), arrays[column]
        table = pq.read_table(file, columns=["id", column])
        vectors = table[column].combine_chunks()
        return table["id"].combine_chunks(), vectors.flatten().to_numpy().reshape(len(vectors), -1)
    except FileNotFoundError:
        raise PenstockError(f"{file} does not exist: write all rows first.", code="file-not-found") from None
    except (OSError, ValueError, KeyError, pa.ArrowException, zipfile.BadZipFile) as error:
        raise PenstockError(
            f"{file} is not a table of {column} in Parquet or .npz ({error}): write all rows again.", code="wrong-file"
        ) from None


def _write_parquet(table: "pa.Table", file: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, file, row_group_size=_ROWS)


def _write_csv(table: "pa.Table", file: IO[bytes]) -> None:
    """A column for each number of a vector (embedding_0, embedding_1, ...); lists of classes are written 3;7."""
    import pyarrow as pa
    from pyarrow import csv, types

    def flat(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if types.is_fixed_size_list(column.type):
                rows = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size)
                yield from ((f"{name}_{i}", pa.array(rows[:, i])) for i in range(rows.shape[1]))
            elif types.is_list(column.type):
                yield name, pa.array([";".join(map(str, each)) for each in column.to_pylist()])
            else:
                yield name, column

    writer = None
    for batch in _batches(table):
        piece = pa.table(dict(flat(batch)))
        writer = writer or csv.CSVWriter(file, piece.schema)
        writer.write_table(piece)
    if writer is not None:
        writer.close()


def _write_npz(table: "pa.Table", file: IO[bytes]) -> None:
    """An array for each column, vectors as a matrix. Lists of classes are `<name>` and `<name>_indptr`, as in CSR."""
    import numpy as np
    from pyarrow import types

    arrays: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if types.is_fixed_size_list(column.type):
            arrays[name] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size)
        elif types.is_list(column.type):
            arrays[name] = column.flatten().to_numpy(zero_copy_only=False)
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            arrays[f"{name}_indptr"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        else:
            values = column.to_numpy(zero_copy_only=False)
            # Strings have a type of their own in the file: an array of objects would have to be unpickled.
            arrays[name] = values.astype(str) if values.dtype == object else values
    np.savez(file, **arrays)


def _write_jsonl(table: "pa.Table", file: IO[bytes]) -> None:
    """One object per row; NaN and infinities, which JSON lacks, become null."""
    for batch in _batches(table):
        lines = (json.dumps(_plain(row), ensure_ascii=False, allow_nan=False) for row in batch.to_pylist())
        file.write("".join(f"{line}\n" for line in lines).encode())


def _batches(table: "pa.Table") -> "Iterator[pa.RecordBatch]":
    """The table in pieces; an empty table is one empty piece, so that its columns are written."""
    import pyarrow as pa

    pieces = table.to_batches(max_chunksize=_ROWS)
    yield from pieces or [pa.RecordBatch.from_pylist([], schema=table.schema)]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


WRITERS: dict[str, Callable[["pa.Table", IO[bytes]], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".npz": _write_npz,
    ".jsonl": _write_jsonl,
}
"""By extension. Adding a format is a function and a line here."""


# The epochs of metrics.jsonl as a table, metrics.csv: for spreadsheets and for people.


def append_epoch(table: Path, log: Path, record: dict[str, Any], advice: str) -> None:
    """Append one row. Where the epoch has a column that the table lacks, the table is rewritten from the log."""
    row = _row(record)
    header = _header(table)
    if not set(row) <= set(header):
        write_table_of(table, log)
        return
    with writing(table, advice), open_text(table, "a") as file:
        csv.DictWriter(file, header, lineterminator="\n").writerow(row)


def write_table_of(table: Path, log: Path) -> None:
    """Write the table of all epochs in a log; no table if there are none."""
    rows = [_row(record) for record in _epochs(log)]
    if not rows:
        table.unlink(missing_ok=True)
        return
    longest = max(rows, key=len)
    names = list(dict.fromkeys([*longest, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(table, text.getvalue())


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """A record as a row; epochs are counted from 1."""
    row: dict[str, Any] = {"epoch": record["epoch"] + 1} if "epoch" in record else {}
    for name in ("step", "loss", "val_loss", "val", "lr", "seconds"):
        value = record.get(name)
        if name == "val" and isinstance(value, dict):
            row |= {f"val_{metric}": number for metric, number in value.items()}
        elif value is not None:
            row[name] = value
    return row


def _epochs(log: Path) -> Iterable[dict[str, Any]]:
    if not log.exists():
        return
    with open_lines(log) as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                # A killed process may have left half a line.
                continue
            if record.get("kind") == "epoch":
                yield record


def _header(table: Path) -> list[str]:
    if not table.exists():
        return []
    with open_lines(table) as file:
        return next(csv.reader(file), [])
