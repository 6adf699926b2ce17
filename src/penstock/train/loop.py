"""The loop: batches in, steps done, epochs ended, checkpoints kept."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.errors import PenstockError
from penstock.memory import resident_mb
from penstock.pipeline.schedule import Position, Schedule
from penstock.pipeline.stages import StageTime, limit_words
from penstock.progress import Progress
from penstock.train.assembly import epochs_note
from penstock.train.callbacks.calls import EpochResult
from penstock.train.job_options import SHUFFLINGS, past_elbow
from penstock.train.optimisers import step_schedule
from penstock.train.run_context import STEPS, DeviceFull, device_memory
from penstock.train.run_files.checkpoints import TrainState
from penstock.train.run_files.records import Events, FolderRecords, Records
from penstock.train.run_files.run_folder import RunFolder
from penstock.train.session import Session, Step, Steps

_SOON = 2.0
"""Within this many seconds of its end an epoch is no longer reported midway: its own line follows."""


class Loop:
    """Trains a session from its current position until its epochs are done, patience ends it, or `stop` asks for it."""

    def __init__(
        self,
        session: Session,
        folder: RunFolder,
        train_state: TrainState,
        progress: Progress,
        records: Records | None = None,
    ) -> None:
        self.session, self.folder, self.train_state, self._progress = session, folder, train_state, progress
        session.progress = progress
        job, task = session.job, session.task
        self._shuffling = SHUFFLINGS[job.shuffle]
        self.schedule = Schedule(
            task.items, task.batch_size, job.draw_seed, job.epochs, shuffled_from=self.shuffled_from
        )
        self._batches = self.schedule.batches
        self.records: Records = FolderRecords(folder, job) if records is None else records
        self._began = time.perf_counter() - train_state.elapsed
        self._last_val: dict[str, float] = {}
        self._stages: dict[str, StageTime] = {}
        self._ended_stages: dict[str, StageTime] = {}
        self._record_every = max(1, self._batches // 10)

    def run(self, stop: Callable[[], bool]) -> dict[str, StageTime]:
        """Train; returns the stages' times. `stop` is called whenever the weights are those of a complete step."""
        job, train_state = self.session.job, self.train_state
        if train_state.done:
            return {}
        self.session.follow_schedule()
        if train_state.step == 0:
            self.save()
            if "epochs" in self.session.decided and (note := epochs_note(job.epochs, self._batches)):
                self._progress.note(note)
        if self.records.kept:
            self.session.callbacks.start(self.folder.path, job)
        events = self.records.events(self._batches, self._began)
        total = job.epochs * self._batches
        with self._progress.step("training", total - train_state.step, "batches"), device_memory(self._where, STEPS):
            try:
                while self._train(stop, events):
                    # Batches prepared for the next epoch have the old order; they were dropped with the steps.
                    self.schedule.shuffled_from = self.shuffled_from
                return self._ended_stages
            finally:
                # This may fail again, as on a full disk: that must not hide the original error.
                with suppress(PenstockError):
                    events.close()

    def _train(self, stop: Callable[[], bool], events: Events) -> bool:
        """Do the steps of the schedule; returns whether they ended because the next epoch has another order."""
        train_state, execution = self.train_state, self.session.execution
        start = Position(train_state.epoch, train_state.batch)
        with execution.steps(self.schedule, start, self._pause, events.record) as steps:
            try:
                if train_state.ending:
                    with steps.aside():
                        self._end_epoch(steps, events)
                        self._after_step()
                    if train_state.done or self._is_reordered():
                        return not train_state.done
                mark = time.perf_counter()
                for done in steps:
                    spent, began = time.perf_counter() - mark, self._since(mark)
                    for number, step in enumerate(done, 1):
                        self._count(step, began + spent * number / len(done))
                    self._progress.advance(len(done))
                    train_state.epoch_elapsed += time.perf_counter() - mark
                    with steps.aside():
                        if done[-1].last:
                            self._end_epoch(steps, events)
                        else:
                            self._tell_midway(len(done))
                        self._after_step()
                    mark = time.perf_counter()
                    if stop() or self._stopped_early():
                        break
                    if self._is_reordered() and not train_state.done:
                        return True
                return False
            finally:
                self._ended_stages = self._times(steps)

    def _times(self, steps: Steps) -> dict[str, StageTime]:
        """Times of the stages, including steps that ended before."""
        before = self._ended_stages
        return {name: each.plus(before[name]) if name in before else each for name, each in steps.times().items()}

    @property
    def shuffled_from(self) -> int | None:
        """The first epoch, from 0, that is shuffled; None: none, or the validation curve has not flattened yet."""
        return self.train_state.shuffled_from if self._shuffling.first is None else self._shuffling.first

    def _is_reordered(self) -> bool:
        return self.schedule.shuffled_from != self.shuffled_from

    def _where(self) -> str:
        train_state = self.train_state
        return f"at epoch {train_state.epoch + 1}, batch {train_state.batch + 1} (step {train_state.step + 1})"

    def _pause(self, position: Position) -> int:
        """The number of steps that may be done from a position on before the loop needs the weights."""
        step = position.epoch * self._batches + position.batch
        ends = [self._batches - position.batch]
        if self.session.job.checkpoint_steps:
            ends.append(self.session.job.checkpoint_steps - step % self.session.job.checkpoint_steps)
        return min(ends)

    def _stopped_early(self) -> bool:
        """Whether to end before the schedule does. The last epoch ends by itself, so that its last
        batch is timed too.
        """
        return self.train_state.done and self.train_state.epoch < self.session.job.epochs

    def _count(self, done: Step, ended: float) -> None:
        """Count a step that `ended` so many seconds after the run's beginning. The steps of a burst are taken to be
        equally long.
        """
        train_state, (epoch, batch) = self.train_state, done.position
        train_state.step += 1
        if not math.isfinite(done.loss):
            where = f"at epoch {epoch + 1}, batch {batch + 1} (step {train_state.step})"
            raise PenstockError(self._diverged(f"The loss is {done.loss} {where}"), code="diverged")
        train_state.loss_sum += done.loss * done.examples
        train_state.examples += done.examples
        train_state.all_examples += done.examples
        train_state.epoch, train_state.batch = (epoch + 1, 0) if done.last else (epoch, batch + 1)
        train_state.ending = done.last
        if train_state.step % self._record_every == 0:
            at = round(ended, 3)
            record = {"kind": "step", "epoch": epoch, "step": train_state.step, "time": at, "loss": done.loss}
            self.records.append_metrics(record)

    def _after_step(self) -> None:
        self.train_state.elapsed = self._now()
        if self.records.due(self.train_state.step):
            self.save()

    def _end_epoch(self, steps: Steps, events: Events) -> None:
        """End an epoch: validate, step the learning-rate schedule, keep the best model, decide whether to continue."""
        session, train_state, job = self.session, self.train_state, self.session.job
        finished = train_state.epoch
        last = finished == job.epochs
        regular = job.evaluate_every > 0 and finished % job.evaluate_every == 0
        judged = regular or (job.evaluate_every > 0 and last)
        # A validation may be interrupted and repeated, and so may writing its model: nothing changes before both are
        # done.
        val = self._validate(finished) if judged else {}
        self._keep_best(val, finished)
        seconds = train_state.epoch_elapsed
        train_state.epoch_seconds.append(round(seconds, 4))
        train_state.train_loss = train_state.loss_sum / max(train_state.examples, 1)
        rate = train_state.examples / max(seconds, 1e-9)
        train_state.loss_sum, train_state.examples, train_state.epoch_elapsed = 0.0, 0, 0.0
        if judged:
            self._judge(val, finished, regular)
        # A validation made only because the run ends must not influence it: a run with more epochs would not have it.
        value = val.get(session.task.metric.name) if regular else None
        step_schedule(session.schedule, value, session.task.metric.better)
        session.follow_schedule()
        if value is not None and self._shuffling.waits_for_elbow and train_state.shuffled_from is None:
            train_state.val_curve.append(value)
            if past_elbow(train_state.val_curve, session.task.metric.better):
                train_state.shuffled_from, train_state.val_curve = finished, []
        train_state.done = last or bool(job.patience and train_state.without_gain >= job.patience)
        train_state.ending = False
        times = self._times(steps)
        spent = {name: times[name].since(self._stages[name]) if self._stages else times[name] for name in times}
        self._stages = times
        memory = resident_mb()
        events.memory(memory)
        self._last_val = val or self._last_val
        more = f", {limit_words(spent)}, {memory:,.0f} MB"
        self._tell(f"epoch {finished}/{job.epochs}", train_state.train_loss, rate, more)
        self._write_epoch(finished - 1, seconds, rate, val, spent, memory)
        self._call_back(finished, seconds, val)

    def _call_back(self, epoch: int, seconds: float, val: dict[str, float]) -> None:
        """Call the callbacks with the epoch's result; one of them may end the run. Only the first of several workers
        calls them.
        """
        session, train_state = self.session, self.train_state
        if not session.callbacks:
            return
        wanted = False
        if self.records.kept:
            wanted = session.callbacks.epoch(
                EpochResult(
                    run=self.folder.path,
                    epoch=epoch,
                    epochs=session.job.epochs,
                    step=train_state.step,
                    loss=train_state.train_loss,
                    val=dict(val),
                    val_loss=session.task.losses.get("val") if val else None,
                    metric=session.task.metric.name,
                    best_epoch=train_state.best_epoch,
                    best_value=train_state.best_value,
                    lr=float(session.optimiser.param_groups[0]["lr"]),
                    seconds=seconds,
                )
            )
        train_state.done = session.execution.is_stopped(wanted) or train_state.done

    def _validate(self, epoch: int) -> dict[str, float]:
        session = self.session
        try:
            return session.evaluate(["val"]).get("val", {})
        except PenstockError as error:
            sentence = f"Validation after epoch {epoch} (step {self.train_state.step}): {error}"
            if isinstance(error, DeviceFull):
                raise DeviceFull(sentence) from error
            raise PenstockError(sentence, code=error.code) from error

    def _keep_best(self, val: dict[str, float], epoch: int) -> None:
        if self.records.kept and self._is_best(val):
            self.records.save_best(epoch, self.session.weights())

    def _is_best(self, val: dict[str, float]) -> bool:
        best, metric = self.train_state.best_value, self.session.task.metric
        return metric.name in val and (best is None or metric.is_better(val[metric.name], best))

    def _gains(self, val: dict[str, float]) -> bool:
        """Whether a validation improves on the best so far by more than `min_delta`."""
        best, metric, least = self.train_state.best_value, self.session.task.metric, self.session.job.min_delta
        if best is None or not least:
            return self._is_best(val)
        beyond = best + least if metric.better == "higher" else best - least
        return metric.name in val and metric.is_better(val[metric.name], beyond)

    def _judge(self, val: dict[str, float], epoch: int, regular: bool) -> None:
        train_state, metric = self.train_state, self.session.task.metric
        gains = self._gains(val)
        if self._is_best(val):
            train_state.best_value, train_state.best_epoch = val[metric.name], epoch
        if train_state.best_value is not None:
            self._progress.validated(metric.name, metric.better, train_state.best_value, train_state.best_epoch)
        if gains:
            train_state.without_gain = 0
        elif regular and metric.name in val:
            train_state.without_gain += 1

    def _write_epoch(
        self, epoch: int, seconds: float, rate: float, val: dict[str, float], spent: dict[str, StageTime], rss: float
    ) -> None:
        record: dict[str, Any] = {
            "kind": "epoch",
            "epoch": epoch,
            "step": self.train_state.step,
            "time": self._now(),
            "loss": self.train_state.train_loss,
            "lr": float(self.session.optimiser.param_groups[0]["lr"]),
            "seconds": round(seconds, 4),
            "seeds_per_second": round(rate, 1),
            "stages": {
                name: {"busy_s": round(t.busy, 4), "wait_s": round(t.wait, 4), "threads": t.threads}
                for name, t in spent.items()
            },
            "rss_mb": round(rss, 1),
        }
        if val:
            record["val"] = val
            if "val" in self.session.task.losses:
                record["val_loss"] = self.session.task.losses["val"]
        if self.train_state.shuffled_from == epoch + 1:
            record["shuffled_from"] = epoch + 1
        self.records.append_metrics(record)

    def _tell_midway(self, steps: int) -> None:
        """Report the epoch so far, within a long epoch, where a step that is recorded is among the last `steps`."""
        train_state, batches = self.train_state, self._batches
        left = train_state.epoch_elapsed / train_state.batch * (batches - train_state.batch)
        if train_state.step % self._record_every < steps and left > _SOON:
            where = f"epoch {train_state.epoch + 1}/{self.session.job.epochs}, batch {train_state.batch:,}/{batches:,}"
            self._tell(
                where,
                train_state.loss_sum / max(train_state.examples, 1),
                train_state.examples / train_state.epoch_elapsed,
            )

    def _tell(self, where: str, loss: float, rate: float, more: str = "") -> None:
        name = self.session.task.metric.name
        metric = f", val {name} {self._last_val[name]:.4f}" if name in self._last_val else ""
        self._progress.status(f"{where}: loss {loss:.4f}{metric}, {rate:,.0f} seeds/s{more}")

    def save(self) -> None:
        """Write a checkpoint of the current state, between two steps."""
        if not self.records.kept:
            return
        session = self.session
        if not session.is_finite():
            raise PenstockError(
                self._diverged(f"The weights became NaN or infinite at step {self.train_state.step}"),
                code="diverged",
            )
        session.execution.prepare_checkpoint()
        self.records.save(self.train_state.step, self.train_state.best_epoch, session.state(self.train_state))

    def _diverged(self, what: str) -> str:
        """The error for diverged training: it names non-finite inputs if there are any, and lr otherwise."""
        cause = self.session.inputs.non_finite()
        if cause is not None:
            return f"{what}, because {cause}: training stopped. Replace these numbers, and train again."
        return (
            f"{what}: training stopped. The last good checkpoint is kept in {self.folder.checkpoints};"
            " lower lr, or set clip, and train again."
        )

    def _now(self) -> float:
        return round(self._since(time.perf_counter()), 3)

    def _since(self, moment: float) -> float:
        """Seconds of a moment after the run's beginning."""
        return moment - self._began
