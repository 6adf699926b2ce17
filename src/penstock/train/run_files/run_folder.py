"""The run folder: the job, the metrics and the result, written as the run proceeds; and tables as files: predictions
and embeddings by the extension's format, and a run's epochs as metrics.csv.
"""

import csv
import io
import json
import math
import os
import shutil
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from penstock.errors import PenstockError, nearest
from penstock.graph.documents import read_yaml
from penstock.graph.files import (
    check_regular,
    claimed,
    make_private_folder,
    open_bytes,
    open_lines,
    open_lock,
    open_text,
    read_document,
    refuse_links,
    remove_unfinished_below,
    replace_whole,
    take_blocks,
    unfinished,
    write_whole,
    writing,
)
from penstock.graph.new_folders import check_target, remove_unfinished, replace_folder
from penstock.graph.object_folders import (
    abandon,
    address_of,
    is_remote,
    local_copy,
    new_copy,
    send,
    send_file,
    send_later,
    shown,
)
from penstock.nn.user_module import user_module_location
from penstock.train.job import JOB, Job, read_decided, stored_job, write_job

if TYPE_CHECKING:
    import pyarrow as pa

# Files and code that a run folder or a plan names. Code is run only with the user's consent, since both may come from
# others.

_started_here: set[tuple[Path, str]] = set()
"""Runs that this process has started, with the code that the user named for them."""
FUNCTIONS = ("loss", "metrics", "callbacks")
"""Fields whose code is run even where the model is given as an object."""


def remember_code(run: Path, job: Job) -> None:
    """Allow this process to use a run that it starts without asking for consent again."""
    _started_here.update((run.resolve(), name) for names in job.own_code.values() for name in names)


def check_code(
    job: Job, source: Path, trusted: bool, named: str | None = None, fields: Iterable[str] | None = None
) -> None:
    """Refuse a job from a run folder or a plan that names code which the user has not consented to.

    The user consents with `--trust-module`, or by naming the same module again (`named`). `fields` are those whose code
    is about to be run; None: all.
    """
    if named is not None and (job.module is None or user_module_location(named) != user_module_location(job.module)):
        raise PenstockError(
            f"{source} has the module {job.module!r}, not {named!r}: name that one, or leave it out.",
            code="mismatched-inputs",
        )
    if trusted:
        return
    code = {field: names for field, names in job.own_code.items() if fields is None or field in fields}
    if named is not None:
        code.pop("module", None)
    unknown = [name for names in code.values() for name in names if (source.resolve(), name) not in _started_here]
    if unknown:
        raise PenstockError(
            f"{source} names code that would be run, {', '.join(unknown)}, and it may come from somebody else: read"
            " that code, then add --trust-module (in Python trust_module=True).",
            code="untrusted-code",
        )


def found_anywhere(job: Job) -> dict[str, Any]:
    """Job fields that name files, as absolute paths."""
    return {
        "graph": resolved(job.graph),
        "module": None if job.module is None else user_module_location(job.module),
        "loss": None if job.loss is None else user_module_location(job.loss),
        "metrics": [user_module_location(name) for name in job.metrics],
        "callbacks": [user_module_location(name) for name in job.callbacks],
        "from_run": None if job.from_run is None else resolved(job.from_run),
    }


def resolved(name: str) -> str:
    """An absolute path; names of data sets stay unchanged."""
    return str(Path(name).resolve()) if Path(name).exists() else name


FORMAT, VERSION = "penstock-run", 1
RUN, CLUSTER, PLAN, METRICS, EVENTS, LOG, REPORT = (
    "run.json",
    "cluster.json",
    "plan.json",
    "metrics.jsonl",
    "events.jsonl",
    "log.txt",
    "report.html",
)
METRICS_TABLE = "metrics.csv"
PARTS = "parts"
"""The folder, within a cluster's run, of the parts that its graph was cut into."""
Facts = Mapping[str, Any]
_RESERVE = ".reserve"
_RESERVED_BYTES = 128 << 10
"""Disk space reserved for run.json and a traceback."""
_BEFORE = {"draws": 1, "embedding_init": "identity"}
"""The behaviour of earlier releases, as values of fields that they did not have."""
STATES = ("running", "finished", "stopped-early", "interrupted", "failed")
_KINDS = {"started": str, **dict.fromkeys(("graph", "labels", "result", "val", "test"), dict)}
"""The types of fields of run.json, and of the result in it, if they are present."""


