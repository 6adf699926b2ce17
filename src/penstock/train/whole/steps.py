"""Steps on the whole graph: every layer's bins forward, the loss, and the bins backward."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor

from penstock.nn.aggregation import constant_input
from penstock.nn.drop import dropping
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Recorder, StageClock, StageTime, times_in_turn
from penstock.progress import Progress
from penstock.sampling.block import BatchKey
from penstock.traced import is_traced, number_of
from penstock.train.execution.support import Support, demands_of, reasons_against
from penstock.train.job import Job
from penstock.train.session import Session, Step
from penstock.train.steps.parts import LearnedRows
from penstock.train.steps.update import make_step
from penstock.train.whole.levels import KeptLevel, LevelGradients, backward_from
from penstock.train.whole.memory import Decision
from penstock.train.whole.norms import LayerNorms
from penstock.train.whole.prepared import PreparedBin, PreparedStep

# The steps of a run on the whole graph: the same training vertices in the same steps, epoch after epoch.


def first_epoch(schedule: Schedule) -> list[Planned]:
    """The steps of the first epoch; every epoch's steps have the same training vertices."""
    found = []
    for planned in schedule.from_position():
        found.append(planned)
        if planned.last:
            return found
    return found


def repeated_epochs(schedule: Schedule, start: Position) -> Iterator[Planned]:
    """Every step from a position on. No epoch is shuffled: sorting a large split takes longer than a GPU's step."""
    steps = first_epoch(schedule)
    epoch, first = start
    while schedule.epochs is None or epoch < schedule.epochs:
        for number in range(first, len(steps)):
            yield steps[number]._replace(key=BatchKey(schedule.seed, epoch, number))
        epoch, first = epoch + 1, 0


STAGES = "forward", "backward", "update"


class RepeatedWork:
    """The steps of a schedule, the same in every epoch, and the clocks of their stages (`steps.one_by_one`)."""

    def __init__(self, schedule: Schedule, start: Position, recorder: Recorder, stages: Sequence[str] = STAGES) -> None:
        self._planned = repeated_epochs(schedule, start)
        self.clocks = {name: StageClock(name, 1, 1, recorder) for name in stages}

    def __iter__(self) -> Iterator[Planned]:
        return self._planned

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Do nothing: there is no thread."""

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext()

    def times(self) -> dict[str, StageTime]:
        """The seconds of the stages, which take turns."""
        return times_in_turn(self.clocks)

    def record(self, stage: str, began: float, planned: Planned) -> float:
        """Record that a stage of a step ends now; returns the time."""
        self.clocks[stage].worked(0, began, planned)
        return time.perf_counter()


class WholeStep:
    """Does a step on one machine; `passes` makes the forward and backward pass of a planned step."""

    def __init__(self, session: Session, passes: "Callable[[Planned], Passes]", work: RepeatedWork) -> None:
        self._session, self._passes, self._work = session, passes, work

    def __call__(self, planned: Planned) -> Step:
        """Do the step; where the loss is not finite, the weights stay."""
        session, record = self._session, self._work.record
        session.optimiser.zero_grad(set_to_none=True)
        began = time.perf_counter()
        with session.drawing(planned.key.purpose("dropout")):
            passes = self._passes(planned)
            loss = passes.forward()
        value = number_of(loss)
        began = record("forward", began, planned)
        if math.isfinite(value):
            passes.backward(loss)
            began = record("backward", began, planned)
            make_step(session, rows=passes)
            record("update", began, planned)
        return Step(planned.position, len(planned.seeds), value, planned.last)


class Passes(LearnedRows, Protocol):
    """The forward and backward pass of one step."""

    def forward(self) -> Tensor:
        """The loss of the step's examples."""

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the loss with respect to the parameters and the learned embeddings."""


# The progress of a long step, bin by bin.

_SOON = 2.0
"""Seconds of a step before its progress is shown."""
_OFTEN = 0.5
"""Seconds between two lines of progress."""


class StepProgress:
    """Reports which bin of which layer is done. A layer that is computed twice in a pass is reported once."""

    def __init__(self, progress: Progress, job: Job, key: BatchKey, bins: Sequence[int]) -> None:
        """`bins` is the number of bins of every layer."""
        self._progress, self._bins, self._done = progress, bins, Counter[tuple[str, int]]()
        self._where = f"epoch {key.epoch + 1}/{job.epochs}"
        if job.steps_per_epoch > 1:
            self._where += f", step {key.batch + 1}/{job.steps_per_epoch}"
        self._next = time.monotonic() + _SOON

    def bin_done(self, direction: str, layer: int) -> None:
        """Report that one more bin of a layer was computed forward or backward."""
        self._done[direction, layer] += 1
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _OFTEN
        count, layers = self._bins[layer], len(self._bins)
        done = min(self._done[direction, layer], count)
        self._progress.status(f"{self._where}: {direction}, layer {layer + 1}/{layers}, bin {done:,}/{count:,}")


# One layer's bins forward and backward.

Fetch = Callable[[int, PreparedBin], dict[str, Any]]
"""Reads what a bin of a layer needs, as leaves of autograd's graph: rows, or `AggregatedRows`."""


