"""The durable queue: jobs in SQLite, each a record with the state that it is in. Every change is on disk before it is
confirmed.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

from penstock.errors import PenstockError
from penstock.graph.files import open_private, writing

State = Literal[
    "submitted", "forecasting", "waiting", "starting", "running", "interrupted", "ended", "failed", "cancelled"
]
STATES: tuple[str, ...] = get_args(State)
STARTABLE = ("waiting", "interrupted")
"""States from which a job starts when there is room: from its beginning, or from its newest checkpoint."""
STARTED = ("starting", "running")
"""States in which a job has a process that trains."""
FINAL = ("ended", "failed", "cancelled")
"""States that a job keeps, unless it is retried."""
RETRIED = ("failed", "cancelled")
"""States in which a job can be retried."""


@dataclass(frozen=True)
class JobRecord:
    """A job of the queue. Bytes are None until they are known; times are wall-clock seconds and only displayed."""

    id: int
    name: str
    document: dict[str, Any]
    """The fields of the job (docs/job.md)."""
    priority: int
    state: State
    reason: str
    """Why it is in its state, as a sentence, where that needs explaining."""
    code: str | None
    """The kind of the error that ended it (docs/errors.md)."""
    kind: str
    """The kind of device: cpu or cuda."""
    cores: int
    device_bytes: int | None
    """The forecast of its peak of reserved device memory."""
    host_bytes: int | None
    """The forecast of its peak host memory."""
    forecast: dict[str, Any]
    """Further values of the forecast."""
    granted_device_bytes: int | None
    granted_host_bytes: int | None
    peak_device_bytes: int | None
    """The peak of its reserved device memory so far."""
    peak_host_bytes: int | None
    device: str | None
    """The device that it runs or ran on."""
    alone: bool
    """Whether nothing may run beside it: its forecast was too low once."""
    cancelling: bool
    """Whether it will be cancelled as soon as its process has ended."""
    tries: int
    """How often it was started."""
    lost: int
    """How often in a row its process was killed from outside without having written a new checkpoint."""
    step: int
    """The step of its newest checkpoint when it was last checked."""
    submitted: float
    started: float | None
    ended: float | None
    seconds: float
    """Seconds that its processes have run, all tries together."""
    pid: int | None
    process_started: str | None
    """When its process started, as the system reports it: with `pid` it identifies one process uniquely."""
    run: str
    """The run folder that it writes."""
    sweep: int | None = None
    """The number of the first job of its sweep; None where it was queued alone."""
    metric: dict[str, Any] = field(default_factory=dict)
    """`name`, `better` (higher or lower) and the best `val` so far with its `epoch`; `test` once it has ended. Empty
    before the first validation.
    """

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINAL

    def shown(self) -> dict[str, Any]:
        """The record as the HTTP interface and `--json` show it, without its document."""
        hidden = ("document", "pid", "process_started", "lost", "cancelling")
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in hidden}


def best_of(metrics: Mapping[int, Mapping[str, Any]]) -> int | None:
    """The number of the job with the best validation so far, of jobs by number with their `metric`.

    None where fewer than two have one, or their metrics differ. Ties go to the first.
    """
    known = {number: metric for number, metric in sorted(metrics.items()) if metric.get("val") is not None}
    if len(known) < 2 or len({(metric["name"], metric["better"]) for metric in known.values()}) > 1:
        return None
    sign = 1 if next(iter(known.values()))["better"] == "higher" else -1
    return max(known, key=lambda number: sign * known[number]["val"])


# Ages that neither a clock change nor a restart of the service affects. `time.monotonic` counts from the system's
# start, for all processes alike, so a time that one service has stored can be compared by the next, as long as the
# system was not rebooted in between.


def moment() -> str:
    """The current time, in a form to be stored."""
    return f"{boot()} {time.monotonic():.3f}"


def age_of(kept: str | None) -> float:
    """Seconds since a stored time; 0 if the system was rebooted since then, as the age is unknown."""
    start, _, seconds = (kept or "").partition(" ")
    try:
        return max(0.0, time.monotonic() - float(seconds)) if start == boot() else 0.0
    except ValueError:
        return 0.0


@cache
def boot() -> str:
    """An identifier of the current boot of the system."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without /proc ages begin anew with each service.
        return f"process-{time.time_ns()}"


