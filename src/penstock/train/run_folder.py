"""The run folder: what was asked for, what happened, and what came of it, written as it happens."""

import fcntl
import json
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from penstock.errors import PenstockError
from penstock.graph.atomic import check_target, write_whole
from penstock.graph.documents import read_yaml
from penstock.train.job import Job, make_job, write_job

FORMAT, VERSION = "penstock-run", 1
RUN, JOB, CLUSTER, PLAN, METRICS, EVENTS, LOG, REPORT = (
    "run.json",
    "job.yaml",
    "cluster.json",
    "plan.json",
    "metrics.jsonl",
    "events.jsonl",
    "log.txt",
    "report.html",
)

PARTS = "parts"
"""A cluster's run whose graph was cut for it has the parts in this folder."""
STATES = ("running", "finished", "stopped-early", "interrupted", "failed")
_KINDS = {"started": str, **dict.fromkeys(("graph", "labels", "result", "val", "test"), dict)}
"""What fields of run.json, and of the result in it, are where they are there."""


class RunFolder:
    """A run's documents. One process at a time has it open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self._lock: TextIO | None = None

    @classmethod
    def create(cls, job: Job, default_name: str, force: bool) -> "RunFolder":
        """A new folder for a job: the one it names, or the next free one under runs/."""
        path = Path(job.run) if job.run else _next_free(Path("runs"), default_name)
        check_target(path, force)
        _remove_old(path)
        folder = cls(path)
        (path / "checkpoints").mkdir(parents=True)
        folder._hold()
        try:
            write_job(job, path / JOB)
        except BaseException:
            folder.discard()
            raise
        return folder

    @classmethod
    def open(cls, path: Path, writing: bool = False) -> "RunFolder":
        """The folder of an earlier run."""
        folder = cls(path)
        try:
            folder.facts = json.loads((path / RUN).read_text())
        except FileNotFoundError:
            raise PenstockError(f"{path} is no run folder: it has no {RUN}.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise PenstockError(f"{path / RUN} cannot be read ({error}): copy the run again.") from None
        if (
            not isinstance(folder.facts, dict)
            or folder.facts.get("format") != FORMAT
            or folder.facts.get("version") != VERSION
        ):
            raise PenstockError(f"{path / RUN} is no run of this release: use the release that wrote it.")
        _check_facts(folder.facts, path / RUN)
        if writing:
            folder._hold()
        return folder

    def job(self) -> Job:
        """The job as it was run."""
        return make_job(read_yaml(self.path / JOB, "the run's job"), str(self.path / JOB))

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    def write_facts(self, **changes: Any) -> None:
        """Replace some of run.json's fields."""
        self.facts = {"format": FORMAT, "version": VERSION, **self.facts, **changes}
        write_whole(self.path / RUN, json.dumps(self.facts, indent=1) + "\n")

    def append_metrics(self, record: dict[str, Any]) -> None:
        """One more line of metrics.jsonl."""
        try:
            with (self.path / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise PenstockError(
                f"Could not write {self.path / METRICS}: {error.strerror or error}. Free space, then go on with"
                f" `penstock train --resume {self.path}`."
            ) from error

    def forget_metrics_after(self, step: int) -> None:
        """Drop what was recorded after a checkpoint that the run goes on from: it will happen again."""
        path = self.path / METRICS
        if not path.exists():
            return
        kept = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
        write_whole(path, "".join(f"{line}\n" for line in kept))

    def log(self, text: str) -> None:
        """A line for whoever looks for the cause of something."""
        with (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def log_error(self, error: BaseException) -> None:
        """The whole traceback, with its causes."""
        self.log("".join(traceback.format_exception(error)).rstrip())

    def discard(self) -> None:
        """Remove a folder in which nothing has happened yet."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _hold(self) -> None:
        self._lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise PenstockError(f"{self.path} is in use by another process: wait for it or stop it.") from None


def _check_facts(facts: dict[str, Any], where: Path) -> None:
    """Others take these fields as they are."""
    mend = "copy the run again"
    state = facts.get("state")
    if state not in STATES:
        raise PenstockError(f"{where} has the state {state!r}, which is none of {', '.join(STATES)}: {mend}.")
    result = facts.get("result", {})
    scores = {name: result[name] for name in ("val", "test") if name in result} if isinstance(result, dict) else {}
    for name, value in {**facts, **scores}.items():
        kind = _KINDS.get(name, object)
        if not isinstance(value, kind):
            raise PenstockError(f"{where} has a {name!r} that is not {'text' if kind is str else 'a mapping'}: {mend}.")


def _remove_old(path: Path) -> None:
    """Make room for a new run: only an earlier run is removed, and not under the feet of a process that writes it."""
    if not path.exists() or not any(path.iterdir()):
        return
    if not (path / RUN).exists():
        raise PenstockError(f"{path} is no run folder, so a run will not replace it: name another.")
    old = RunFolder(path)
    old._hold()
    try:
        shutil.rmtree(path)
    finally:
        old.close()


def _next_free(parent: Path, name: str) -> Path:
    taken = {entry.name for entry in parent.iterdir()} if parent.is_dir() else set()
    number = 1
    while f"{name}-{number}" in taken:
        number += 1
    return parent / f"{name}-{number}"


def _step_of(line: str) -> int:
    """The step a line belongs to; lines without one, and a last line cut short, count as never and always."""
    try:
        record = json.loads(line)
    except ValueError:
        return sys.maxsize
    return int(record.get("step", -1))
