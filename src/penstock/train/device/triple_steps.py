"""Steps on triples captured once and replayed: batches, negatives and rows are the device's, without the host.

For models without layers, whose rows lie on the device. The first steps are launched one by one, so that kernels
compile and libraries allocate what they keep; then one step is captured, and every later one is a replay of it. Losses
are read at the end of a burst of steps.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, cast

import torch
from torch import Tensor

from penstock.pipeline.schedule import Position, Schedule
from penstock.pipeline.stages import Recorder, StageTime
from penstock.sampling.device.streams import rest
from penstock.sampling.device.triples import DeviceTripleBatch, DeviceTriples
from penstock.sampling.links.known import End
from penstock.store.device.embedding import DeviceEmbeddingTable
from penstock.train.device.launches import LaunchStream, Recorded, Stopwatch, warm_up
from penstock.train.session import Pause, Session, Step
from penstock.train.tasks import TripleTask
from penstock.train.tasks.triple_losses import TripleRows, loss_by_triple, penalty_by_triple

_LAUNCHED = 3
"""Steps before one is captured."""
_FIRST_BURST = 16
_BURST_SECONDS = 0.1
"""About how long whoever asks to stop waits."""
_MOST_NUMBERS = (1 << 63) - 1
_ALIKE = ("Adam", "AdamW", "Adagrad", "SGD")
CAPTURED_TRIPLES = "Batches of triples are drawn on the device; steps are captured once and replayed."


def reasons_against_capture(session: Session) -> list[str]:
    """Why a session's steps on triples cannot be captured; empty where they can."""
    job, task, tables = session.job, session.task, session.inputs.tables
    if not isinstance(task, TripleTask):
        return ["the task is not about triples"]
    entities = task.entities
    reasons = {
        "capture is off": not job.capture,
        f"model {job.model} has layers": job.has_layers or job.module is not None,
        "rows do not lie on the device": not all(isinstance(each, DeviceEmbeddingTable) for each in tables.values()),
        "entities are of several types, or have features": len(tables) != 1 or len(session.graph.nodes) != 1,
        "there are too many relations and entities to number triples": (
            len(task.relations) * entities.count**2 > _MOST_NUMBERS
        ),
        "gradients are clipped": bool(job.clip),
        "rows are dropped": bool(job.input_dropout),
        "gradients are computed on older weights": bool(job.staleness),
        "batches are used again, or drawn in groups": job.reuse_batches or job.groups != 1,
        "compute_type is float16": job.compute_type == "float16",
        f"optimiser {job.optimiser} is not known to do the same in every step": job.optimiser not in _ALIKE,
        "optimiser_options change the step": bool(
            set(job.optimiser_options) - {"betas", "eps", "momentum", "nesterov"}
        ),
        "optimiser Adagrad has a decay": job.optimiser == "Adagrad" and bool(job.weight_decay),
    }
    return [reason for reason, holds in reasons.items() if holds]


