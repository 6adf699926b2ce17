"""The loop of a service: it forecasts, starts, watches and settles jobs. Only it handles their processes. `Served` is
what the HTTP interface has of it.
"""

import errno
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.processes import default_threads
from penstock.service.admission import (
    ActiveTask,
    JobDevice,
    Speeds,
    after_forecast,
    need_of_alike,
    running_jobs,
    start_of,
    too_much_of_forecast,
    waiting_jobs,
    with_need,
)
from penstock.service.database import FINAL, STARTABLE, STARTED, JobRecord, best_of
from penstock.service.operations import Operations, allowed_place
from penstock.service.policies import QueuePolicy, expected_ends
from penstock.service.workers.pool import ProcessName, Starter, WarmPool

# What becomes of a job when its process has ended: the decision, separate from carrying it out.

MOST_LOST = 5
"""How often in a row a job's process may be killed without having written a checkpoint."""


def after_end(
    record: JobRecord,
    outcome: Mapping[str, Any] | None,
    *,
    step: int,
    too_much: str | None = None,
    stopping: bool = False,
    beside: bool = False,
    with_others: bool = False,
) -> dict[str, Any]:
    """The changes to a job whose process has ended.

    `outcome` is what the process reported, None where it was killed. `step` is that of its newest checkpoint,
    `too_much` the reason if the service killed it for its memory, `stopping` whether the service ends itself, `beside`
    whether others ran on its device, and `with_others` whether its process ended by itself while others trained in it.
    """
    if record.cancelling:
        return {"state": "cancelled", "reason": f"It was cancelled; what it had trained is in {record.run}."}
    if outcome is not None and outcome["state"] == "done":
        return {"state": "ended", "reason": str(outcome.get("reason", "")), "code": None}
    if too_much is not None:
        return _after_too_much(record, too_much)
    if outcome is not None and outcome["state"] == "failed":
        return _after_failure(record, outcome, beside)
    if stopping or (outcome is not None and outcome["state"] == "interrupted"):
        why = "It was stopped and goes on from its newest checkpoint."
        return {"state": "interrupted", "reason": why, "step": step}
    lost = 1 if step > record.step else record.lost + 1
    if lost > MOST_LOST:
        return {
            "state": "failed",
            "code": "peer-lost",
            "reason": f"Its process was killed {counted(lost, 'times')} in a row before it had written a checkpoint:"
            " see its log, and set checkpoint_minutes lower.",
        }
    changes = {"state": "interrupted", "lost": lost, "step": step}
    if with_others:
        why = (
            "The process that it shared with other jobs was killed or crashed, which may be their doing: it goes on"
            " from its newest checkpoint, alone."
        )
        return {**changes, "reason": why, "alone": 1}
    return {**changes, "reason": "Its process was killed or crashed; it goes on from its newest checkpoint."}


def _after_failure(record: JobRecord, outcome: Mapping[str, Any], beside: bool) -> dict[str, Any]:
    reason, code = str(outcome["reason"]), str(outcome["code"])
    if code == "out-of-memory":
        return _after_too_much(record, reason)
    if code == "in-use":
        # The process of an earlier try has not quite ended.
        if record.lost < MOST_LOST:
            return {"state": "interrupted", "reason": reason, "lost": record.lost + 1}
        return {"state": "failed", "code": code, "reason": reason}
    if outcome.get("fault") and beside and not record.alone:
        why = (
            f"The device failed while other jobs ran on it, which may be their doing: it is tried again alone. {reason}"
        )
        return {"state": "interrupted", "reason": why, "alone": 1}
    return {"state": "failed", "reason": reason, "code": code}


def _after_too_much(record: JobRecord, sentence: str) -> dict[str, Any]:
    """A job whose forecast was too low is tried once more with the whole device; if that is not enough, it fails."""
    if record.alone:
        return {"state": "failed", "code": "out-of-memory", "reason": f"{sentence} It had the whole device."}
    needs = {
        "device_bytes": max(record.device_bytes or 0, record.peak_device_bytes or 0),
        "host_bytes": max(record.host_bytes or 0, record.peak_host_bytes or 0),
    }
    return {"state": "interrupted", "reason": f"{sentence} It is tried once more, alone.", "alone": 1, **needs}


_TICK_S = 0.2
_LOOK_AGAIN_S = 2.0
"""Seconds after which the policy is called again, as speeds and ages change without an event."""
_PAUSE_S = 1.0
_PASSING = ("write-failed", "not-available", "peer-lost")
"""Errors after which the same is tried again: a full disk, a locked database, a warm program that died."""
_LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS)
"""Resources that the system may lack for a while: descriptors, memory, processes."""
_CORES_OF_FORECAST, _FORECASTS = 4, 3
"""Cores per concurrent forecast, and the least number of them: a slow one must not block the others."""
_ALIKE_AT_ONCE = 50
"""Submitted jobs that are processed at once: thousands would block everything else."""


