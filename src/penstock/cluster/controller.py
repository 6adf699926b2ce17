"""The controller: starts every task, watches its heartbeats, restarts it when it dies, and ends the run."""

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from penstock.cluster.launch import Handle, Launcher
from penstock.cluster.layout import CONTROLLER, Layout, Setup, TaskSpec
from penstock.cluster.rendezvous import Rendezvous
from penstock.cluster.reports import (
    CACHED,
    FEATURE_PATH,
    WAITED,
    DecisionReport,
    Failed,
    Heartbeat,
    Registered,
    Result,
    StepReport,
)
from penstock.errors import PenstockError, known_code
from penstock.progress import Progress
from penstock.store.parts.requests import StoreRequest, checked
from penstock.train.run import Decisions
from penstock.wire.coflows import coflow_figures, read_tallies
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.transport.tls import Credentials, make_credentials

_LOOK, _LOOK_SHARE = 0.02, 1e-4
"""Seconds between two checks of the tasks where they are few, and for each task of a large run."""
_FEW, _QUIET = 32, 0.5
"""Among so few tasks each one's address is sent to all at once; in a larger run that of several together, after so many
seconds at the latest."""
_QUEUED: dict[str, type[StoreRequest] | None] = {
    "progress": StepReport,
    "facts": None,
    "decided": DecisionReport,
    "result": Result,
    "failed": Failed,
}
"""Kinds of messages that are left to the controller's own thread, and the form of their bodies."""
_LEAVING = 10.0
"""Seconds that tasks have to end once the run is over."""


@dataclass(eq=False)
class TaskRecord:
    """A task as the controller sees it."""

    spec: TaskSpec
    handle: Handle | None = None
    incarnation: int = -1
    address: str = ""
    ready: bool = False
    """Whether it accepts requests."""
    heard: float = 0.0
    """The time of its last message, by the monotonic clock."""
    peak_mb: float = 0.0
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    """Its counters, by incarnation."""
    coflows: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The figures of its coflows, by incarnation and kind."""
    flows: dict[str, list[int]] = field(default_factory=dict)
    """Bytes sent and received by the flows it had begun, reported when it left."""
    spans: list[list[int]] = field(default_factory=list)
    """The spans of its stages in some batches, reported when it left."""
    observed: dict[str, Any] = field(default_factory=dict)
    """The measured costs of its iterations, if they were measured."""
    lost_at: float | None = None

    @property
    def is_running(self) -> bool:
        return self.handle is not None and self.handle.poll() is None

    @property
    def restarts(self) -> int:
        """How often it was restarted."""
        return max(0, self.incarnation)

    def facts(self) -> dict[str, Any]:
        """The task as the run's result reports it."""
        spec, waited = self.spec, [counts[WAITED] for counts in self.counts.values() if WAITED in counts]
        return {
            "id": spec.id,
            "kind": spec.kind,
            "machine": spec.machine,
            "restarts": self.restarts,
            "peak_rss_mb": self.peak_mb,
            "coflows": coflow_figures(self.coflows.values()),
            **({"exposed_communication_s": round(sum(waited) / 1e6, 3)} if waited else {}),
            **self._cache_facts(),
            **self._path_facts(),
        }

    def _path_facts(self) -> dict[str, Any]:
        """The features that came along each path; empty where there are no replicas."""
        told = [item for counts in self.counts.values() for item in counts.items() if item[0].startswith(FEATURE_PATH)]
        found: dict[str, dict[str, Any]] = {}
        for name, amount in told:
            path, _, what = name.removeprefix(FEATURE_PATH).partition(" ")
            sums = found.setdefault(path, {"rows": 0, "bytes": 0, "seconds": 0.0})
            if what == "us":
                sums["seconds"] = round(sums["seconds"] + amount / 1e6, 6)
            elif what in sums:
                sums[what] += amount
        return {"feature_paths": found} if found else {}

    def _cache_facts(self) -> dict[str, Any]:
        """What its cache of remote rows saved; empty for a task without one."""
        told = [counts for counts in self.counts.values() if CACHED["hits"] in counts]
        found = {name: sum(counts.get(count, 0) for counts in told) for name, count in CACHED.items()}
        return {"remote_cache": found} if told else {}