class TripleSteps:
    """Does the steps of a schedule from a position on, in bursts."""

    def __init__(
        self,
        session: Session,
        device: torch.device,
        schedule: Schedule,
        start: Position,
        pause: Pause,
        recorder: Recorder,
    ) -> None:
        self._session, self._schedule, self._pause, self._position = session, schedule, pause, start
        self._task, self._device = cast(TripleTask, session.task), device
        (table,) = session.inputs.tables.values()
        self._table: DeviceEmbeddingTable = table
        batcher = self._task.batcher
        self._triples = DeviceTriples(
            batcher.triples, batcher.known, batcher.entities.count, batcher.negatives, batcher.weights, batcher.ends,
            schedule.items, schedule.batch_size, device,
        )  # fmt: skip
        self._losses = torch.zeros(schedule.batches, dtype=torch.float32, device=device)
        self._rates = torch.zeros(schedule.batches, dtype=torch.float32, device=device)
        self._every = torch.arange(batcher.entities.count, dtype=torch.int32, device=device)
        weights = self._task.weights_of(batcher.triples) if self._task.weighs else None
        self._weights = None if weights is None else torch.from_numpy(weights).to(device)
        self._recorded: Recorded | None = None
        self._recorded_with: list[Any] = []
        self._launched, self._most = 0, _FIRST_BURST
        self._filled = -1
        self._clock, self._computing = Stopwatch(device, recorder), LaunchStream.computing(device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        rest(self._device)
        self._recorded = None
        # Gradients lie in the captured step's memory.
        self._session.optimiser.zero_grad(set_to_none=True)

    def __iter__(self) -> Iterator[list[Step]]:
        epochs = self._schedule.epochs
        while epochs is None or self._position.epoch < epochs:
            began, many = time.perf_counter(), min(self._pause(self._position), self._most)
            yield self._burst(many)
            self._most = max(1, int(_BURST_SECONDS * many / max(time.perf_counter() - began, 1e-9)))

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The device is at rest anyway."""
        yield

    def times(self) -> dict[str, StageTime]:
        """Seconds in which the device learned; what it draws is a part of that."""
        return self._clock.times()

    def _fill(self) -> None:
        """Make the epoch of the position ready, when its first burst begins: rates may have changed since the last."""
        epoch, batch = self._position
        self._triples.fill(self._schedule.seed, epoch, self._schedule.order_key(epoch), batch)
        rates = torch.from_numpy(self._table.rates(self._schedule.batches - batch))
        self._rates[batch:] = rates.to(self._device)
        self._filled = epoch

    def _burst(self, many: int) -> list[Step]:
        epoch, first = self._position
        if epoch != self._filled:
            self._fill()
        self._clock.start(self._computing)
        for number in range(first, first + many):
            self._clock.around("compute", Position(epoch, number), self._computing, self._launch)
        losses: list[float] = self._losses[first : first + many].tolist()
        self._clock.read()
        ended = first + many == self._schedule.batches
        self._position = Position(epoch + 1, 0) if ended else Position(epoch, first + many)
        return [self._step(epoch, first + place, loss) for place, loss in enumerate(losses)]

    def _step(self, epoch: int, batch: int, loss: float) -> Step:
        last, size = batch == self._schedule.batches - 1, self._schedule.batch_size
        examples = len(self._schedule.items) - batch * size if last else size
        return Step(Position(epoch, batch), examples, loss, last)

    def _launch(self) -> None:
        """One step: launched, or replayed from when it can be."""
        self._table.steps += 1
        if self._launched < _LAUNCHED or self._device.type != "cuda":
            warm_up(self._learn, self._device, 1)
            self._launched += 1
            return
        counts = [state["step"] for state in self._session.optimiser.state.values() if _on_host(state.get("step"))]
        # A rate that the host keeps is a part of what is captured.
        rates = [group["lr"] for group in self._session.optimiser.param_groups if not isinstance(group["lr"], Tensor)]
        if self._recorded is None or self._recorded_with != rates:
            before = [count.clone() for count in counts]
            self._recorded, self._recorded_with = Recorded(self._learn, self._device), rates
            for count, value in zip(counts, before, strict=True):
                count.copy_(value)
        self._recorded.replay()
        for count in counts:
            count += 1

    def _learn(self) -> None:
        session, cursor = self._session, self._triples.cursor
        batch = self._triples.batch()
        rows = self._table.on_device[0]
        dense = rows.detach().requires_grad_() if self._takes_all else None
        drawn = [each for each in batch.drawn.values() if each is not None]
        ids = torch.cat([batch.head, batch.tail, *(each.view(-1) for each in drawn)])
        read = rows.index_select(0, ids).requires_grad_()
        session.optimiser.zero_grad(set_to_none=True)
        with session.precision():
            loss = self._loss(batch, read, dense)
        session.backward(loss)
        self._losses.scatter_(0, cursor, loss.detach().float().view(1))
        session.optimiser.step()
        self._learn_rows(batch, ids, read, dense)
        cursor.add_(1)

    @property
    def _takes_all(self) -> bool:
        return not self._task.batcher.negatives.k

    def _loss(self, batch: DeviceTripleBatch, read: Tensor, dense: Tensor | None) -> Tensor:
        """The mean over the triples that are real and the ends that are replaced."""
        size, job, scorer = len(batch.head), self._session.job, self._task.scorer
        parts = list(
            torch.split(read, [size, size, *(each.numel() for each in batch.drawn.values() if each is not None)])
        )
        ends: dict[End, Tensor] = {"source": parts[0], "destination": parts[1]}
        total = torch.zeros(size, device=self._device)
        for place, end in enumerate(batch.drawn):
            candidates = dense if dense is not None else parts[2 + place]
            other: End = "source" if end == "destination" else "destination"
            near = TripleRows(ends[other], ends[end], batch.relation, end)

            def against(queries: Tensor, candidates: Tensor = candidates, end: End = end) -> Tensor:
                return self._against(queries, candidates, batch, end)

            own = batch.end(end) if dense is not None else None
            total = total + loss_by_triple(scorer, job, job.link_loss, near, against, own)
        total = total / len(batch.drawn)
        total = total + penalty_by_triple(scorer, job, parts[0], parts[1], batch.relation, tuple(batch.drawn))
        real = batch.counts
        if self._weights is not None:
            total = total * self._weights.index_select(0, batch.positions)
        return (total * real).sum() / real.sum()

    def _against(self, queries: Tensor, candidates: Tensor, batch: DeviceTripleBatch, end: End) -> Tensor:
        """Scores [triples, k]; minus infinity does not count."""
        drawn, masked = batch.drawn[end], batch.masked[end]
        if drawn is None:
            scores = self._task.scorer.compare(queries, candidates)
        else:
            groups, k = drawn.shape
            missing = groups * batch.group - len(queries)
            padded = torch.nn.functional.pad(queries, (0, 0, 0, missing)) if missing else queries
            near = padded.view(groups, batch.group, -1), candidates.view(groups, k, -1)
            scores = self._task.scorer.compare(*near).view(-1, k)[: len(queries)]
        return scores if masked is None else scores.masked_fill(masked, -torch.inf)

    def _learn_rows(self, batch: DeviceTripleBatch, ids: Tensor, read: Tensor, dense: Tensor | None) -> None:
        """The step of the rows that real triples have read."""
        from penstock.store.device.kernels import launch_row_steps

        drawn = [each for each in batch.drawn.values() if each is not None]
        # A group is real if its first triple is.
        groups = batch.counts[:: batch.group]
        real = [batch.counts, batch.counts, *(groups.repeat_interleave(each.shape[1]) for each in drawn)]
        beyond = len(self._table.on_device[0])
        counted = torch.where(torch.cat(real), ids, beyond).to(torch.int32)
        alone = len(self._every) if dense is None and self._table.moves_every_row else 0
        if dense is not None or alone:
            counted = torch.cat([self._every, counted])
        ascending, order = torch.sort(counted, stable=True)
        given = None if dense is None else cast(Tensor, dense.grad)
        rate = self._rates.index_select(0, self._triples.cursor)
        launch_row_steps(self._table.on_device, ascending, order, given, cast(Tensor, read.grad), rate, alone)


def _on_host(count: Any) -> bool:
    return isinstance(count, Tensor) and count.device.type == "cpu"