@dataclass(eq=False)
class BinPass:
    """A bin that was computed with gradients: its inputs and outputs."""

    x: dict[str, Any]
    out: dict[str, Tensor]


@dataclass(eq=False)
class LayerPasses:
    """Computes bins of the model's layers for one step, whose dropout is drawn with `key`."""

    session: Session
    key: Any
    constant: dict[Any, Any] | None
    """What layers derived from inputs that never change, kept from step to step; None where inputs change."""
    progress: StepProgress | None = None
    calls: list[int] = field(default_factory=lambda: [0])
    """The number of dropout calls before each layer, as far as is known."""

    def compute(self, number: int, work: PreparedBin, x: dict[str, Any]) -> dict[str, Tensor]:
        """The bin's output rows by node type."""
        session, model = self.session, self.session.model
        with dropping(self.key, work.row_names) as stream, session.precision():
            stream.calls = self.calls[number]
            rows = session.of_model(x)
            if number == 0:
                with self._constant(x):
                    rows = model.layer(0, work.block, model.prepare(rows))  # type: ignore[operator]
            else:
                rows = model.layer(number, work.block, rows)  # type: ignore[operator]
            if len(self.calls) == number + 1:
                self.calls.append(stream.calls)
        return dict(rows) if isinstance(rows, dict) else {next(iter(work.rows)): rows}

    def _constant(self, x: dict[str, Any]) -> AbstractContextManager[None]:
        if self.constant is None:
            return nullcontext()
        learned = self.session.inputs.tables
        return constant_input(self.constant, [rows for name, rows in x.items() if name not in learned])

    def forward(
        self, number: int, work: PreparedBin, x: dict[str, Any], level: KeptLevel, with_gradients: bool
    ) -> BinPass | None:
        """Compute a bin and store its rows in the level; returns what a backward pass needs, where
        that is to be kept.
        """
        with torch.set_grad_enabled(with_gradients):
            out = self.compute(number, work, x)
        for name, rows in out.items():
            level.write(name, work.rows[name], rows)
        if self.progress is not None:
            self.progress.bin_done("forward", number)
        return BinPass(x, out) if with_gradients else None

    def backward(
        self,
        number: int,
        work: PreparedBin,
        known: BinPass | None,
        fetch: Fetch,
        above: LevelGradients,
        below: LevelGradients,
    ) -> None:
        """Propagate the gradients of a bin's rows to the rows that it read, and to the parameters."""
        if known is None:
            x = fetch(number, work)
            with torch.enable_grad():
                known = BinPass(x, self.compute(number, work, x))
        given = {name: above.of(name, work.rows[name]) for name in known.out}
        pairs = [
            (rows, given[name]) for name, rows in known.out.items() if given[name] is not None and rows.requires_grad
        ]
        if pairs:
            tensors, gradients = zip(*pairs, strict=True)
            scaled = [each.to(rows.dtype) for rows, each in zip(tensors, gradients, strict=True)]
            backward_from(tensors, scaled)
        below.take(work, known.x)
        if self.progress is not None:
            self.progress.bin_done("backward", number)


def learnable_rows(session: Session, gradients: LevelGradients) -> dict[str, Tensor]:
    """Learned input rows by node type, as tensors that hold only their gradients."""
    found = {}
    for name in session.inputs.tables:
        given = gradients.of(name, slice(None))
        if given is not None:
            found[name] = torch.empty_like(given)
            found[name].grad = given
    return found


# The forward and backward pass of one step: every layer's bins, the loss, and the bins in reverse.


