"""What the users of a service ask of it: to queue, show, cancel, try again. The scheduler does the rest."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.graph.document_sweep import MOST_POINTS, Sweep
from penstock.graph.input_files import open_regular, read_document
from penstock.service.database import Database
from penstock.service.folder import ServiceFolder
from penstock.service.records import FINAL, RETRIED, STARTABLE, STARTED, JobRecord
from penstock.service.submission import SubmissionRules, accepted_job, allowed_path, swept, too_deep

_DRAINING = "The service takes no more jobs: it ends when those that run have."
_CHUNK = 64 << 10
"""Bytes of a log or of metrics that are read at once."""


class Operations:
    """The queue as its users see it. Every thread may call it; `wake` tells the scheduler that something changed."""

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

        `changes` replace fields of the job; its name says them where none is given.
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
        """Cancel a job. One that runs is told to stop: it finishes its step, writes a checkpoint and is cancelled."""
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
        """Queue a job again that failed or was cancelled: it goes on from its newest checkpoint, where it has one."""
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
        # What has never run is forecast again: the service may have other devices now.
        known = record.tries > 0 and record.host_bytes is not None
        changes = {"state": "interrupted" if known else "submitted", "reason": "It is tried again.", "code": None}
        if self.database.change(number, RETRIED, ended=None, cancelling=0, lost=0, **changes):
            self.wake()
        return self.database.job(number)

    def drain(self) -> int:
        """Take and start no more jobs, and end when the running ones have; how many those are."""
        self.draining = True
        self.wake()
        counts = self.database.counts()
        return sum(counts.get(state, 0) for state in STARTED)

    def described(self, number: int) -> dict[str, Any]:
        """A job with its document, and its result where it has one."""
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
        """What a job has printed from a byte on, in whole lines where that is possible."""
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
        """Nobody asks any more."""
        os.close(self._changed_read)
        os.close(self._changed_write)

    def wake(self) -> None:
        """Let the scheduler look again."""
        with suppress(BlockingIOError, OSError):
            os.write(self._changed_write, b".")

    @property
    def changes(self) -> int:
        """A descriptor that is readable after `wake`."""
        return self._changed_read

    def seen(self) -> bool:
        """Forget that something changed; whether anything did."""
        with suppress(BlockingIOError):
            return bool(os.read(self._changed_read, 1 << 16))
        return False


def _require_text(*fields: Mapping[str, Any]) -> None:
    """Refuse fields that no file could hold: half of a character, or more lists in lists than can be walked."""
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
    """Lines of a file that begin at `offset`, and where the next ones do."""
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
