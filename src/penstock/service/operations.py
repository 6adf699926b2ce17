"""What users of a service can do: queue, show, cancel, retry. The scheduler does the rest."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from penstock.errors import PenstockError
from penstock.graph.document_sweep import MOST_POINTS, Point, Sweep, fields_of, points_of, said, with_point
from penstock.graph.files import open_regular, read_document
from penstock.graph.object_folders import address_of, is_remote
from penstock.service.database import FINAL, RETRIED, STARTABLE, STARTED, Database, JobRecord
from penstock.service.folder import ServiceFolder
from penstock.train.job import Job, JobFields, job_fields, make_job

# Validation of submissions: a job's fields, the paths that it names, the code that it brings.

MOST_BYTES = 64 << 10
"""The largest size of one job, as JSON."""
_NEVER_MATTERS = ("lr", "embedding_lr", "run")
"""Fields that affect neither the memory of a job nor its time."""
_NAMED_ANYWAY = ("graph", "model", "module", "run")
"""Fields whose values are not appended to a job's name."""
_LONGEST_NAME = 100
"""The longest name that a user may give."""
_LONGEST_VALUES = 200
"""The longest suffix of a name with the values of fields."""


@dataclass(frozen=True)
class SubmissionRules:
    """What the owner of a service allows, and the defaults of jobs."""

    allowed: tuple[Path, ...]
    """Folders, without links in their paths, whose contents jobs may name."""
    modules: bool
    """Whether code that a job names (`module`) is run."""
    threads: int
    """Threads of a job that does not give a number; fixed, as it affects how sums are rounded."""
    reserved: Path
    """The service's own folder, in which no job may choose its run: it could take another job's folder."""
    kinds: tuple[str, ...]
    """The kinds of devices here: cpu, or cuda and cpu. The first is the default."""
    addresses: tuple[str, ...] = ()
    """Addresses of object stores below which jobs may name graphs."""


def swept(fields: Mapping[str, Any], sweeps: Sequence[Sweep]) -> list[tuple[Point, dict[str, Any]]]:
    """The combinations of the sweeps' values, each with the resulting job fields; one where nothing is swept."""
    if not sweeps:
        return [({}, dict(fields))]
    known = fields_of(JobFields)
    try:
        return [(point, with_point(fields, point, known)) for point in points_of(sweeps)]
    except RecursionError:
        raise too_deep() from None


def too_deep() -> PenstockError:
    """The error for lists nested too deeply."""
    return PenstockError("The job's lists and mappings are nested too deeply: write it plainly.", code="invalid-value")


def accepted_job(
    name: str, differing: Mapping[str, Any], fields: Mapping[str, Any], priority: int, rules: SubmissionRules
) -> dict[str, Any]:
    """The columns of a new job in the database; an error where its fields are invalid or name what is not allowed.

    It is called `name`, or after its graph and its model, and after the values of fields by which it differs.
    """
    job = make_job(dict(fields))
    if len(json.dumps(dict(fields))) > MOST_BYTES:
        raise PenstockError(f"The job has more than {MOST_BYTES:,} bytes: submit less.", code="too-large")
    kind = _kind(job, rules)
    changes: dict[str, Any] = {
        "graph": _graph(job.graph, rules),
        "clusters": allowed_place(job.clusters, rules) if isinstance(job.clusters, str) else job.clusters,
        "threads": job.threads or rules.threads,
        "device": kind,
    }
    if job.own_code and not rules.modules:
        named = ", ".join(name for names in job.own_code.values() for name in names)
        raise PenstockError(
            f"The job brings code of its own ({named}), and this service runs none: start it with"
            " --allow-modules if you trust everyone who has its token.",
            code="untrusted-code",
        )
    run = ""
    if job.run is not None:
        run = str(_run(job.run, rules))
        if Path(run).exists():
            raise PenstockError(f"{run} exists already: name another run folder.", code="file-exists")
    document = job_fields(job.model_copy(update=changes))
    return {
        "name": _name(name or f"{_graph_name(job.graph)} {job.model_name}", differing),
        "document": document,
        "priority": priority,
        "kind": kind,
        "cores": document["threads"],
        "run": run,
        "likeness": _likeness(document),
    }


def _name(name: str, differing: Mapping[str, Any]) -> str:
    """A job's name, with the values that distinguish it from others of that name."""
    shown = {field: value for field, value in differing.items() if field not in _NAMED_ANYWAY}
    values = " ".join(said(shown).split()) if shown else ""
    cut = values if len(values) <= _LONGEST_VALUES else f"{values[:_LONGEST_VALUES]} ..."
    return ", ".join(each for each in (" ".join(name.split())[:_LONGEST_NAME], cut) if each)


def _graph_name(graph: str) -> str:
    """The name of a graph: its file without the extension, or its folder."""
    return re.sub(r"\.(npz|tsv|txt|csv|pt)$", "", Path(graph).name)


