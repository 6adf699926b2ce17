"""Bursts of steps, in which batches are drawn and trained on without synchronising with the host.

A ring of slots holds the current batches. While one is trained on in the computing stream, the next is drawn in a
stream of its own. Where the host fills slots, this is a third stage, and four slots take turns:

    drawing     | draw 2      | draw 3      | draw 4
    filling     | rows of 1   | rows of 2   | rows of 3
    computing   | learn 0     | learn 1     | learn 2

The host waits only for a drawn batch, which was drawn while the previous one was filled, and for its own threads, which
have begun to read the next batch's rows by then.

The room (`sampling.device.block.Room`) bounds all shapes. A batch that needs more room and all following ones are
skipped until the host has noticed it, enlarged the room and recorded everything again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

import torch

from penstock.pipeline.schedule import Position, Schedule
from penstock.pipeline.stages import Recorder, StageTime
from penstock.sampling.device.streams import rest
from penstock.store.device.moments import Moment
from penstock.traced import BATCHES, memory_for
from penstock.train.first_layer.slots import Filling, SlotFill
from penstock.train.session import Pause, Session, Step
from penstock.train.steps.parts import Source, StepCompute
from penstock.train.steps.runner import Launch, LaunchStream, Stopwatch, runner_for
from penstock.train.steps.update import LaunchedFirst, Update, constants_of

_WARM_UPS = 3
"""Steps that are run before recording: they compile kernels and let libraries allocate their workspaces."""


class Course(NamedTuple):
    """Which steps are done, when they pause, and the recorder of their times."""

    schedule: Schedule
    start: Position
    pause: Pause
    recorder: Recorder


class _Turn:
    """One slot of the ring, with its filling and its launches."""

    draw: Launch
    learn: Launch | LaunchedFirst
    kept: Any = None

    def __init__(self, slot: Any, filling: Filling, device: torch.device) -> None:
        self.slot, self.filling = slot, filling
        self.drawn, self.free = Moment(device), Moment(device)
        self.free.mark(LaunchStream.computing(device))


class Engine:
    """Does the steps of a session in bursts; between two bursts the device is idle."""

    def __init__(
        self, session: Session, source: Source, fill: SlotFill, compute: StepCompute, update: Update, course: Course
    ) -> None:
        self._session, self.source, self._fill, self._compute, self._update = session, source, fill, compute, update
        self._schedule, self._position, self._pause, recorder = course
        self._batches = self._schedule.batches
        self._device = device = session.inputs.device
        self._clock = Stopwatch(device, recorder, source.stages)
        self._runner, self._apply = runner_for(device), Launch(update.apply)
        # A draw has many small kernels, each of which would wait until all of a large one's programs have started.
        self._computing, self._drawing = LaunchStream.computing(device), LaunchStream.beside(device, urgent=True)
        self.turns: list[_Turn] = []
        self._recorded_with: list[Any] = []
        self._drawn = self._begun = self._unfinished = 0
        """Numbers of batches in the epoch: the first that is not drawn, the first whose filling has not begun, and the
        first whose filling is not finished.
        """

    # The work of a step, which `runner` runs, records or traces: `_draw`, `_learn` and `Update.apply`.

    def _draw(self, turn: _Turn) -> None:
        self.source.draw(turn.slot)
        turn.filling.list()

    def _learn(self, turn: _Turn) -> None:
        found = self._compute.gradients(turn.slot, turn.filling.inputs())
        self.source.keep(turn.slot, found.loss)
        turn.kept = self._update.take(turn.slot, found)

    def __enter__(self) -> Self:
        if self.source.can_skip:
            self._update.prepare()
        self.fill(self._position)
        self._record()
        return self

    def __exit__(self, *_: object) -> None:
        self._abandon()
        rest(self._device)
        self.source.close()
        self._drop_slots()
        # Gradients are in the memory of the recorded steps.
        self._session.optimiser.zero_grad(set_to_none=True)

    def __iter__(self) -> Iterator[list[Step]]:
        epochs = self._schedule.epochs
        while epochs is None or self._position.epoch < epochs:
            # Requests to stop are read between two bursts.
            many = min(self._pause(self._position), self._update.most)
            if self.source.can_skip and self._recorded_with != self._constants():
                self._record_steps()
            with self._update.burst(many):
                done = self._burst(many)
            yield done

    def fill(self, position: Position) -> None:
        """Prepare an epoch's batches from a position on."""
        self.source.fill(position)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context that does nothing: the device is idle between bursts."""
        yield

    def times(self) -> dict[str, StageTime]:
        """Seconds that the device spent drawing and computing, and those of the busiest path from the host."""
        known, paths = self._clock.times(), self._fill.paths
        if paths is None:
            return known
        total = max(each.busy + each.wait for each in known.values())
        busy = max((each.seconds for each in paths.use().values()), default=0.0)
        transfer = StageTime(busy, max(0.0, total - busy), 1, 1)
        return {"sample": known["sample"], "transfer": transfer, "compute": known["compute"]}

    def _burst(self, many: int) -> list[Step]:
        epoch, first = self._position
        done: list[Step] = []
        batch = first
        while batch < first + many:
            self._clock.start(self._computing)
            for number in range(batch, first + many):
                self._launch(Position(epoch, number))
            if not self._update.is_apart:
                # Sums that the host computes between launches would wait for it.
                self._clock.follow()
            losses, failed = self._update.look(self.source, batch, first + many)
            self._clock.read()
            if losses:
                last = batch + len(losses) - 1
                losses = self._update.settled(self._turn(last).kept, Position(epoch, last), losses)
            done += [self._step(epoch, batch + place, loss) for place, loss in enumerate(losses)]
            batch += len(losses)
            if failed is not None:
                self._go_back_to(failed)
        self._position = Position(epoch, batch)
        if batch == self._batches:
            self._position = Position(epoch + 1, 0)
            self.fill(self._position)
            self._drawn = self._begun = self._unfinished = 0
        return done

    def _step(self, epoch: int, batch: int, loss: float) -> Step:
        last = batch == self._batches - 1
        size = self._schedule.batch_size
        examples = self.source.examples(batch)
        if examples is None:
            examples = len(self._schedule.items) - batch * size if last else size
        return Step(Position(epoch, batch), examples, loss, last)

    def _turn(self, number: int) -> _Turn:
        """The slot of a batch, by the batch's number in the epoch."""
        return self.turns[number % len(self.turns)]

    def _launch(self, position: Position) -> None:
        """Launch the step of a batch and, concurrently, the drawing of the next."""
        turn, is_drawn = self._turn(position.batch), self.source.is_drawn
        if is_drawn:
            self._bring(position)
            self._computing.wait(turn.drawn)
        else:
            self.source.prepare(turn.slot, position.batch)
        with self._compute.drawing(position):
            self._clock.around("compute", position, self._computing, turn.learn.replay)
        if is_drawn:
            turn.free.mark(self._computing)
            self._draw_up_to(position._replace(batch=position.batch + 1))
        self._update.launched(position)
        if self._update.is_apart:
            self._clock.around("compute", position, self._computing, self._apply.replay)

    def _bring(self, position: Position) -> None:
        """Draw a batch and fill its slot, and begin to fill as many following slots as the fill works ahead."""
        number, ahead = position.batch, self._fill.ahead
        self._draw_up_to(position._replace(batch=number + 2 * ahead))
        while self._begun <= min(number + ahead, self._batches - 1):
            self._turn(self._begun).filling.begin()
            self._begun += 1
        filling = self._turn(number).filling
        filling.finish()
        self._unfinished = number + 1
        filling.hold(self._computing.stream)

    def _draw_up_to(self, position: Position) -> None:
        """Launch the draws of all batches up to this one, at most to the end of the epoch."""
        while self._drawn <= min(position.batch, self._batches - 1):
            turn = self._turn(self._drawn)
            with self._drawing.entered():
                self._drawing.wait(turn.free)
                self.source.prepare(turn.slot, self._drawn)
                self._clock.around("sample", Position(position.epoch, self._drawn), self._drawing, turn.draw.replay)
                turn.filling.fetch(self._drawing.stream)
                turn.drawn.mark(self._drawing)
            self._drawn += 1

    def _go_back_to(self, failed: int) -> None:
        """Repeat the steps from a batch that lacked room; the worker whose share lacked room enlarges it first."""
        rest(self._device)
        self._position = Position(self._position.epoch, failed)
        self._abandon()
        if self.source.lacks_room(failed):
            self.source.enlarge(failed)
            self._record()
            return
        self.source.restart(failed)
        self._drawn = self._begun = self._unfinished = failed

    def _record(self) -> None:
        """Allocate slots for the current room and record their launches. The warm-up does not change the model."""
        rest(self._device)
        self._drop_slots()
        for number in range(self._fill.slots):
            with memory_for(BATCHES):
                filling = self._fill.take()
            turn = _Turn(self.source.slot(number), filling, self._device)
            if self.source.is_drawn:
                with memory_for(BATCHES):
                    filling.attach(turn.slot.slot)
            self.turns.append(turn)
            self._record_draw(turn)
        self._record_steps()
        self.source.restart(self._position.batch)
        self._drawn = self._begun = self._unfinished = self._position.batch

    def _record_draw(self, turn: _Turn) -> None:
        """Warm a turn's work up, and record its draw."""

        def once() -> None:
            self.source.first()
            self._draw(turn)
            self._learn(turn)
            self._update.apply()

        if not self.source.can_skip:
            return
        if self._runner.records or turn is self.turns[0]:
            # What is not recorded needs its first step alone, in which the optimiser makes its state.
            self.source.idle()
            self._runner.warm_up(once, _WARM_UPS)
        if self.source.is_drawn:
            turn.draw = self._runner.record(partial(self._draw, turn), self._drawing)

    def _record_steps(self) -> None:
        """Record the steps of all turns, or record them again with numbers that have changed since."""
        pool, optimiser = None, self._session.optimiser
        # Frees the memory of an earlier recording, in which the gradients are.
        optimiser.zero_grad(set_to_none=True)
        for turn in self.turns:
            turn.learn, turn.kept = Launch(partial(self._learn, turn)), None
        for turn in self.turns:
            learn = partial(self._learn, turn)
            if not self.source.can_skip:
                turn.learn = LaunchedFirst(self._runner, learn, optimiser)
                continue
            turn.learn = self._runner.record(learn, pool=pool)
            pool = turn.learn.pool
        if self._update.is_apart:
            self._apply = self._runner.record(self._update.apply)
        self._recorded_with = self._constants()

    def _constants(self) -> list[Any]:
        """What recorded steps hold fixed: numbers of the optimiser, and those of a user's module."""
        return [constants_of(self._session.optimiser), self._compute.constants()]

    def _drop_slots(self) -> None:
        while self.turns:
            turn = self.turns.pop()
            self._fill.give_back(turn.filling)
            # Launches that are not recordings refer to their turn, which would keep its memory allocated.
            vars(turn).clear()

    def _abandon(self) -> None:
        """Discard slots whose filling has begun but is not finished."""
        for number in range(self._unfinished, self._begun):
            self._turn(number).filling.abandon()
        self._begun = self._unfinished