@dataclass
class RunOutcome:
    """How a run ended, and the figures of its tasks."""

    state: str
    result: dict[str, Any]
    facts: dict[str, Any]
    tasks: list[dict[str, Any]]
    recoveries: list[dict[str, Any]]
    bytes_received: int
    bytes_minimum: int
    flows: dict[str, list[int]]
    """Bytes that callers sent and received, by flow."""
    coflows: list[dict[str, Any]]
    """By kind: how many, their bytes, and seconds from first request to last answer."""
    spans: dict[int, list[list[int]]]
    """By rank, the spans of stages in some batches, for all workers but the first."""


class MachineAway(PenstockError):  # noqa: N818
    """A machine's tasks cannot be restarted. What the others had done is in a checkpoint, if they could write it."""

    def __init__(self, machine: str, sentence: str) -> None:
        super().__init__(sentence, code="peer-lost")
        self.machine = machine


class Controller:
    """Carries out a layout. `template` is the part of a setup that all tasks share."""

    def __init__(self, template: Setup, launcher: Launcher, progress: Progress) -> None:
        self._template, self._launcher, self._progress = template, launcher, progress
        self._layout: Layout = template.layout
        self._failure = template.cluster.failure
        self.tasks = {spec.id: TaskRecord(spec) for spec in self._layout.tasks}
        self.recoveries: list[dict[str, Any]] = []
        self._heard: queue.SimpleQueue[tuple[str, Message]] = queue.SimpleQueue()
        self._credentials = make_credentials([CONTROLLER, *self.tasks])
        self._meeting = Rendezvous(self._layout.world)
        self.facts: dict[str, Any] = {}
        self._decided: dict[str, Decisions] = {}
        self._result: dict[str, Any] | None = None
        self._asked = False
        self._look = max(_LOOK, len(self.tasks) * _LOOK_SHARE)
        self._newcomers: list[TaskRecord] = []
        self._came = self._began = time.monotonic()

    def run(
        self,
        stop: Callable[[], bool],
        started: Callable[[dict[str, Any]], None],
        decided: Callable[[list[Decisions]], None] = lambda found: None,
    ) -> RunOutcome:
        """Start all tasks and watch them until the run ends. `started` is called with the first worker's facts of the
        run, and `decided` with what every worker has decided, by rank, once all have.
        """
        self._started, self._all_decided = started, decided
        own: Credentials = self._credentials[CONTROLLER]
        with Endpoint(own, self._interface(), self._template.cluster.wire, handler_threads=4) as endpoint:
            self._endpoint = endpoint
            self._serve()
            try:
                for task in self.tasks.values():
                    self._start(task)
                # The run is complete once it has a result: a task that is lost after that does no harm.
                while self._result is None:
                    self._look_after_tasks()
                    if stop() and not self._asked:
                        self._asked = True
                        self._tell_all(ask_to_stop=True)
                    time.sleep(self._look)
                    self._hear_all()
                self._dismiss()
            finally:
                self._end_all()
        assert self._result is not None
        return RunOutcome(
            self._result.pop("state"),
            self._result,
            self.facts,
            [task.facts() for task in self.tasks.values()],
            self.recoveries,
            self._counted("received"),
            self._counted("minimum"),
            {name: sizes for task in self.tasks.values() for name, sizes in task.flows.items()},
            coflow_figures(told for task in self.tasks.values() for told in task.coflows.values()),
            {task.spec.rank: task.spans for task in self.tasks.values() if task.spans},
        )

    def _counted(self, what: str) -> int:
        return sum(counts.get(what, 0) for task in self.tasks.values() for counts in task.counts.values())

    def _interface(self) -> str:
        """The interface that the launcher names, or else the one on which the first machine's tasks listen."""
        return self._launcher.interface or self._template.cluster.machines[0].address

    def _serve(self) -> None:
        """Register handlers. Simple requests are answered by the wire's threads; the rest is queued for the
        controller's own.
        """
        for kind, handler in self._meeting.handlers().items():
            self._endpoint.serve(kind, handler)
        self._endpoint.serve("here", self._here)
        self._endpoint.serve("beat", self._beat)
        self._endpoint.serve("observed", self._observed)
        for kind in _QUEUED:
            self._endpoint.serve(kind, self._queue)

    def _queue(self, message: Message, sender: str) -> Message:
        form = _QUEUED[message.kind]
        if form is not None:
            # Validated now, since a queued message has no sender to report an error to.
            checked(message, form)
        self._heard.put((sender, message))
        return Message("heard")

    def _here(self, message: Message, sender: str) -> Message:
        task, told = self.tasks[sender], checked(message, Registered)
        if told.incarnation == task.incarnation:
            task.address, task.heard, task.ready = told.address, time.monotonic(), told.ready
            self._heard.put((sender, message))
        return Message("roster", self._addresses())

    def _addresses(self) -> dict[str, str]:
        return {name: task.address for name, task in self.tasks.items() if task.ready}

    def _beat(self, message: Message, sender: str) -> Message:
        task, told = self.tasks[sender], checked(message, Heartbeat)
        if told.incarnation == task.incarnation:
            # These are read when the run is over, so invalid ones are refused now, while the sender can be told.
            coflows = read_tallies(told.coflows, sender)
            task.heard = time.monotonic()
            task.peak_mb = max(task.peak_mb, told.peak_mb)
            task.counts[task.incarnation] = told.counts
            task.coflows[task.incarnation] = coflows
            task.flows = task.flows if told.flows is None else told.flows
            task.spans = task.spans if told.spans is None else told.spans
        return Message("heard")

    def _observed(self, message: Message, sender: str) -> Message:
        self.tasks[sender].observed = message.body
        return Message("heard")

    def _hear_all(self) -> None:
        while not self._heard.empty():
            sender, message = self._heard.get()
            body = message.body
            if message.kind == "here":
                self._welcome(self.tasks[sender])
            elif message.kind == "progress":
                _forward(self._progress, body)
            elif message.kind == "facts" and not self.facts:
                self.facts = body
                self._started(body)
            elif message.kind == "decided":
                self._keep_decisions(sender, Decisions(**body))
            elif message.kind == "result":
                self._result = body
            elif message.kind == "failed":
                raise PenstockError(str(body.get("message", "A task failed.")), code=known_code(body.get("code")))
        self._introduce()

    def _keep_decisions(self, sender: str, found: Decisions) -> None:
        """Keep what a worker has decided; one that was restarted decides the same again."""
        if sender in self._decided:
            return
        self._decided[sender] = found
        workers = [spec.id for spec in self._layout.of_kind("worker")]
        if self._decided.keys() >= set(workers):
            self._all_decided([self._decided[name] for name in workers])

    def _welcome(self, task: TaskRecord) -> None:
        """Register a started task, whose address the others learn."""
        if not task.ready:
            return
        if task.lost_at is not None:
            away = time.monotonic() - task.lost_at
            self.recoveries[-1 - self._later(task)]["seconds"] = round(away, 3)
            task.lost_at = None
        self._newcomers.append(task)
        self._came = time.monotonic()

    def _introduce(self) -> None:
        """Send the addresses of newcomers to all tasks.

        Each message costs the controller the same, so a message to all for each newcomer would cost it the square of
        their number: in a large run newcomers wait until they are half as many as those that the others know, or all,
        or until no further one comes. A task that was lost and is back is not kept waiting.
        """
        new = self._newcomers
        if not new:
            return
        there = sum(task.ready for task in self.tasks.values())
        enough = there <= _FEW or 3 * len(new) >= there or there == len(self.tasks)
        if enough or any(task.restarts for task in new) or time.monotonic() - self._came > _QUIET:
            self._newcomers = []
            self._tell_all(addresses={task.spec.id: task.address for task in new}, ask_to_stop=self._asked)

    def _later(self, task: TaskRecord) -> int:
        """The number of recoveries that began after this task's last."""
        names = [each["task"] for each in reversed(self.recoveries)]
        return names.index(task.spec.id)

    def _start(self, task: TaskRecord) -> None:
        task.incarnation += 1
        task.address, task.ready, task.heard = "", False, time.monotonic()
        setup = self._template.for_task(
            task=task.spec,
            incarnation=task.incarnation,
            credentials=self._credentials[task.spec.id].to_json(),
            controller=self._endpoint.address,
            addresses=self._addresses(),
        )
        task.handle = self._launcher.start(setup)

    def _look_after_tasks(self) -> None:
        for task in self.tasks.values():
            if task.handle is None:
                continue
            status = task.handle.poll()
            # Before its first message a task imports and opens what it needs, which on a busy machine may take minutes.
            limit = self._failure.patience if task.address else self._failure.start_patience
            if status is None and time.monotonic() - task.heard > limit:
                task.handle.kill()
                silent = f"silent for {limit:g} s{_why(task.handle)}"
                if not task.address:
                    what = f"Task {task.spec.id} on {task.spec.machine} was started and stayed {silent}"
                    self._give_up(task, f"{what} (failure.start_patience in the cluster file)")
                self._lose(task, silent)
            elif status is not None:
                # Handle its last messages before its end.
                if not self._heard.empty():
                    return
                how = f"signal {-status}" if status < 0 else f"exit status {status}"
                self._lose(task, how + _why(task.handle))

    def _lose(self, task: TaskRecord, cause: str) -> None:
        spec = task.spec
        if task.restarts >= self._failure.restarts:
            self._give_up(task, f"Task {spec.id} on {spec.machine} died {task.restarts + 1} times (last: {cause})")
        at = round(time.monotonic() - self._began, 3)
        self.recoveries.append({"task": spec.id, "cause": cause, "at": at, "seconds": None})
        self._progress.note(f"{spec.id} was lost ({cause}) and is started again.")
        task.lost_at = time.monotonic()
        # The fields that were made at a store are lost with it: the workers recompute what depends on them.
        over = self._meeting.rounds.lose(spec.rank if spec.kind == "worker" else None)
        self._start(task)
        self._tell_all(over=over)

    def _give_up(self, task: TaskRecord, what: str) -> NoReturn:
        """Have the workers of other machines write a checkpoint, and end the run."""
        machine = task.spec.machine
        rest = {
            each.spec.rank
            for each in self.tasks.values()
            if each.spec.kind == "worker" and each.spec.machine != machine and each.ready
        }
        if 0 in rest and self.facts:
            self._tell_all(over=self._meeting.rounds.close(rest))
            end = time.monotonic() + self._failure.patience
            while self._result is None and time.monotonic() < end and self.tasks["worker-0"].is_running:
                self._hear_all()
                time.sleep(self._look)
        kept = "at a checkpoint of this moment" if self._result is not None else "; the last checkpoint is kept"
        raise MachineAway(
            machine,
            f"{what}: the run stopped {kept}. The log is {self._template.run}/logs/{task.spec.id}.log; resume with"
            f" `penstock train --resume {self._template.run}`.".replace(" ;", ";"),
        )

    def _tell_all(self, **body: Any) -> None:
        """Send a message to all tasks that are running, without waiting for the others."""
        for task in self.tasks.values():
            if task.address:
                channel = self._endpoint.channel(task.spec.id, "orders")
                self._endpoint.meet(task.spec.id, task.address)
                channel.start(Message("tell", body), self._failure.patience)

    def _dismiss(self) -> None:
        self._tell_all(stop=True)
        end = time.monotonic() + _LEAVING
        running = list(self.tasks.values())
        while running and time.monotonic() < end:
            running = [task for task in running if task.is_running]
            time.sleep(self._look)

    def _end_all(self) -> None:
        for task in self.tasks.values():
            if task.handle is not None and task.is_running:
                task.handle.kill()
        self._launcher.close()


def _why(handle: Handle) -> str:
    return f" ({handle.trouble})" if handle.trouble else ""


def _forward(progress: Progress, body: dict[str, Any]) -> None:
    """Show a worker's progress to the user who started the run."""
    what, text, amount = body.get("what"), str(body.get("text", "")), int(body.get("amount", 0))
    if what == "start":
        progress.start(text, amount, str(body.get("unit", "")))
    elif what == "advance":
        progress.advance(amount)
    elif what == "finish":
        progress.finish()
    elif what == "status":
        progress.status(text)
    elif what == "note":
        progress.note(text)