VERSION = 2
_TABLES = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    document TEXT NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    code TEXT,
    kind TEXT NOT NULL,
    cores INTEGER NOT NULL,
    device_bytes INTEGER,
    host_bytes INTEGER,
    forecast TEXT NOT NULL DEFAULT '{}',
    granted_device_bytes INTEGER,
    granted_host_bytes INTEGER,
    peak_device_bytes INTEGER,
    peak_host_bytes INTEGER,
    device TEXT,
    alone INTEGER NOT NULL DEFAULT 0,
    cancelling INTEGER NOT NULL DEFAULT 0,
    tries INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    step INTEGER NOT NULL DEFAULT -1,
    submitted REAL NOT NULL,
    started REAL,
    ended REAL,
    seconds REAL NOT NULL DEFAULT 0,
    pid INTEGER,
    process_started TEXT,
    run TEXT NOT NULL,
    likeness TEXT NOT NULL,
    since TEXT NOT NULL,
    sweep INTEGER,
    metric TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_likeness ON jobs (likeness, state, id);
CREATE UNIQUE INDEX jobs_by_run ON jobs (run) WHERE state NOT IN ('ended', 'failed', 'cancelled');
CREATE INDEX jobs_by_sweep ON jobs (sweep);
"""
_FROM_VERSION_1 = """
ALTER TABLE jobs ADD COLUMN sweep INTEGER;
ALTER TABLE jobs ADD COLUMN metric TEXT NOT NULL DEFAULT '{}';
CREATE INDEX jobs_by_sweep ON jobs (sweep);
"""
_COLUMNS = tuple(each.name for each in fields(JobRecord))
_JSON = ("document", "forecast", "metric")
_FLAGS = ("alone", "cancelling")
_ADVICE = {
    sqlite3.SQLITE_FULL: "Free space.",
    sqlite3.SQLITE_CANTOPEN: "See whether too many files are open (ulimit -n), and whether its folder can be written.",
    sqlite3.SQLITE_READONLY: "Name a folder that you may write to (--folder).",
}
_CHECK = "See whether its disk is full or damaged."
_NEWEST = 50
"""Ended jobs by which forecasts of seconds are corrected."""
_FILES = ("", "-wal", "-shm")
"""Suffixes of the files of an SQLite database."""


class Database:
    """The jobs of one service. All threads of the service may use it; each change is one transaction."""

    def __init__(self, path: Path, changed: Callable[[JobRecord], None] = lambda record: None) -> None:
        """Open or make the database; `changed` is called with every job that was added or changed."""
        self._path, self._changed = path, changed
        self._lock = threading.RLock()
        # Transactions are explicit below; Python would begin its own implicitly.
        with self._refusals(), writing(path):
            _keep_private(path)
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._connection.row_factory = sqlite3.Row
            self._prepare()

    def close(self) -> None:
        """Checkpoint the write-ahead log and close the database."""
        with self._lock:
            self._connection.close()

    def add(self, jobs: Sequence[dict[str, Any]], run_of: Callable[[int], Path]) -> list[JobRecord]:
        """Queue jobs, all of them or none; `run_of` gives the run folder for a job that names none."""
        now, since, added = time.time(), moment(), []
        with self._transaction():
            first = self._next_id()
            for number, job in enumerate(jobs, first):
                values = {"id": number, "state": "submitted", "submitted": now, "since": since, **job}
                values["run"] = values["run"] or str(run_of(number))
                values["sweep"] = first if len(jobs) > 1 else None
                self._insert(values)
                added.append(number)
        records = [self.job(number) for number in added]
        for record in records:
            self._changed(record)
        return records

    def job(self, number: int) -> JobRecord:
        """One job; an error if the number does not exist."""
        rows = self._read(f"SELECT {', '.join(_COLUMNS)} FROM jobs WHERE id = ?", (number,))
        if not rows:
            raise PenstockError(f"There is no job {number}: `penstock queue` lists them.", code="unknown-name")
        return _record(rows[0])

    def jobs(
        self, states: Sequence[str] = (), before: int | None = None, limit: int | None = None, oldest: bool = False
    ) -> list[JobRecord]:
        """Jobs in some of the states (all by default), newest first or `oldest` first, at most `limit` of them.

        `before` continues a list: only jobs with smaller numbers.
        """
        where, values = _where(states)
        if before is not None:
            where, values = f"{where} AND id < ?", [*values, before]
        order = "ASC" if oldest else "DESC"
        query = f"SELECT {', '.join(_COLUMNS)} FROM jobs WHERE {where} ORDER BY id {order} LIMIT ?"
        return [_record(row) for row in self._read(query, [*values, -1 if limit is None else limit])]

    def waiting(self, states: Sequence[str]) -> list[sqlite3.Row]:
        """The columns that a policy needs, for jobs in some states, in the order of their submission.

        `known_s` is the mean time of similar jobs that have ended, `predicted_s` what was forecast.
        """
        where, values = _where(states)
        query = (
            "SELECT id, kind, device_bytes, host_bytes, cores, priority, alone, since, seconds, known_s,"
            " json_extract(forecast, '$.run.total_s') AS predicted_s,"
            " json_extract(forecast, '$.throughput_share') AS throughput_share FROM jobs LEFT JOIN"
            " (SELECT likeness AS same, AVG(seconds) AS known_s FROM jobs WHERE state = 'ended' GROUP BY likeness)"
            f" ON likeness = same WHERE {where} ORDER BY id"
        )
        return self._read(query, values)

    def corrections(self) -> dict[str, float]:
        """By kind of device, by how much the newest jobs took longer than was forecast: the median of their ratios."""
        query = (
            "SELECT kind, seconds / json_extract(forecast, '$.run.total_s') AS ratio FROM jobs WHERE state = 'ended'"
            " AND json_extract(forecast, '$.run.total_s') > 0 AND seconds > 0 ORDER BY id DESC LIMIT ?"
        )
        ratios: dict[str, list[float]] = {}
        for row in self._read(query, (_NEWEST,)):
            ratios.setdefault(row["kind"], []).append(row["ratio"])
        return {kind: median(found) for kind, found in ratios.items()}

    def submitted(self, limit: int) -> list[JobRecord]:
        """Jobs whose memory is to be forecast, the most urgent first."""
        query = f"SELECT {', '.join(_COLUMNS)} FROM jobs WHERE state = 'submitted' ORDER BY priority DESC, id LIMIT ?"
        return [_record(row) for row in self._read(query, (limit,))]

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state that has any."""
        return {row[0]: row[1] for row in self._read("SELECT state, COUNT(*) FROM jobs GROUP BY state")}

    def change(self, number: int, since: Sequence[str] = (), **values: Any) -> bool:
        """Change a job if it is in one of the states `since` (any by default); returns whether it was."""
        for name in _JSON:
            if name in values:
                values[name] = json.dumps(values[name])
        if values.get("state") in ("waiting", "interrupted"):
            values["since"] = moment()
        where, states = _where(since)
        assignments = ", ".join(f"{name} = ?" for name in values)
        with self._transaction():
            query = f"UPDATE jobs SET {assignments} WHERE id = ? AND {where}"
            done = self._connection.execute(query, [*values.values(), number, *states]).rowcount > 0
        if done:
            self._changed(self.job(number))
        return done

    def metrics_of_sweep(self, sweep: int) -> dict[int, dict[str, Any]]:
        """The metrics of the jobs of a sweep, by number."""
        rows = self._read("SELECT id, metric FROM jobs WHERE sweep = ?", (sweep,))
        return {row["id"]: json.loads(row["metric"]) for row in rows}

    def later_with_run(self, number: int) -> int | None:
        """A job with a larger number that writes the same run folder; None if there is none."""
        query = "SELECT MAX(id) FROM jobs WHERE id > ? AND run = (SELECT run FROM jobs WHERE id = ?)"
        found: int | None = self._read(query, (number, number))[0][0]
        return found

    def likeness(self, number: int) -> str:
        """A key shared by jobs that need the same memory and about the same time."""
        return str(self._read("SELECT likeness FROM jobs WHERE id = ?", (number,))[0][0])

    def alike(self, number: int) -> JobRecord | None:
        """The newest similar job that has ended, or else one whose forecast is known."""
        same = f"SELECT {', '.join(_COLUMNS)} FROM jobs WHERE likeness = ? AND id <> ? AND"
        newest = "ORDER BY id DESC LIMIT 1"
        given = (self.likeness(number), number)
        rows = self._read(f"{same} state = 'ended' {newest}", given)
        rows = rows or self._read(f"{same} host_bytes IS NOT NULL {newest}", given)
        return _record(rows[0]) if rows else None

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """The rows of a query."""
        with self._lock, self._refusals():
            return self._connection.execute(query, values).fetchall()

    def _next_id(self) -> int:
        row = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").fetchone()
        return 1 + (int(row[0]) if row else 0)

    def _insert(self, values: dict[str, Any]) -> None:
        values["document"] = json.dumps(values["document"])
        names = ", ".join(values)
        marks = ", ".join("?" for _ in values)
        self._connection.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", list(values.values()))

    def _prepare(self) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise PenstockError(
                f"{self._path} has version {version} and this release reads version {VERSION}: use the release that"
                " wrote it, or name another folder with --folder.",
                code="unsupported-version",
            )
        self._connection.execute("PRAGMA journal_mode = WAL")
        # A confirmed change survives a power cut, not only a kill.
        self._connection.execute("PRAGMA synchronous = FULL")
        if version < VERSION:
            changes = _TABLES if version == 0 else _FROM_VERSION_1
            self._connection.executescript(f"BEGIN; {changes} PRAGMA user_version = {VERSION}; COMMIT;")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._refusals():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn SQLite's errors into sentences."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise PenstockError(
                "Two jobs that have not ended cannot write one run folder: give each its own `run`.",
                code="in-use",
            ) from None
        except sqlite3.OperationalError as error:
            # The lower byte is the kind of an error; errors of Python's own have none.
            kind = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise PenstockError(
                    f"Another program keeps {self._path} locked: close it. What could not be done is tried again.",
                    code="not-available",
                ) from error
            raise PenstockError(
                f"Could not read or write {self._path}: {error}. {_ADVICE.get(kind, _CHECK)}",
                code="write-failed",
            ) from error
        except sqlite3.DatabaseError as error:
            raise PenstockError(
                f"{self._path} is not a queue's database ({error}): restore it, or name another folder with --folder.",
                code="damaged-file",
            ) from None


def _keep_private(path: Path) -> None:
    """Make a database readable only by its owner: earlier releases left that to the user's umask."""
    os.close(open_private(path, os.O_RDWR | os.O_CREAT))
    for ending in _FILES:
        with suppress(FileNotFoundError):
            (path.parent / f"{path.name}{ending}").chmod(0o600)


def _where(states: Sequence[str]) -> tuple[str, list[Any]]:
    return (f"state IN ({', '.join('?' for _ in states)})", list(states)) if states else ("1", [])


def _record(row: sqlite3.Row) -> JobRecord:
    values = {name: row[name] for name in _COLUMNS}
    values |= {name: json.loads(values[name]) for name in _JSON}
    values |= {name: bool(values[name]) for name in _FLAGS}
    return JobRecord(**values)