def allowed_path(given: str, allowed: Sequence[Path]) -> Path:
    """A path without links, which must be in one of the allowed folders. Nothing is read for this check."""
    try:
        path = Path(given).expanduser()
        if not path.is_absolute():
            raise PenstockError(
                f"{given} is a relative path, and the service runs in a folder of its own: give an absolute one.",
                code="invalid-value",
            )
        path = path.resolve()
    except (OSError, RuntimeError, ValueError):
        raise PenstockError(f"{given!r} is not a path that can be used: correct it.", code="invalid-value") from None
    if not any(path.is_relative_to(each) for each in allowed):
        raise PenstockError(
            f"{given} is outside of what the service may read ({', '.join(map(str, allowed))}): start it with --allow"
            " and a folder that holds it.",
            code="not-permitted",
        )
    return path


def allowed_place(given: str, rules: SubmissionRules) -> str:
    """A path without links or an address, which must be below what is allowed. Nothing is read for this check."""
    if not is_remote(given):
        return str(allowed_path(given, rules.allowed))
    address, _, query = address_of(given).partition("?")
    allowed = [each.partition("?")[::2] for each in rules.addresses]
    # The query may name another store.
    is_below = any(f"{address}/".startswith(f"{above}/") and query == options for above, options in allowed)
    if not is_below or ".." in unquote(address).split("/"):
        raise PenstockError(
            f"{address} is not below an address that jobs may name: start the service with --allow and an address that"
            " is above it, with the same options after a ? if there are any.",
            code="not-permitted",
        )
    return f"{address}?{query}" if query else address


def _run(given: str, rules: SubmissionRules) -> Path:
    """The run folder that a job names."""
    if is_remote(given):
        raise PenstockError(
            f"{address_of(given)} is an address, and a job of the queue keeps its run in a folder of the service's"
            " machine: name one, or leave `run` out.",
            code="invalid-value",
        )
    path = allowed_path(given, rules.allowed)
    if path.is_relative_to(rules.reserved):
        raise PenstockError(
            f"{given} is in the folder of the service, which is kept for the runs of jobs that name none: leave `run`"
            " out, or name a folder elsewhere.",
            code="not-permitted",
        )
    return path


def _graph(given: str, rules: SubmissionRules) -> str:
    """A data set's name unchanged; a path only if it is allowed and exists, an address if it is allowed."""
    if "/" not in given and not given.startswith("~"):
        return given
    place = allowed_place(given, rules)
    if not is_remote(place) and not Path(place).exists():
        raise PenstockError(f"There is no graph at {given}: check the path.", code="graph-not-found")
    return place


def _kind(job: Job, rules: SubmissionRules) -> str:
    if job.device == "auto":
        return rules.kinds[0]
    if job.device not in rules.kinds:
        raise PenstockError(
            f"The job asks for device {job.device!r}, and this service has {' and '.join(rules.kinds)}: use auto.",
            code="device-not-found",
        )
    return job.device


def _likeness(document: Mapping[str, Any]) -> str:
    """A key shared by jobs that need the same memory and about the same time."""
    kept = {name: value for name, value in document.items() if name not in _NEVER_MATTERS}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:32]


_DRAINING = "The service takes no more jobs: it ends when those that run have."
_CHUNK = 64 << 10
"""Bytes of a log or of metrics that are read at once."""


