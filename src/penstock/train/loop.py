"""The loop: batches in, steps done, epochs ended, checkpoints kept."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.errors import PenstockError
from penstock.memory import resident_mb
from penstock.pipeline.clock import StageTime, limiting
from penstock.pipeline.schedule import Position, Schedule
from penstock.progress import Progress
from penstock.train.device_full import STEPS, DeviceFull, device_memory
from penstock.train.optimisers import step_schedule
from penstock.train.records import Events, FolderRecords, Records
from penstock.train.run_folder import RunFolder
from penstock.train.run_length import epochs_note
from penstock.train.session import Session
from penstock.train.standing import Standing
from penstock.train.steps import Step, Steps, steps_of

_SOON = 2.0
"""Seconds before its end in which an epoch is not told about any more: its own line follows, and stands alone."""


class Loop:
    """Trains a session from where it stands until its epochs are over, patience ends, or someone asks to stop."""

    def __init__(
        self,
        session: Session,
        folder: RunFolder,
        standing: Standing,
        progress: Progress,
        records: Records | None = None,
    ) -> None:
        self.session, self.folder, self.standing, self._progress = session, folder, standing, progress
        job, task = session.job, session.task
        self.schedule = Schedule(task.items, task.batch_size, job.seed, job.epochs)
        self.records: Records = FolderRecords(folder, job) if records is None else records
        self._began = time.perf_counter() - standing.elapsed
        self._last_val: dict[str, float] = {}
        self._stages: dict[str, StageTime] = {}
        self._record_every = max(1, self.schedule.batches // 10)

    def run(self, stop: Callable[[], bool]) -> dict[str, StageTime]:
        """Train; returns the stages' times. `stop` is asked whenever the weights are those of a whole step."""
        job, standing = self.session.job, self.standing
        if standing.done:
            return {}
        if standing.step == 0:
            self.save()
            if "epochs" in self.session.decided and (note := epochs_note(job.epochs, self.schedule.batches)):
                self._progress.note(note)
        events = self.records.events(self.schedule.batches, self._began)
        start = Position(standing.epoch, standing.batch)
        total = job.epochs * self.schedule.batches
        with self._progress.step("training", total - standing.step, "batches"), device_memory(self._where, STEPS):
            try:
                with steps_of(self.session, self.schedule, start, self._pause, events.record) as steps:
                    if standing.ending:
                        with steps.aside():
                            self._end_epoch(steps, events)
                            self._after_step()
                        if self._stopped_early():
                            return steps.times()
                    mark = time.perf_counter()
                    for done in steps:
                        for step in done:
                            self._count(step)
                        standing.epoch_elapsed += time.perf_counter() - mark
                        with steps.aside():
                            if done[-1].last:
                                self._end_epoch(steps, events)
                            else:
                                self._tell_midway()
                            self._after_step()
                        mark = time.perf_counter()
                        if stop() or self._stopped_early():
                            break
                    return steps.times()
            finally:
                # A full disk is one way to come here: it must not hide what happened.
                with suppress(PenstockError):
                    events.close()

    def _where(self) -> str:
        standing = self.standing
        return f"at epoch {standing.epoch + 1}, batch {standing.batch + 1} (step {standing.step + 1})"

    def _pause(self, position: Position) -> int:
        """Steps that may be done from a position on before the loop must see the weights."""
        step = position.epoch * self.schedule.batches + position.batch
        ends = [self._record_every - step % self._record_every, self.schedule.batches - position.batch]
        if self.session.job.checkpoint_steps:
            ends.append(self.session.job.checkpoint_steps - step % self.session.job.checkpoint_steps)
        return min(ends)

    def _stopped_early(self) -> bool:
        """The last epoch ends by itself, so that its last batch is in the stages' times too."""
        return self.standing.done and self.standing.epoch < self.session.job.epochs

    def _count(self, done: Step) -> None:
        standing, (epoch, batch) = self.standing, done.position
        standing.step += 1
        if not math.isfinite(done.loss):
            where = f"at epoch {epoch + 1}, batch {batch + 1} (step {standing.step})"
            raise PenstockError(self._diverged(f"The loss is {done.loss} {where}"))
        standing.loss_sum += done.loss * done.examples
        standing.examples += done.examples
        standing.all_examples += done.examples
        standing.epoch, standing.batch = (epoch + 1, 0) if done.last else (epoch, batch + 1)
        standing.ending = done.last
        self._progress.advance(1)
        if standing.step % self._record_every == 0:
            record = {"kind": "step", "epoch": epoch, "step": standing.step, "time": self._now(), "loss": done.loss}
            self.records.append_metrics(record)

    def _after_step(self) -> None:
        self.standing.elapsed = self._now()
        if self.records.due(self.standing.step):
            self.save()

    def _end_epoch(self, steps: Steps, events: Events) -> None:
        """Validate, let the schedule step, remember the best, decide whether to go on."""
        session, standing, job = self.session, self.standing, self.session.job
        finished = standing.epoch
        last = finished == job.epochs
        regular = job.evaluate_every > 0 and finished % job.evaluate_every == 0
        judged = regular or (job.evaluate_every > 0 and last)
        # A validation may be broken off and done again, and so may what keeps its model: until then nothing changes.
        val = self._validate(finished) if judged else {}
        self._keep_best(val, finished)
        seconds = standing.epoch_elapsed
        standing.epoch_seconds.append(round(seconds, 4))
        standing.train_loss = standing.loss_sum / max(standing.examples, 1)
        rate = standing.examples / max(seconds, 1e-9)
        standing.loss_sum, standing.examples, standing.epoch_elapsed = 0.0, 0, 0.0
        if judged:
            self._judge(val, finished, regular)
        # A validation only because the run ends steers nothing: with more epochs it would not have been.
        value = val.get(session.task.metric.name) if regular else None
        step_schedule(session.schedule, value, session.task.metric.better)
        standing.done = last or bool(job.patience and standing.without_gain >= job.patience)
        standing.ending = False
        times = steps.times()
        spent = {name: times[name].since(self._stages[name]) if self._stages else times[name] for name in times}
        self._stages = times
        memory = resident_mb()
        events.memory(memory)
        self._last_val = val or self._last_val
        more = f", {limiting(spent)} limits, {memory:,.0f} MB"
        self._tell(f"epoch {finished}/{job.epochs}", standing.train_loss, rate, more)
        self._write_epoch(finished - 1, seconds, rate, val, spent, memory)

    def _validate(self, epoch: int) -> dict[str, float]:
        session = self.session
        try:
            return session.evaluate(["val"]).get("val", {})
        except PenstockError as error:
            kind = DeviceFull if isinstance(error, DeviceFull) else PenstockError
            raise kind(f"Validation after epoch {epoch} (step {self.standing.step}): {error}") from error

    def _keep_best(self, val: dict[str, float], epoch: int) -> None:
        if self.records.kept and self._is_best(val):
            self.records.save_best(epoch, self.session.weights())

    def _is_best(self, val: dict[str, float]) -> bool:
        best, metric = self.standing.best_value, self.session.task.metric
        return metric.name in val and (best is None or metric.is_better(val[metric.name], best))

    def _judge(self, val: dict[str, float], epoch: int, regular: bool) -> None:
        standing, metric = self.standing, self.session.task.metric
        if self._is_best(val):
            standing.best_value, standing.best_epoch, standing.without_gain = val[metric.name], epoch, 0
        elif regular and metric.name in val:
            standing.without_gain += 1

    def _write_epoch(
        self, epoch: int, seconds: float, rate: float, val: dict[str, float], spent: dict[str, StageTime], rss: float
    ) -> None:
        record: dict[str, Any] = {
            "kind": "epoch",
            "epoch": epoch,
            "step": self.standing.step,
            "time": self._now(),
            "loss": self.standing.train_loss,
            "lr": float(self.session.optimiser.param_groups[0]["lr"]),
            "seconds": round(seconds, 4),
            "seeds_per_second": round(rate, 1),
            "stages": {name: {"busy_s": round(t.busy, 4), "wait_s": round(t.wait, 4)} for name, t in spent.items()},
            "rss_mb": round(rss, 1),
        }
        if val:
            record["val"] = val
        self.records.append_metrics(record)

    def _tell_midway(self) -> None:
        """In the middle of a long epoch, as often as its steps are recorded: the epoch so far."""
        standing, batches = self.standing, self.schedule.batches
        left = standing.epoch_elapsed / standing.batch * (batches - standing.batch)
        if standing.step % self._record_every == 0 and left > _SOON:
            where = f"epoch {standing.epoch + 1}/{self.session.job.epochs}, batch {standing.batch:,}/{batches:,}"
            self._tell(where, standing.loss_sum / max(standing.examples, 1), standing.examples / standing.epoch_elapsed)

    def _tell(self, where: str, loss: float, rate: float, more: str = "") -> None:
        name = self.session.task.metric.name
        metric = f", val {name} {self._last_val[name]:.4f}" if name in self._last_val else ""
        self._progress.status(f"{where}: loss {loss:.4f}{metric}, {rate:,.0f} seeds/s{more}")

    def save(self) -> None:
        """A checkpoint of this moment, between two steps."""
        if not self.records.kept:
            return
        session = self.session
        if not session.is_finite():
            raise PenstockError(self._diverged(f"The weights are no numbers any more after step {self.standing.step}"))
        if session.together is not None:
            session.together.gather_optimiser(session)
        self.records.save(self.standing.step, self.standing.best_epoch, session.state(self.standing))

    def _diverged(self, what: str) -> str:
        """Why training stops: the inputs are looked through first, and only where they are finite lr is to blame."""
        cause = self.session.inputs.non_finite()
        if cause is not None:
            return f"{what}, because {cause}: training stopped. Replace these numbers, and train again."
        return (
            f"{what}: training stopped. The last good checkpoint is kept in {self.folder.checkpoints};"
            " lower lr, or set clip, and train again."
        )

    def _now(self) -> float:
        return round(time.perf_counter() - self._began, 3)
