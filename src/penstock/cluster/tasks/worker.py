"""The worker: trains its share of every batch with the others, and regroups with them when one is lost."""

import copy
import io
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cluster.gpus import claim_gpu
from penstock.cluster.layout import Setup
from penstock.cluster.member import Member, raised_by
from penstock.cluster.reports import CACHED, FEATURE_PATH, WAITED
from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.inputs import PartedInputs
from penstock.cluster.worker.observer import Observer
from penstock.cluster.worker.session import make_parted_session
from penstock.cluster.worker.worker_group import AllReduce, ParameterServers, progress_of
from penstock.errors import PenstockError
from penstock.graph.files import open_lines
from penstock.memory import HOST_PEAK
from penstock.pipeline.stages import StageError
from penstock.progress import SILENT, Progress
from penstock.store.parts import PushMissing, StepPast
from penstock.train.job import Job, stored_job
from penstock.train.loop import Loop
from penstock.train.run import begin_with, decisions_of, finish, result_of, take_state
from penstock.train.run_context import STEPS, DeviceFull, device_memory, is_host_full, run_context
from penstock.train.run_files.checkpoints import (
    START,
    TrainState,
    pack_state,
    read_best,
    read_state,
    take_newest,
    unpack_state,
)
from penstock.train.run_files.records import Events, FolderRecords, KeptEvents, Records, is_traced
from penstock.train.run_files.run_folder import METRICS, RunFolder
from penstock.train.session import Session, run_facts
from penstock.train.steps.group import RegroupError
from penstock.wire.channel import PeerLost
from penstock.wire.message import Message

# Progress of a worker, shown by the controller.

_OFTEN = 0.2
"""Seconds between two progress messages."""


class ForwardedProgress(Progress):
    """Forwards progress to the controller in order, with many small advances in one message.

    Training does not wait for the controller, which may be behind a slow link; only the end of a piece of work and
    notes return when everything before them has been received.
    """

    def __init__(self, member: Member) -> None:
        super().__init__()
        self._member, self._changed = member, threading.Condition()
        self._untold: deque[dict[str, object]] = deque()
        self._telling = False
        self._advanced, self._told = 0, 0.0

    def start(self, what: str, total: int, unit: str) -> None:
        self._tell(what="start", text=what, amount=total, unit=unit)

    def advance(self, amount: int) -> None:
        with self._changed:
            self._advanced += amount
            if self._untold or time.monotonic() - self._told < _OFTEN:
                return
            amount, self._advanced, self._told = self._advanced, 0, time.monotonic()
        self._tell(what="advance", amount=amount)

    def finish(self) -> None:
        with self._changed:
            amount, self._advanced = self._advanced, 0
        if amount:
            self._tell(what="advance", amount=amount)
        self._tell(what="finish")
        self._wait()

    def status(self, line: str) -> None:
        self._tell(what="status", text=line)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)
        self._tell(what="note", text=sentence)
        self._wait()

    def _tell(self, **body: object) -> None:
        with self._changed:
            self._untold.append(body)
            if not self._telling:
                self._telling = True
                threading.Thread(target=self._tell_all, name="progress", daemon=True).start()

    def _tell_all(self) -> None:
        """Send one message after the other: the controller's threads would change the order of several."""
        while True:
            with self._changed:
                if not self._untold:
                    self._telling = False
                    self._changed.notify_all()
                    return
                body = self._untold.popleft()
            # Failing to show progress must not fail the run.
            with suppress(PenstockError):
                self._member.ask("progress", **body)

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._telling)


# What a worker without records keeps of the last step, in case the worker that writes them is lost.