class Operations:
    """The queue as its users see it. Any thread may call it; `wake` tells the scheduler that something changed."""

    def __init__(self, folder: ServiceFolder, database: Database, rules: SubmissionRules) -> None:
        self.folder, self.database, self.rules = folder, database, rules
        self.draining = False
        self._changed_read, self._changed_write = os.pipe()
        for descriptor in (self._changed_read, self._changed_write):
            os.set_blocking(descriptor, False)

    def submit(
        self,
        fields: Mapping[str, Any],
        sweep: Mapping[str, Sequence[Any]],
        priority: int,
        changes: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> list[JobRecord]:
        """Queue a job, or one for each combination of a sweep's values: all of them, or none.

        `changes` replace fields of the job; its name includes them if no name is given.
        """
        changes = changes or {}
        if self.draining:
            raise PenstockError(_DRAINING, code="closed")
        _require_text(fields, sweep, changes, {"name": name})
        sweeps = [Sweep(field, tuple(values)) for field, values in sweep.items()]
        combinations = 1
        for each in sweeps:
            combinations *= len(each.values)
        if not 0 < combinations <= MOST_POINTS:
            raise PenstockError(
                f"The sweep has {combinations:,} combinations: give between 1 and {MOST_POINTS:,}.", code="too-large"
            )
        said = {} if name else changes
        variants = swept({**fields, **changes}, sweeps)
        jobs = [accepted_job(name, {**said, **point}, each, priority, self.rules) for point, each in variants]
        if len(jobs) > 1 and jobs[0]["run"]:
            raise PenstockError(
                "All jobs of a sweep would write the run folder that the job names: leave `run` out.", code="in-use"
            )
        records = self.database.add(jobs, lambda number: self.folder.job(number) / "run")
        self.wake()
        return records

    def cancel(self, number: int) -> JobRecord:
        """Cancel a job. A running one is told to stop: it finishes its step, writes a checkpoint and is cancelled."""
        while True:
            record = self.database.job(number)
            if record.state in FINAL:
                raise PenstockError(
                    f"Job {number} is {record.state} already: there is nothing to cancel.", code="closed"
                )
            if record.state in ("submitted", *STARTABLE):
                done = self.database.change(
                    number, (record.state,), state="cancelled", reason="It was cancelled before it ran."
                )
            else:
                done = self.database.change(number, ("forecasting", *STARTED), cancelling=1)
            if done:
                self.wake()
                return self.database.job(number)

    def retry(self, number: int) -> JobRecord:
        """Queue a job again that failed or was cancelled: it continues from its newest checkpoint, if it has one."""
        if self.draining:
            raise PenstockError(_DRAINING, code="closed")
        record = self.database.job(number)
        if record.state not in RETRIED:
            raise PenstockError(
                f"Job {number} is {record.state}: only jobs that failed or were cancelled can be tried again.",
                code="closed",
            )
        later = self.database.later_with_run(number)
        if later is not None:
            raise PenstockError(
                f"Job {later} has written the run folder {record.run} since: submit job {number} anew with another"
                " `run`.",
                code="in-use",
            )
        # A job that has never run is forecast again: the service may have other devices now.
        known = record.tries > 0 and record.host_bytes is not None
        changes = {"state": "interrupted" if known else "submitted", "reason": "It is tried again.", "code": None}
        if self.database.change(number, RETRIED, ended=None, cancelling=0, lost=0, **changes):
            self.wake()
        return self.database.job(number)

    def drain(self) -> int:
        """Accept and start no more jobs, and end when the running ones have; returns how many those are."""
        self.draining = True
        self.wake()
        counts = self.database.counts()
        return sum(counts.get(state, 0) for state in STARTED)

    def described(self, number: int) -> dict[str, Any]:
        """A job with its document, and its result if it has one."""
        record = self.database.job(number)
        result = None
        with suppress(OSError, ValueError):
            result = json.loads(read_document(Path(record.run) / "run.json")).get("result")
        report = str(_report(record)) if _report(record).exists() else None
        return {**record.shown(), "document": record.document, "result": result, "report": report}

    def report(self, number: int) -> str:
        """The page of a job's run, as HTML."""
        record = self.database.job(number)
        try:
            return read_document(allowed_path(str(_report(record)), self.rules.allowed))
        except (OSError, ValueError):
            raise PenstockError(
                f"Job {number} has no report: it is written when a run ends or is interrupted.", code="file-not-found"
            ) from None

    def log(self, number: int, offset: int) -> dict[str, Any]:
        """What a job has printed from a byte on, in whole lines if possible."""
        final = self.database.job(number).is_final
        text, after = _read(self.folder.log(number), offset)
        return {"text": text.decode("utf-8", "replace"), "next": after, "final": final and not text}

    def metrics(self, number: int, offset: int) -> dict[str, Any]:
        """Records of a run's metrics from a byte on."""
        record = self.database.job(number)
        text, after = _read(Path(record.run) / "metrics.jsonl", offset)
        found = []
        for line in text.splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return {"records": found, "next": after, "final": record.is_final and not text}

    def close(self) -> None:
        """Close the pipe that wakes the scheduler's thread."""
        os.close(self._changed_read)
        os.close(self._changed_write)

    def wake(self) -> None:
        """Wake the scheduler's thread before its timeout."""
        with suppress(BlockingIOError, OSError):
            os.write(self._changed_write, b".")

    @property
    def changes(self) -> int:
        """A descriptor that is readable after `wake`."""
        return self._changed_read

    def seen(self) -> bool:
        """Clear the wake-up; returns whether there was one."""
        with suppress(BlockingIOError):
            return bool(os.read(self._changed_read, 1 << 16))
        return False


def _require_text(*fields: Mapping[str, Any]) -> None:
    """Refuse fields that no file could hold: unpaired surrogates, or lists nested too deeply."""
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise PenstockError(
            f"The job has {error.object[error.start]!a}, which is half of a character, among its texts: remove it.",
            code="invalid-value",
        ) from None
    except RecursionError:
        raise too_deep() from None


def _report(record: JobRecord) -> Path:
    return Path(record.run) / "report.html"


def _read(path: Path, offset: int) -> tuple[bytes, int]:
    """Lines of a file that begin at `offset`, and where the next ones begin."""
    try:
        with open_regular(path) as file:
            file.seek(offset)
            chunk = file.read(_CHUNK)
    except OSError:
        return b"", offset
    whole = chunk.rfind(b"\n") + 1
    if whole == 0 and len(chunk) == _CHUNK:
        whole = _CHUNK
    return chunk[:whole], offset + whole