class RunFolder:
    """A run's documents. One process at a time may open it for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self._lock: int | None = None
        self._sender: ThreadPoolExecutor | None = None
        self._to_send: Future[None] | None = None

    @classmethod
    def create(
        cls, job: Job, default_name: str, force: bool, facts: Facts | None = None, documents: Facts | None = None
    ) -> "RunFolder":
        """Create the folder of a job: the one it names, or the next free one under runs/.

        It gets its name when it is complete, with run.json (`facts`) and further `documents` (text by name): whenever
        the process is killed, what it leaves can be resumed or replaced.
        """
        path = Path(job.run) if job.run else _next_free(Path("runs"), default_name)
        path = new_copy(path, force)
        check_target(path, force)
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(target)
        folder = cls(make_private_folder(unfinished(target)))
        try:
            with claimed(folder.path):
                folder._hold()
                make_private_folder(folder.checkpoints)
                write_job(job, folder.path)
                for name, text in (documents or {}).items():
                    write_whole(folder.path / name, text)
                with writing(folder.path / _RESERVE):
                    folder._reserve()
                folder.write_facts(**{"state": "running", "message": "", "started": now(), **(facts or {})})
                _take_place(folder.path, target, force)
            folder.path = path
            send(path)
        except BaseException:
            folder.discard()
            abandon(path)
            raise
        remember_code(path, job)
        return folder

    @classmethod
    def open(cls, path: Path, writing: bool = False) -> "RunFolder":
        """Open the folder of an earlier run."""
        path = local_copy(path)
        folder = cls(path)
        try:
            folder.facts = json.loads(read_document(path / RUN))
        except FileNotFoundError:
            raise PenstockError(f"{path} is not a run folder: it has no {RUN}.", code="wrong-file") from None
        except (OSError, ValueError, RecursionError) as error:
            raise PenstockError(
                f"{path / RUN} cannot be read ({error}): copy the run again.", code="damaged-file"
            ) from None
        if (
            not isinstance(folder.facts, dict)
            or folder.facts.get("format") != FORMAT
            or folder.facts.get("version") != VERSION
        ):
            raise PenstockError(
                f"{path / RUN} is not a run of this release: use the release that wrote it.", code="unsupported-version"
            )
        _check_facts(folder.facts, path / RUN)
        if writing:
            refuse_links(path)
            folder._hold()
            remove_unfinished_below(path)
            # Without the reserved space a failure may go unrecorded on a full disk, but a run that needs no more space
            # can continue.
            with suppress(OSError):
                folder._reserve()
        return folder

    def job(self) -> Job:
        """The job as it was run. Every field is recorded: a missing one did not exist in that release, and gets its
        behaviour.
        """
        fields = read_yaml(self.path / JOB, "the run's job")
        return stored_job({**_BEFORE, **fields, **read_decided(self.path)}, str(self.path / JOB))

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def write(self, name: str, text: str) -> None:
        """Write one of the run's documents, or replace it."""
        with writing(self.path / name, self._advice):
            write_whole(self.path / name, text)

    def write_facts(self, **changes: Any) -> None:
        """Replace some of run.json's fields."""
        self.facts = {"format": FORMAT, "version": VERSION, **self.facts, **changes}
        write_whole(self.path / RUN, json.dumps(self.facts, indent=1) + "\n")
        self._drain()
        self._try(partial(send, self.path))

    def send_checkpoint(self) -> None:
        """Send what is new to the object store of the run, if it has one, while the run goes on. Where that fails the
        next checkpoint is sent with everything before it, and `send` at the end of the run sends all of it.
        """
        waiting = self._to_send
        if waiting is not None and not waiting.running() and not waiting.done():
            return
        try:
            sending = send_later(self.path)
        except OSError as error:
            self.log(f"The run was not sent: {error}")
            return
        if sending is None:
            return
        self._sender = self._sender or ThreadPoolExecutor(1, "send-checkpoints")
        self._to_send = self._sender.submit(self._try, sending)

    def _try(self, sending: Callable[[], None]) -> None:
        try:
            sending()
        except (PenstockError, OSError) as error:
            self.log(f"The run was not sent: {error}")

    def _drain(self) -> None:
        """Wait for what is being sent: what is sent next must be the last."""
        if self._to_send is not None:
            self._to_send.result()
        self._to_send = None

    def record_failure(self, state: str, message: str, error: BaseException) -> None:
        """Record how the run ended and why, in space reserved for that; its own error is raised whatever happens."""
        with suppress(OSError):
            (self.path / _RESERVE).unlink(missing_ok=True)
        with suppress(OSError, PenstockError):
            self.write_facts(state=state, message=message)
        with suppress(OSError, PenstockError):
            self.log("".join(traceback.format_exception(error)).rstrip())

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl, and to metrics.csv if it is an epoch's."""
        self._append(METRICS, json.dumps(record))
        if record["kind"] == "epoch":
            append_epoch(self.path / METRICS_TABLE, self.path / METRICS, record, self._advice)

    def forget_metrics_after(self, step: int) -> None:
        """Drop records after the step of the checkpoint that the run resumes from: they will be written again."""
        path = self.path / METRICS
        if not path.exists():
            return
        with open_lines(path) as lines:
            kept = [line.rstrip("\n") for line in lines if _step_of(line) <= step]
        self.replace_metrics(kept)

    def replace_metrics(self, lines: Iterable[str]) -> None:
        """Replace the lines of metrics.jsonl, and the epochs of metrics.csv."""
        write_whole(self.path / METRICS, "".join(f"{line}\n" for line in lines))
        write_table_of(self.path / METRICS_TABLE, self.path / METRICS)

    def log(self, text: str) -> None:
        """Append a line to log.txt."""
        self._append(LOG, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def discard(self) -> None:
        """Remove the folder of a run that has not begun."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Release the folder for other processes."""
        self._drain()
        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _append(self, name: str, line: str) -> None:
        path = self.path / name
        with writing(path, self._advice), open_text(path, "a") as file:
            file.write(line + "\n")

    @property
    def _advice(self) -> str:
        return f"Free space, then resume with `penstock train --resume {shown(self.path)}`."

    def _hold(self) -> None:
        try:
            self._lock = open_lock(self.path / ".lock")
        except BlockingIOError:
            raise PenstockError(
                f"{self.path} is in use by another process: wait for it or stop it.", code="in-use"
            ) from None

    def _reserve(self) -> None:
        """Reserve some disk space, which is released when a failure has to be recorded."""
        if not (self.path / _RESERVE).exists():
            with open_bytes(self.path / _RESERVE, "xb") as file:
                take_blocks(file.fileno(), _RESERVED_BYTES)


def now() -> str:
    """The current time in the format of run.json."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _check_facts(facts: dict[str, Any], where: Path) -> None:
    """Check the types of fields that other code relies on."""
    mend = "copy the run again"
    state = facts.get("state")
    if state not in STATES:
        raise PenstockError(
            f"{where} has the state {state!r}, which is not one of {', '.join(STATES)}: {mend}.", code="damaged-file"
        )
    result = facts.get("result", {})
    scores = {name: result[name] for name in ("val", "test") if name in result} if isinstance(result, dict) else {}
    for name, value in {**facts, **scores}.items():
        kind = _KINDS.get(name, object)
        if not isinstance(value, kind):
            raise PenstockError(
                f"{where} has a {name!r} that is not {'text' if kind is str else 'a mapping'}: {mend}.",
                code="damaged-file",
            )


def _take_place(temporary: Path, target: Path, force: bool) -> None:
    """Rename a new run folder into place. It replaces only an earlier run that no other process is writing."""
    check_target(target, force)
    if not target.exists() or not any(target.iterdir()):
        temporary.rename(target)
        return
    if not (target / RUN).exists():
        raise PenstockError(
            f"{target} exists and is not a run folder, so a run does not replace it: name another folder.",
            code="file-exists",
        )
    old = RunFolder(target)
    old._hold()
    try:
        replace_folder(temporary, target)
    finally:
        old.close()


def _next_free(parent: Path, name: str) -> Path:
    taken = {entry.name for entry in parent.iterdir()} if parent.is_dir() else set()
    number = 1
    while f"{name}-{number}" in taken:
        number += 1
    return parent / f"{name}-{number}"


def _step_of(line: str) -> int:
    """The step of a line; lines without a step are kept always, and a last line that was cut short never."""
    try:
        record = json.loads(line)
        return int(record.get("step", -1))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return sys.maxsize


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