class LastRecords(Records):
    """Keeps the records of the last step. The first worker writes a step's records before it takes part in the next
    one, so no more are needed.
    """

    def __init__(self, traced: int = 0) -> None:
        """Keep spans of so many batches, as far as there is room."""
        self.metrics: list[dict[str, Any]] = []
        self._traced, self._events = traced, KeptEvents(traced, 0.0)

    def events(self, batches: int, began: float) -> Events:
        """A recorder of the first batches of this round; a new round starts anew."""
        self._events = KeptEvents(self._traced, began)
        return self._events

    def spans(self) -> list[list[int]]:
        """The spans that were kept; see `KeptEvents.spans`."""
        return self._events.spans

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Keep the record, replacing those of earlier steps."""
        self.metrics = [*(each for each in self.metrics if each["step"] == record["step"]), record]


def mend_metrics(records: Records, folder: RunFolder, train_state: TrainState, last: list[dict[str, Any]]) -> None:
    """Make the folder's records match a train state: drop those of steps that will be repeated, add those that another
    worker kept.
    """
    folder.forget_metrics_after(train_state.step)
    path = folder.path / METRICS
    lines = list[str]()
    if path.exists():
        with open_lines(path) as file:
            lines = file.read().splitlines()
    known = [(record.get("kind"), record.get("step")) for record in map(json.loads, lines)]
    if train_state.ending:
        # The lost worker may have ended the epoch that the others have not.
        ended = "epoch", train_state.step
        folder.replace_metrics(line for line, name in zip(lines, known, strict=True) if name != ended)
    for record in last:
        if (record["kind"], record["step"]) not in known:
            records.append_metrics(record)


def stands_at_best(train_state: TrainState) -> bool:
    """Whether no step was done since the best model: the lost worker may not have written it yet."""
    return train_state.best_epoch == train_state.epoch and train_state.batch == 0 and not train_state.ending


# A worker's whole state, sent to another worker that lost its own.

_PIECE = 16 << 20


def serve_state(member: Member, kind: str, state: Callable[[], dict[str, Any]]) -> None:
    """Serve requests of a kind with the current result of `state`."""

    def answer(message: Message, sender: str) -> Iterator[Message]:
        file = io.BytesIO()
        pack_state(file, state())
        whole = np.frombuffer(file.getbuffer(), np.uint8)
        for start in range(0, len(whole), _PIECE):
            yield Message("piece", arrays=(whole[start : start + _PIECE],))

    member.endpoint.serve(kind, answer)


def state_of(member: Member, rank: int, kind: str = "state") -> dict[str, Any]:
    """A state of another worker."""
    channel = member.endpoint.channel(f"worker-{rank}", "state")
    pending = channel.start(Message(kind), member.setup.cluster.failure.patience)
    pieces = [np.array(part.arrays[0]) for part in pending.parts()]
    file = io.BytesIO(np.concatenate(pieces).tobytes())
    return unpack_state(file, file.getbuffer().nbytes, f"The state of worker-{rank}")


def name_of(rank: int) -> Path:
    """How errors name a state that came from another worker."""
    return Path(f"worker-{rank}")


WARMING = 3
"""Iterations before those that are measured: kernels are compiled, buffers allocated."""
_LAST = "last_records"
_HOST_FULL = "The machine ran out of memory: lower batch_size, fanouts or its workers, or use one with more memory."
_PASSING = (RegroupError.__name__, PeerLost.__name__, PushMissing.__name__, StepPast.__name__)
"""Errors that a lost task, or workers that have left a round, may cause: the step may succeed when repeated."""
_TRIES = 2
"""The time during which a failing step is repeated while a task is silent, as a multiple of the
controller's patience.
"""
_REST = 0.2
"""Seconds before a failed step is repeated."""
_LOOK = 0.02
"""Seconds between two checks whether the run is over."""


def run_worker(setup: Setup) -> int:
    """Train until the run is over."""
    with Member(setup) as member:
        job = _with_samplers(stored_job(setup.job, "The run's job"), setup.cluster.samplers)
        try:
            if job.device == "cuda":
                claim_gpu(setup)
            with run_context(job):
                Worker(member, job).run()
            return 0
        except BaseException as error:
            cause = error.__cause__ if isinstance(error, StageError) and error.__cause__ else error
            logging.error("The worker failed.", exc_info=error)
            if isinstance(cause, DeviceFull) or is_host_full(cause):
                # It would happen again, so the run ends with an error that names the machine.
                said = str(cause) if isinstance(cause, DeviceFull) else _HOST_FULL
                cause = PenstockError(f"{setup.task.id} on {setup.task.machine}: {said}", code="out-of-memory")
            if isinstance(cause, PenstockError):
                member.refuse(cause)
            raise cause from error
        finally:
            member.leave()


def _with_samplers(job: Job, samplers: int) -> Job:
    """The job with as many batches requested at once as there are samplers."""
    threads = max(job.drawing_threads, samplers)
    return job.model_copy(update={"sample_threads": threads, "sample_depth": max(job.sample_depth, samplers + 1)})


class Worker:
    """One of the run's workers. The first writes the run folder."""

    def __init__(self, member: Member, job: Any) -> None:
        self._member, self._setup = member, member.setup
        self._parts = Parts(member)
        member.announce()
        member.await_tasks("store", "server", "sampler")
        self._session, self._group = make_parted_session(self._parts, job)
        if self._setup.decided:
            self._session.execution.follow(self._setup.decided[self._group.rank])
        member.counts = self._counts
        self._first = self._group.rank == 0
        self._train_state, self._from_file = TrainState(), True
        self._begun = self._group.rank == 0 or job.from_run is None
        """Whether this worker has the weights of its train state: the first one gives others those of `from_run`."""
        self._stuck: tuple[tuple[int, int], float] | None = None
        """(step, round) at which a step first failed without a known loss, and the time."""
        self._saved: tuple[int, bool] | None = None
        """The step, and whether it was the last, of the newest checkpoint."""
        self._folder = RunFolder(Path(self._setup.run))
        self._remembered = LastRecords(job.trace_batches if is_traced(self._group.rank, self._group.world) else 0)
        member.spans = self._spans
        self._records: Records = FolderRecords(self._folder, job) if self._first else self._remembered
        self._observer = Observer(WARMING, self._inputs.device) if self._setup.measured else None
        self._session.folder = self._folder.path
        self._progress = ForwardedProgress(member) if self._first else SILENT
        serve_state(member, "state", self._state)
        if self._first:
            serve_state(member, "best", lambda: {**read_best(self._folder.checkpoints), "tables": {}})
            self._go_on_from_file()
            member.ask("facts", **run_facts(self._session))
        self._session.peak = HOST_PEAK.measure()

    def run(self) -> None:
        """Train in rounds, until one ends with the run."""
        while True:
            try:
                if self._catch_up():
                    self._leave_checkpoint()
                else:
                    self._train()
                self._wait_for_the_end()
                return
            except (RegroupError, StageError, PenstockError) as error:
                cause = error.__cause__ if isinstance(error, StageError) else error
                if not (self._round_is_over(cause) or self._may_come_back(cause)):
                    if isinstance(cause, RegroupError):
                        raise PenstockError(
                            f"The workers tried step {self._train_state.step} again for {self._longest:g} s without"
                            f" success ({cause}): look at the tasks' logs.",
                            code="peer-lost",
                        ) from error
                    raise
                logging.info("Another task was lost (%s): regrouping.", cause)
            finally:
                if self._group.reduction is not None:
                    self._group.reduction.close()

    def _round_is_over(self, cause: BaseException | None) -> bool:
        """Whether an error may be due to a lost task: the step is repeated in the next round."""
        over = 0 < self._group.generation <= self._member.round and not self._member.stopped.is_set()
        return over and isinstance(cause, PenstockError | RegroupError)

    def _may_come_back(self, cause: BaseException | None) -> bool:
        """Whether an error may be due to a task whose loss the controller has not noticed yet: the step is repeated
        then.

        The step is repeated for a limited time, which begins anew when the controller notices the loss or a step
        succeeds.
        """
        if not raised_by(cause, *_PASSING) or self._member.stopped.is_set():
            return False
        here = progress_of(self._train_state), self._member.round
        if self._stuck is None or self._stuck[0] != here:
            self._stuck = here, time.monotonic()
        else:
            self._member.stopped.wait(_REST)
        return time.monotonic() - self._stuck[1] < self._longest

    @property
    def _longest(self) -> float:
        """Seconds during which a step is repeated without news from the controller.

        A task that the controller has restarted needs time to start before it can answer.
        """
        failure = self._setup.cluster.failure
        return _TRIES * failure.patience + (failure.start_patience if self._member.round else 0.0)

    def _counts(self) -> dict[str, int]:
        features, embeddings = self._parts.store.traffic().values(), self._inputs.traffic()
        rows = self._group.rows
        received = embeddings[0] + rows.received + sum(each.bytes for each in features)
        received += 0 if self._group.explained is None else self._group.explained.pulled
        minimum = embeddings[1] + rows.minimum + sum(each.minimum for each in features)
        counts = {"received": received, "minimum": minimum}
        cached = self._parts.store.cache_use()
        if cached is not None:
            counts |= {count: getattr(cached, name) for name, count in CACHED.items()}
        if self._parts.store.replicas is not None:
            for path, use in self._parts.store.replicas.use().items():
                amounts = {"rows": use.rows, "bytes": use.bytes, "us": round(use.seconds * 1e6)}
                counts |= {f"{FEATURE_PATH}{path} {what}": amount for what, amount in amounts.items()}
        return counts | ({WAITED: round(1e6 * rows.waited_s)} if rows.received else {})

    def _spans(self) -> list[list[int]]:
        return [] if self._first else self._remembered.spans()

    @property
    def _inputs(self) -> PartedInputs:
        assert isinstance(self._session.inputs, PartedInputs)
        return self._session.inputs

    def _state(self) -> dict[str, Any]:
        """The state for a worker that is behind."""
        return {**self._session.state(self._train_state, tables=False), _LAST: self._remembered.metrics}

    def _go_on_from_file(self) -> None:
        """Load the newest checkpoint, if there is one; a surviving worker that is further ahead takes precedence."""
        if any(self._folder.checkpoints.glob("step-*.ckpt")):
            take = partial(take_state, self._session)
            self._train_state = take_newest(self._folder.checkpoints, self._progress, take).train_state
            self._saved = self._train_state.step, self._train_state.done
        elif self._session.job.from_run is not None:
            begin_with(self._session, read_state(self._folder.checkpoints / START))

    def _catch_up(self) -> bool:
        """Join the next round; a worker that is behind loads the state of the furthest. Returns whether it was the last
        round.
        """
        own = progress_of(self._train_state) if self._begun else 0
        formed = self._group.meet(own)
        last: list[dict[str, Any]] = []
        if own < formed.step:
            state = state_of(self._member, formed.source)
            self._train_state, last = take_state(self._session, state, name_of(formed.source)), state[_LAST]
            # If the first worker is lost before it has written them, this one may be asked for them next.
            self._remembered.metrics = list(last)
            self._from_file, self._begun = False, True
        self._inputs.step = self._train_state.step
        if formed.source == 0 and self._from_file:
            self._inputs.settle()
        else:
            self._inputs.stay()
            self._inputs.begin_round(formed.generation)
        if self._first:
            mend_metrics(self._records, self._folder, self._train_state, last)
            if stands_at_best(self._train_state):
                self._records.save_best(self._train_state.best_epoch, self._session.weights())
        if formed.last:
            return True
        if self._setup.cluster.reduce == "all-reduce":
            self._group.reduction = AllReduce(self._member, self._session, formed.generation, self._group.collective)
        else:
            # Servers have the last step, unless all workers have returned to a checkpoint or begin.
            again = formed.source == 0 and self._from_file
            step = self._train_state.step
            way = self._member, self._session, formed.generation, step, again, self._group.collective
            self._group.reduction = ParameterServers(*way)
        # Wait: gradients need the servers' weights, and a warm-up changes weights that others may still be reading.
        self._group.barrier("begun")
        self._from_file = False
        return False

    def _leave_checkpoint(self) -> None:
        """A machine stays away: write a checkpoint of what was done until then."""
        loop = Loop(self._session, self._folder, self._train_state, self._progress, self._records)
        if self._group.reduction is not None:
            loop.save()
        self._tell_result("interrupted", result_of(loop, {}))

    def _train(self) -> None:
        session, train_state = self._session, self._train_state
        if self._observer is not None:
            self._observe(self._observer)
            return
        loop = Loop(session, self._folder, train_state, self._progress, self._records)
        if not train_state.done:
            with device_memory(lambda: "when the steps were prepared", STEPS):
                self._member.ask("decided", **decisions_of(session, loop.schedule)._asdict())
        times = loop.run(self._group.stopping)
        if self._saved != (train_state.step, train_state.done):
            loop.save()
            self._saved = train_state.step, train_state.done
        if not train_state.done:
            self._end_callbacks("interrupted", result_of(loop, times))
            return
        with _last_weights_kept(session):
            result = finish(loop, times, self._best, self._progress)
        early = train_state.epoch < session.job.epochs
        self._end_callbacks("stopped-early" if early else "finished", result)

    def _end_callbacks(self, state: str, result: dict[str, Any]) -> None:
        """Report how the run has ended: first to the controller, then to callbacks."""
        self._tell_result(state, result)
        if self._first:
            self._session.callbacks.end(result)

    def _observe(self, observer: Observer) -> None:
        """Train for as many iterations as are measured, and report what they cost."""
        assert self._group.reduction is not None
        self._group.reduction = observer.timed(self._group.reduction)
        # The loop does not learn how long the last step took.
        enough = WARMING + self._setup.measured + 1
        loop = Loop(self._session, self._folder, self._train_state, self._progress, observer)
        served: dict[int, dict[str, float]] = {}

        def stop() -> bool:
            if self._first and self._train_state.step in (WARMING, enough):
                served[self._train_state.step] = self._served()
            return self._group.stopping() or self._train_state.step >= enough

        loop.run(stop)
        whole = self._train_state.step >= enough and (not self._first or len(served) == 2)
        spent = (
            {name: after - served[WARMING][name] for name, after in served[enough].items()} if len(served) == 2 else {}
        )
        weights = sum(each.numel() * each.element_size() for each in self._session.learned.parameters())
        found = observer.found(self._inputs.shared_bytes)
        self._member.ask("observed", **found, served=spent, weights=weights)
        self._group.barrier("observed")
        self._tell_result("measured" if whole else "interrupted", {})

    def _served(self) -> dict[str, float]:
        """CPU seconds that stores and servers have spent on answers."""
        asked = [task.id for task in self._setup.layout.tasks if task.kind in ("store", "server")]
        channels = {name: self._member.endpoint.channel(name, "measuring") for name in asked}
        return {name: channel.call(Message("served")).body["seconds"] for name, channel in channels.items()}

    def _wait_for_the_end(self) -> None:
        """Wait until the first worker's result is known: if it is lost before, the others must join it again."""
        while not self._first and not self._member.stopped.wait(_LOOK):
            if self._member.round >= self._group.generation:
                raise RegroupError("at the end of the run")

    def _best(self) -> dict[str, Any] | None:
        """The best model's weights: the first worker reads them from its folder, the others ask it."""
        if self._train_state.best_epoch < 0:
            return None
        # The first worker has written its last checkpoint when it gets here.
        self._group.barrier("best")
        if self._first:
            return read_best(self._folder.checkpoints, self._progress)
        return state_of(self._member, 0, "best")

    def _tell_result(self, state: str, result: dict[str, Any]) -> None:
        if self._first:
            self._member.ask("result", state=state, **result)


@contextmanager
def _last_weights_kept(session: Session) -> Iterator[None]:
    """Restore the weights of the last step afterwards: if a worker is lost, the end of the run is repeated."""
    weights = copy.deepcopy(session.learned.state_dict())
    try:
        yield
    finally:
        session.learned.load_state_dict(weights)