class StepPasses:
    """The forward and backward pass of one step, layer by layer in bins."""

    def __init__(self, session: Session, step: PreparedStep, key: BatchKey, dropout: Any = None) -> None:
        """`dropout` is the key of dropout as a number on a device, for captured steps."""
        self._session, self._step, self._plan = session, step, step.plan
        self._examples = step.examples.of(key)
        progress = StepProgress(session.progress, session.job, key, [len(layer) for layer in step.bins])
        drawn = key.purpose("dropout") if dropout is None else dropout
        self._passes = LayerPasses(session, drawn, step.constant, progress)
        self._levels: list[KeptLevel | None] = [None] * (self._plan.layers + 1)
        self._retained: list[list[BinPass | None]] = []
        self._norms: list[LayerNorms | None] = [None] * self._plan.layers
        self._inputs = step.gradients(0)
        self._answers: list[dict[str, Tensor]] = []

    def forward(self) -> Tensor:
        for number in range(self._plan.layers):
            self._levels[number + 1] = self._forward_layer(number, self._step.decision.retain)
            if self._step.decision.recompute_levels and not self._session.model.needs_all_outputs and number:
                self._levels[number] = None
        return self._loss()

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        above = self._step.gradients(self._plan.layers)
        self._add_answers(self._plan.layers, above)
        self._levels[-1] = None
        for number in reversed(range(self._plan.layers)):
            below = self._inputs if number == 0 else self._step.gradients(number)
            self._add_answers(number, below)
            self._backward_layer(number, above, below)
            # Earlier layers read only earlier levels.
            self._levels[number] = None
            above = below

    def learned_rows(self) -> list[Tensor]:
        """The learned embeddings with their gradients, to be clipped with the parameters'."""
        return list(learnable_rows(self._session, self._inputs).values())

    def learn(self) -> None:
        """Make the step of the learned embeddings."""
        for name, rows in ({} if is_traced() else learnable_rows(self._session, self._inputs)).items():
            vertices = self._plan.order[name][: self._plan.counts[0][name]]
            assert rows.grad is not None
            self._session.inputs.tables[name].push(vertices, rows.grad.float().cpu().numpy())

    def _forward_layer(self, number: int, retain: bool, again: bool = False) -> KeptLevel:
        level = self._step.level(number + 1)
        bins, norms = self._step.bins[number], self._norms[number]
        if norms is None and self._step.normalises[number] and not (retain and len(bins) == 1):
            norms = self._norms[number] = LayerNorms(self._step.add)
            with norms.measuring(), torch.no_grad():
                for work in bins:
                    self._passes.compute(number, work, self._fetch(number, work))
        retain = retain and not (norms is not None)
        with nullcontext() if norms is None else norms.applying():
            kept = [self._passes.forward(number, work, self._fetch(number, work), level, retain) for work in bins]
        if not again:
            self._retained.append(kept)
        return level

    def _backward_layer(self, number: int, above: LevelGradients, below: LevelGradients) -> None:
        self._require_level(number)
        norms, bins = self._norms[number], self._step.bins[number]
        if norms is not None:
            with norms.summing():
                for work in bins:
                    none = LevelGradients({}, self._session.inputs.device)
                    self._passes.backward(number, work, None, self._fetch, above, none)
        with nullcontext() if norms is None else norms.applying():
            for place in reversed(range(len(bins))):
                known, self._retained[number][place] = self._retained[number][place], None
                self._passes.backward(number, bins[place], known, self._fetch, above, below)

    def _require_level(self, number: int) -> None:
        """Compute the level that a layer reads again, where it was not kept."""
        first = number
        while first and self._levels[first] is None:
            first -= 1
        for layer in range(first, number):
            self._levels[layer + 1] = self._forward_layer(layer, retain=False, again=True)
            if layer > first:
                self._levels[layer] = None

    def _fetch(self, number: int, work: Any) -> dict[str, Any]:
        level = self._levels[number]
        assert number == 0 or level is not None
        return self._step.fetch(work, level)

    def _loss(self) -> Tensor:
        session, model = self._session, cast(Any, self._session.model)
        read = range(1, self._plan.layers + 1) if model.needs_all_outputs else [self._plan.layers]
        self._answers = [{} for _ in range(self._plan.layers + 1)]
        for number in read:
            level = self._levels[number]
            assert level is not None
            for name, places in self._examples.places.items():
                self._answers[number][name] = level.read(name, places).detach().requires_grad_()
        outputs = [session.of_model(self._answers[number]) for number in read]
        with session.precision():
            return session.task.loss(model.join(outputs), self._examples.batch)

    def _add_answers(self, number: int, gradients: LevelGradients) -> None:
        """Add the gradients of the rows that the loss itself reads from a level."""
        for name, rows in self._answers[number].items():
            if rows.grad is not None:
                gradients.add(name, self._examples.places[name], rows.grad)
                # The loss refers to these rows until the step ends.
                rows.grad = None


# What training on the whole graph supports.

WHOLE = Support(
    times=True,
    compute_types=frozenset({"float32", "tf32", "bfloat16"}),
    grouped_batches=False,
    stale_gradients=False,
)
WHOLE_CAPTURED = replace(
    WHOLE,
    user_losses=False,
    learned_rows=False,
    edge_rows=False,
    norms=frozenset({"none", "layer"}),
    any_optimiser=False,
)
"""The support of whole-graph steps that are captured once and replayed."""
WHOLE_SHARED = replace(WHOLE, user_modules=False)
"""The support among workers, each of which computes the rows of its own vertices layer by layer."""


def is_captured(session: Session, decisions: Sequence[Decision]) -> bool:
    """Whether a GPU's steps are captured: where all that they read stays there and is the same in every epoch."""
    layered, retained = getattr(session.model, "layerwise", False), all(decision.retain for decision in decisions)
    repeated = layered and retained and not session.task.redraws
    return session.job.capture and repeated and not reasons_against(WHOLE_CAPTURED, demands_of(session))
