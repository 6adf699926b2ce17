"""Captured steps on triples: the device draws batches and negatives and has the rows, so that no host is needed.

For models without layers, whose embeddings are on the device. No step can be skipped, so the first ones are launched
one by one, and then one is recorded (`update.LaunchedFirst`). Losses are read at the end of a burst of steps.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from penstock.pipeline.schedule import Position, Schedule
from penstock.sampling.device.triples import DeviceTripleBatch, DeviceTriples
from penstock.sampling.links.known import End
from penstock.store.device.embedding import DeviceEmbeddingTable
from penstock.train.first_layer.slots import NoFill
from penstock.train.session import Session
from penstock.train.steps.engine import Course, Engine
from penstock.train.steps.parts import Source, StepCompute, StepGradients
from penstock.train.steps.update import LocalUpdate
from penstock.train.tasks import TripleTask
from penstock.train.tasks.triples import TripleRows, loss_by_triple, penalty_by_triple

_BURST_SECONDS = 0.1
"""The approximate seconds of a burst, and so the longest delay of a request to stop."""
_MOST_NUMBERS = (1 << 63) - 1
_ALIKE = ("Adam", "AdamW", "Adagrad", "SGD")
CAPTURED_TRIPLES = "Batches of triples are drawn on the device; steps are captured once and replayed."


def reasons_against_capture(session: Session) -> list[str]:
    """Why a session's steps on triples cannot be captured; empty where they can."""
    job, tables = session.job, session.inputs.tables
    if session.task.facts.about != "triples":
        return ["the task is not on triples"]
    task = cast(TripleTask, session.task)
    entities = task.entities
    reasons = {
        "capture is off": not job.capture,
        f"model {job.model} has layers": job.has_layers or job.module is not None,
        "embeddings are not on the device": not all(isinstance(each, DeviceEmbeddingTable) for each in tables.values()),
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


class TripleSource(Source):
    """An epoch's batches of triples on a device; each step draws its own batch, and none can be skipped."""

    can_skip = False

    def __init__(self, session: Session, schedule: Schedule) -> None:
        self._schedule, device = schedule, session.inputs.device
        (self.table,) = session.inputs.tables.values()
        batcher = cast(TripleTask, session.task).batcher
        self.triples = DeviceTriples(
            batcher.triples, batcher.known, batcher.entities.count, batcher.negatives, batcher.weights, batcher.ends,
            schedule.items, schedule.batch_size, device,
        )  # fmt: skip
        self._losses = torch.zeros(schedule.batches, dtype=torch.float32, device=device)
        self.rates = torch.zeros(schedule.batches, dtype=torch.float32, device=device)
        self._rated_from: int | None = None
        """The number of the first batch of a prepared epoch that has no learning rates yet."""

    def fill(self, position: Position) -> None:
        epoch, batch = position
        if self._schedule.epochs is None or epoch < self._schedule.epochs:
            self.triples.fill(self._schedule.seed, epoch, self._schedule.order_key(epoch), batch)
            self._rated_from = batch

    def slot(self, number: int) -> None:
        """None: a step's batch is in memory of the step."""

    def prepare(self, slot: Any, number: int) -> None:
        """Set the learning rates of the epoch at its first batch: they may have changed after the last epoch."""
        if self._rated_from is not None:
            first, self._rated_from = self._rated_from, None
            rates = torch.from_numpy(self.table.rates(self._schedule.batches - first))
            self.rates[first:] = rates.to(self.rates.device)
        self.table.steps += 1

    def keep(self, slot: Any, loss: Tensor) -> None:
        """Record the loss and count the batch as done."""
        self._losses.scatter_(0, self.triples.cursor, loss)
        self.triples.cursor.add_(1)

    def look(self, first: int, last: int) -> tuple[list[float], int | None]:
        """The losses of the batches; batches of triples never lack room."""
        losses: list[float] = self._losses[first:last].tolist()
        return losses, None


class TripleCompute(StepCompute):
    """Scores triples against drawn negatives and computes gradients."""

    def __init__(self, session: Session, source: TripleSource) -> None:
        self._session, self._source, self._table = session, source, source.table
        self._task, device = cast(TripleTask, session.task), session.inputs.device
        batcher = self._task.batcher
        self._every = torch.arange(batcher.entities.count, dtype=torch.int32, device=device)
        weights = self._task.weights_of(batcher.triples) if self._task.weighs else None
        self._weights = None if weights is None else torch.from_numpy(weights).to(device)

    def gradients(self, slot: Any, inputs: Any) -> StepGradients:
        session, source = self._session, self._source
        batch, rate = source.triples.batch(), source.rates.index_select(0, source.triples.cursor)
        rows = self._table.on_device[0]
        dense = None if self._task.batcher.negatives.k else rows.detach().requires_grad_()
        drawn = [each for each in batch.drawn.values() if each is not None]
        ids = torch.cat([batch.head, batch.tail, *(each.view(-1) for each in drawn)])
        read = rows.index_select(0, ids).requires_grad_()
        session.optimiser.zero_grad(set_to_none=True)
        with session.precision():
            loss = self._loss(batch, read, dense)
        session.backward(loss)
        return StepGradients(
            loss.detach().float().view(1), None, ReadRows(self._table, self._every, batch, ids, read, dense, rate)
        )

    def _loss(self, batch: DeviceTripleBatch, read: Tensor, dense: Tensor | None) -> Tensor:
        """The mean loss over the real triples and their replaced ends."""
        size, job, scorer = len(batch.head), self._session.job, self._task.scorer
        parts = list(
            torch.split(read, [size, size, *(each.numel() for each in batch.drawn.values() if each is not None)])
        )
        ends: dict[End, Tensor] = {"source": parts[0], "destination": parts[1]}
        total = torch.zeros(size, device=read.device)
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
        """Scores [triples, k] of the candidates; minus infinity for those that do not count."""
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


class ReadRows(NamedTuple):
    """The rows that a batch of triples has read, and all rows where it read those too (`parts.LearnedRows`)."""

    table: DeviceEmbeddingTable
    every: Tensor
    batch: DeviceTripleBatch
    ids: Tensor
    read: Tensor
    dense: Tensor | None
    rate: Tensor

    def learned_rows(self) -> list[Tensor]:
        """Empty: gradients are not clipped."""
        return []

    def learn(self) -> None:
        """Make the optimiser's step of the rows that real triples have read."""
        from penstock.store.device.kernels import launch_row_steps

        batch, dense = self.batch, self.dense
        drawn = [each for each in batch.drawn.values() if each is not None]
        # A group is real if its first triple is; others are padding.
        groups = batch.counts[:: batch.group]
        real = [batch.counts, batch.counts, *(groups.repeat_interleave(each.shape[1]) for each in drawn)]
        beyond = len(self.table.on_device[0])
        counted = torch.where(torch.cat(real), self.ids, beyond).to(torch.int32)
        alone = len(self.every) if dense is None and self.table.moves_every_row else 0
        if dense is not None or alone:
            counted = torch.cat([self.every, counted])
        ascending, order = torch.sort(counted, stable=True)
        given = None if dense is None else cast(Tensor, dense.grad)
        launch_row_steps(self.table.on_device, ascending, order, given, cast(Tensor, self.read.grad), self.rate, alone)


def triple_steps(session: Session, course: Course) -> Engine:
    """The engine of a session's steps on triples."""
    source = TripleSource(session, course.schedule)
    update = LocalUpdate(session, _BURST_SECONDS)
    return Engine(session, source, NoFill(1), TripleCompute(session, source), update, course)