class JobScheduler:
    """Carries out what the policy decides."""

    def __init__(
        self,
        operations: Operations,
        rooms: list[JobDevice],
        policy: QueuePolicy,
        pool: WarmPool,
        say: Callable[[str], None],
        trainers: Starter | None = None,
    ) -> None:
        """`trainers` start the jobs, if `pool` does not; forecasts are always made here. `say` is called with lines for
        the owner of the service.
        """
        self._operations, self._database = operations, operations.database
        self._rooms, self.policy, self._pool, self._say = rooms, policy, pool, say
        self._trainers: Starter = pool if trainers is None else trainers
        self._active: dict[int, ActiveTask] = {}
        self._speeds = Speeds()
        self._stopping, self._chosen_at = False, 0.0

    def recover(self) -> None:
        """Recover from an earlier service: its processes are ended, and their jobs continue from checkpoints."""
        for record in self._database.jobs(("forecasting", *STARTED), oldest=True):
            if record.pid is not None and record.process_started is not None:
                ProcessName(record.pid, record.process_started).kill()
            changes = {"state": "interrupted", "reason": "The service ended; it goes on from its newest checkpoint."}
            if record.cancelling:
                changes = {"state": "cancelled", "reason": f"It was cancelled; what it had trained is in {record.run}."}
            elif record.state == "forecasting":
                changes = {"state": "submitted", "reason": ""}
            self._database.change(record.id, pid=None, process_started=None, **changes)

    def run(self, stopped: Callable[[], bool]) -> None:
        """Run until `stopped`, or until a drained service has no running job left; then end what still runs."""
        while not stopped() and not (self._operations.draining and not self._trains()):
            self._ticked()
        self._stopping = True
        while self._active:
            for task in self._active.values():
                task.stop()
            self._ticked()

    def tick(self) -> None:
        """Wait for an event, for a moment at most, and handle it."""
        changed = self._wait()
        for task in list(self._active.values()):
            changed |= self._attend(task)
        if self._stopping or self._operations.draining:
            return
        self._start_forecasts()
        if changed or time.monotonic() - self._chosen_at > _LOOK_AGAIN_S:
            self._start_jobs()
            self._chosen_at = time.monotonic()

    def devices(self) -> list[dict[str, Any]]:
        """Each device with its memory and the jobs on it, as granted and measured."""
        tasks = list(self._active.values())
        return [
            {
                "name": room.device.name,
                "kind": room.kind,
                "title": room.title,
                "bytes": room.device.bytes,
                "host_bytes": room.device.host_bytes,
                "cores": room.device.cores,
                "concurrent": room.device.concurrent,
                "running": [task.shown(self._speeds) for task in tasks if task.room is room],
            }
            for room in self._rooms
        ]

    def expected_ends(self) -> dict[int, float]:
        """By number, when jobs that wait or run are expected to end, in wall-clock seconds, if every job takes the time
        that is known, forecast or measured of it.
        """
        tasks = [task for task in list(self._active.values()) if task.room is not None]
        waiting = waiting_jobs(self._database.waiting(STARTABLE), self._rooms, self._database.corrections())
        left = {str(task.record.id): task.left_s for task in tasks}
        rooms = [room.device for room in self._rooms]
        now, ends = time.time(), expected_ends(waiting, running_jobs(tasks, self._speeds), left, rooms, self.policy)
        return {int(number): round(now + seconds, 1) for number, seconds in ends.items()}

    def live(self) -> dict[int, dict[str, Any]]:
        """By number, what is known of jobs that train beyond their records."""
        return {task.record.id: task.live() for task in list(self._active.values()) if task.kind == "train"}

    def _ticked(self) -> None:
        try:
            self.tick()
        except PenstockError as error:
            if error.code not in _PASSING:
                raise
            self._pause(str(error))
        except OSError as error:
            if error.errno not in _LACKS:
                raise
            self._pause(
                f"The system refuses what the service needs ({error.strerror}): close other programs, or raise the"
                " service's limits (ulimit -n, ulimit -u). It tries again."
            )

    def _pause(self, why: str) -> None:
        """Report a temporary failure: what could not be done is tried again."""
        self._say(why)
        time.sleep(_PAUSE_S)

    def _trains(self) -> bool:
        return any(task.kind == "train" for task in self._active.values())

    def _wait(self) -> bool:
        """Wait for events; returns whether there was a user request."""
        # `poll` needs no descriptor of its own, and so works when none is left.
        with selectors.PollSelector() as selector:
            selector.register(self._operations.changes, selectors.EVENT_READ)
            for task in self._active.values():
                selector.register(task.process, selectors.EVENT_READ)
            ready = selector.select(_TICK_S)
        return self._operations.changes in [key.fd for key, _ in ready] and self._operations.seen()

    def _attend(self, task: ActiveTask) -> bool:
        """Read a process's reports and check its memory; returns whether it has ended."""
        messages, ended = task.process.heard()
        for message in messages:
            self._note(task, message)
        self._watch_memory(task)
        record = self._database.job(task.record.id)
        if record.state == "starting" and task.trains:
            self._database.change(record.id, ("starting",), state="running")
        if record.cancelling:
            task.stop()
        if ended:
            task.process.name.kill()
            self._settle(task)
            del self._active[task.record.id]
            task.process.close()
            self._neighbours_changed()
        return ended

    def _note(self, task: ActiveTask, message: dict[str, Any]) -> None:
        """Keep what a process reports. Nothing is written here: a full disk must not lose reports."""
        task.trains |= "running" in message
        task.total = int(message.get("total", task.total))
        if "steps" in message:
            task.meter.note(int(message["steps"]))
        outcome = message.get("outcome")
        task.metric = (outcome or message).get("metric") or task.metric
        if outcome is not None:
            task.outcome = outcome
            task.host_bytes = max(task.host_bytes, int(outcome["host_bytes"]))
        task.device_bytes = max(task.device_bytes, int((outcome or message).get("device_bytes", 0)))

    def _watch_memory(self, task: ActiveTask) -> None:
        """End a job that takes more host memory than it was granted, as the rest is granted to others, and a forecast
        that takes too much memory or time.
        """
        now = task.process.name.resident_bytes()
        task.now_bytes, task.host_bytes = now, max(task.host_bytes, now)
        if task.kind == "forecast" and task.too_much is None:
            most = max(room.device.host_bytes for room in self._rooms)
            task.too_much = too_much_of_forecast(now, time.monotonic() - task.began, most)
            if task.too_much is not None:
                task.process.name.signal(signal.SIGKILL)
        granted = task.record.granted_host_bytes
        if task.kind == "train" and granted is not None and now > granted and task.too_much is None:
            task.too_much = (
                f"It took {now / 1e6:,.0f} MB of the host's memory, and {granted / 1e6:,.0f} MB were forecast and"
                " granted."
            )
            task.process.name.signal(signal.SIGKILL)

    def _settle(self, task: ActiveTask) -> None:
        """Record what becomes of a job whose process has ended."""
        record = self._database.job(task.record.id)
        gone: dict[str, Any] = {"pid": None, "process_started": None}
        if task.kind == "forecast":
            changes = after_forecast(record, task.outcome, self._rooms, task.too_much)
            if record.cancelling:
                changes = {"state": "cancelled", "reason": "It was cancelled before it ran."}
            elif self._stopping:
                changes = {"state": "submitted"}
        else:
            gone["peak_host_bytes"] = max(task.host_bytes, record.peak_host_bytes or 0)
            gone["peak_device_bytes"] = max(task.device_bytes, record.peak_device_bytes or 0)
            gone["seconds"] = task.seconds
            gone["metric"] = task.metric or record.metric
            changes = after_end(
                replace(record, **{name: gone[name] for name in ("peak_host_bytes", "peak_device_bytes")}),
                task.outcome,
                step=newest_step(Path(record.run)),
                too_much=task.too_much,
                stopping=self._stopping,
                beside=any(other.room is task.room for other in self._active.values() if other is not task),
                with_others=task.process.ended_with_others,
            )
            self._say(f"Job {record.id} ({record.name}) is {changes['state']}. {changes['reason']}".strip())
        if changes["state"] in FINAL:
            gone["ended"] = time.time()
        self._database.change(record.id, **gone, **changes)

    def _start_forecasts(self) -> None:
        """Start forecasts of submitted jobs; what is known of a similar job is reused."""
        under_way = {task.likeness for task in self._active.values() if task.kind == "forecast"}
        most = max(_FORECASTS, default_threads() // _CORES_OF_FORECAST)
        for record in self._database.submitted(_ALIKE_AT_ONCE):
            alike = self._database.alike(record.id)
            need = None if alike is None else need_of_alike(alike)
            if need is not None:
                self._database.change(record.id, ("submitted",), **with_need(record, need, self._rooms))
                self._operations.wake()
            elif len(under_way) < most and (likeness := self._database.likeness(record.id)) not in under_way:
                under_way.add(likeness)
                able = (room for room in self._rooms if room.kind == record.kind)
                room = max(able, key=lambda room: room.device.bytes)
                limits = {"bytes": room.device.bytes, "host_bytes": room.device.host_bytes}
                task = {"kind": "forecast", "document": record.document, "room": limits}
                self._begin(record, ("submitted",), {"state": "forecasting"}, task, None)

    def _start_jobs(self) -> None:
        waiting = waiting_jobs(self._database.waiting(STARTABLE), self._rooms, self._database.corrections())
        running = running_jobs(self._active.values(), self._speeds)
        rooms = {room.device.name: room for room in self._rooms}
        for start in self.policy.choose(waiting, running, [room.device for room in self._rooms]) if waiting else ():
            record, room = self._database.job(int(start.id)), rooms[start.device]
            changes, task = start_of(record, room, self._operations.rules.modules)
            expected_s = next(job.expected_s for job in waiting if job.id == start.id)
            self._begin(record, STARTABLE, changes, task, room, expected_s)

    def _refused(self, record: JobRecord) -> PenstockError | None:
        """An error if a path of the job leads elsewhere since it was submitted; else None."""
        try:
            # `partition` is what earlier releases called `clusters`.
            for name in ("graph", "clusters", "partition"):
                value = record.document.get(name)
                if isinstance(value, str) and "/" in value:
                    allowed_place(value, self._operations.rules)
        except PenstockError as error:
            return error
        return None

    def _begin(
        self,
        record: JobRecord,
        since: Sequence[str],
        changes: dict[str, Any],
        task: dict[str, Any],
        room: JobDevice | None,
        expected_s: float | None = None,
    ) -> None:
        """Start a process for a job that is still in one of the states `since`, and change the job.

        The process gets its task after its number is on disk, so that a service that is killed in between leaves no
        process that the next one does not know. Where the disk is full or the job was cancelled, it ends without having
        begun.
        """
        refused = self._refused(record)
        if refused is not None:
            why = {"state": "failed", "code": refused.code, "reason": str(refused), "ended": time.time()}
            self._database.change(record.id, since, **why)
            return
        starter = self._pool if room is None else self._trainers
        process = starter.start(self._operations.folder.job(record.id), room.environment if room else {}, task)
        known = {"pid": process.name.pid, "process_started": process.name.started}
        begun = False
        try:
            begun = self._database.change(record.id, since, **known, **changes)
        finally:
            if not begun:
                process.close()
        if begun:
            process.begin(task)
            record = self._database.job(record.id)
            self._active[record.id] = ActiveTask(
                record, process, task["kind"], self._database.likeness(record.id), room, expected_s=expected_s
            )
            self._neighbours_changed()

    def _neighbours_changed(self) -> None:
        for task in self._active.values():
            others = {other.record.id for other in self._active.values() if other.room is task.room} - {task.record.id}
            task.meter.beside(frozenset(others))


def newest_step(run: Path) -> int:
    """The step of a run's newest checkpoint; -1 where there is none."""
    files = sorted((run / "checkpoints").glob("step-*.ckpt"))
    return int(files[-1].stem.removeprefix("step-")) if files else -1


# Recent changes, for clients that watch the service.

_KEPT = 2000


class QueueEvent(NamedTuple):
    """An event: its number, its kind and its content."""

    number: int
    kind: str
    fields: dict[str, Any]


class Feed:
    """The newest events. A client that falls behind must read everything again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[QueueEvent] = deque(maxlen=_KEPT)
        self._number = 0

    @property
    def newest(self) -> int:
        """The number of the newest event."""
        return self._number

    def add(self, kind: str, fields: dict[str, Any]) -> None:
        """Append an event with the next number."""
        with self._lock:
            self._number += 1
            self._events.append(QueueEvent(self._number, kind, fields))

    def changed(self, record: JobRecord) -> None:
        """Append the event of a job that changed."""
        self.add("job", record.shown())

    def after(self, number: int) -> list[QueueEvent] | None:
        """Events after that number, in order; None where some of them were dropped."""
        with self._lock:
            if number > self._number or (self._events and number < self._events[0].number - 1):
                return None
            return [event for event in self._events if event.number > number]


@dataclass
class Served:
    """A service as its HTTP interface sees it."""

    operations: Operations
    scheduler: JobScheduler
    feed: Feed
    closing: bool = False
    """Whether the service ends, and streams of events with it."""

    def shown(self, records: Sequence[JobRecord]) -> list[dict[str, Any]]:
        """Jobs as users see them: running ones with their seconds and metrics so far, and the best
        of a sweep marked.
        """
        live, ends = self.scheduler.live(), dict[int, float]()
        if any(not record.is_final for record in records):
            ends = self.scheduler.expected_ends()
        best = {
            sweep: best_of(
                {
                    number: live.get(number, {}).get("metric", metric)
                    for number, metric in self.operations.database.metrics_of_sweep(sweep).items()
                }
            )
            for sweep in {record.sweep for record in records if record.sweep is not None}
        }
        return [
            {
                **record.shown(),
                **live.get(record.id, {}),
                "expected_end": ends.get(record.id),
                "best": record.sweep is not None and best[record.sweep] == record.id,
            }
            for record in records
        ]
