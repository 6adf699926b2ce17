"""The run folder: the job, the metrics and the result, written as the run proceeds."""

import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.graph.documents import read_yaml
from penstock.graph.files import (
    claimed,
    make_private_folder,
    open_bytes,
    open_lines,
    open_lock,
    open_text,
    read_document,
    refuse_links,
    remove_unfinished_below,
    take_blocks,
    unfinished,
    write_whole,
    writing,
)
from penstock.graph.new_folders import check_target, remove_unfinished, replace_folder
from penstock.graph.object_folders import abandon, local_copy, new_copy, send, send_later, shown
from penstock.nn.user_module import user_module_location
from penstock.train.job import JOB, Job, read_decided, stored_job, write_job
from penstock.train.run_files.table_file import append_epoch, write_table_of

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
