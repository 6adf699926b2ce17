"""What one step on one worker has computed, received and sent so far."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.kernels import njit
from penstock.nn.aggregation import gather
from penstock.sampling.block import BatchKey
from penstock.train.session import Session
from penstock.train.whole.levels import KeptLevel, LevelGradients
from penstock.train.whole.norms import LayerNorms
from penstock.train.whole.shared.interfaces import Tag, WholeWorkers
from penstock.train.whole.shared.shared_step import BinTask, SharedStep
from penstock.train.whole.steps import BinPass, LayerPasses, StepProgress

# Boundary sampling: only a random share of the rows that workers send each other takes part in a step. A row that is
# drawn with probability p and multiplied by 1 / p is unbiased. So sums and means over neighbours, which divide by the
# lengths of the whole lists, are unbiased; what is not linear in the rows is not. The gradient uses the same draw.


class BoundaryDraw:
    """The draw of one step: the same for a vertex in every level and for every reader."""

    def __init__(self, key: Any, share: float) -> None:
        self._key, self.share = np.uint64(key), share
        self._limit = np.uint64(min(int(share * 2.0**64), (1 << 64) - 1))

    def drawn(self, names: Array) -> Array:
        """Which of some vertices, by original number, are drawn."""
        found = np.empty(len(names), np.bool_)
        _draw(self._key, np.asarray(names, np.int64), self._limit, found)
        return found


@njit(nogil=True, cache=True)
def _draw(key: np.uint64, names: Array, limit: np.uint64, out: Array) -> None:
    for i in range(len(names)):
        out[i] = mix(key ^ mix(np.uint64(names[i]))) <= limit


_NO_ROWS = slice(0, 0)

Waited = Callable[[float], None]
"""Called at the end of a wait for other workers' rows with the time of its beginning (`time.perf_counter`)."""


class StepState:
    """Rows of all levels, and the messages that send and receive them."""

    def __init__(
        self,
        session: Session,
        step: SharedStep,
        workers: WholeWorkers,
        key: BatchKey,
        pipeline: str,
        draw: BoundaryDraw | None,
        waited: Waited,
    ) -> None:
        self.session, self.step, self.plan, self.workers = session, step, step.plan, workers
        progress = StepProgress(session.progress, session.job, key, [len(layer) for layer in step.tasks])
        self.passes = LayerPasses(session, key.purpose("dropout"), step.constant, progress)
        self.inter, self.intra = pipeline in ("inter", "both"), pipeline in ("intra", "both")
        self.levels: list[KeptLevel | None] = [
            None if number == 0 else step.level(number) for number in range(step.plan.layers + 1)
        ]
        self.kept: dict[BinTask, BinPass | None] = {}
        self.norms: list[LayerNorms | None] = [None] * step.plan.layers
        self._draw, self._waited = draw, waited
        self._learned: dict[BinTask, dict[str, Tensor]] = {}

    def wait(self) -> None:
        """Wait until something may have arrived."""
        began = time.perf_counter()
        self.workers.mail.wait()
        self._waited(began)

    def fetch(self, number: int, task: Any) -> dict[str, Any]:
        """The rows that a bin reads."""
        if number == 0:
            return self._inputs(task)
        level = self.levels[number]
        assert level is not None
        if task.in_place is not None:
            return {kind: task.in_place.aggregated(level.kept(kind)) for kind in task.places}
        x = {kind: level.read(kind, places).detach() for kind, places in task.places.items()}
        return {kind: rows.requires_grad_() for kind, rows in x.items()}

    def send_rows(self, level: int, place: int) -> None:
        """Send a group to its reader."""
        group, kept = self.plan.levels[level].sent[place], self.levels[level]
        assert kept is not None
        sent = []
        for kind, rows in self.step.sent_rows[level][place].items():
            drawn = self._drawn(level, True, place, kind)
            if drawn is not None:
                rows = rows[drawn.to(rows.device)]
            if group.count(kind):
                sent.append(as_array(self._with_sums(level, place, kind, kept, kept.read(kind, rows))))
        self.workers.mail.post(group.rank, Tag(False, level, group.number), sent)

    def _with_sums(self, level: int, place: int, kind: str, kept: KeptLevel, rows: Tensor) -> Tensor:
        """A group's rows, followed by its sums."""
        sums = self.step.sent_sums[level][place].get(kind)
        if sums is None:
            return rows
        added, lists = sums.added
        return torch.cat([rows, gather(lists, kept.read(kind, added))])

    def receive_rows(self, level: int, place: int) -> bool:
        """Store a group's rows in the level, if they have arrived; returns whether they have."""
        group, kept = self.plan.levels[level].received[place], self.levels[level]
        found = self.workers.mail.take(group.rank, Tag(False, level, group.number))
        if found is None:
            return False
        assert kept is not None
        for (kind, rows), values in zip(group.rows.items(), found, strict=True):
            given, drawn = torch.from_numpy(values), self._drawn(level, False, place, kind)
            if drawn is not None and self._draw is not None:
                all_rows = given.new_zeros(rows.stop - rows.start, given.shape[1])
                all_rows[drawn] = given / self._draw.share
                given = all_rows
            kept.write(kind, rows, given.to(self.step.device))
        return True

    def send_gradients(self, level: int, place: int, gradients: LevelGradients) -> None:
        """Return gradients of halo rows to their owner; an empty message where no loss depends on them."""
        group, sent = self.plan.levels[level].returned[place], []
        for kind, rows in self.step.returned_rows[level][place].items():
            found, drawn = gradients.of(kind, rows), self._returned_drawn(level, place, kind)
            if found is not None and drawn is not None and self._draw is not None:
                found = found[drawn.to(found.device)] / self._draw.share
            sent.append(np.empty((0, 0), np.float32) if found is None else as_array(found))
        self.workers.mail.post(group.rank, Tag(True, level, group.bin), sent)

    def receive_gradients(self, level: int, place: int) -> dict[str, Array] | None:
        """Gradients that a reader sent in one message, by node type; None: they have not arrived yet."""
        group = self.plan.levels[level].awaited[place]
        found = self.workers.mail.take(group.rank, Tag(True, level, group.bin))
        return None if found is None else dict(zip(group.parts, found, strict=True))

    def add_gradients(self, task: BinTask, place: int, found: dict[str, Array], gradients: LevelGradients) -> None:
        """Add a reader's gradients of a group, by node type, to those of a bin's rows."""
        level = task.layer + 1
        group = self.plan.levels[level].sent[place]
        for kind, values in found.items():
            sums = self.step.sent_sums[level][place].get(kind)
            given, rows = torch.from_numpy(values).to(self.step.device), self.step.sent_rows[level][place][kind]
            if sums is not None and task.place in sums.returned:
                added, lists = sums.returned[task.place]
                gradients.add(kind, added, gather(lists, given[len(rows) :]))
            some = group.bins.get(task.place, {}).get(kind, _NO_ROWS)
            if some.stop > some.start:
                gradients.add(kind, rows[some], given[some])

    def drawn_of_sent(self, level: int, place: int, kind: str) -> Array | None:
        """Which rows of a sent group take part in this step; None: all."""
        drawn = self._drawn(level, True, place, kind)
        return None if drawn is None else drawn.numpy()

    def _inputs(self, task: BinTask) -> dict[str, Tensor]:
        """Features, and learnable rows as of this step."""
        inputs = self.session.inputs
        if task not in self._learned:
            self._learned[task] = {
                kind: inputs.pull(kind, ids) for kind, ids in task.vertices.items() if kind in inputs.tables
            }
        learned = {kind: rows.detach().requires_grad_() for kind, rows in self._learned[task].items()}
        return {**self.step.stored_inputs(task), **learned}

    def _returned_drawn(self, level: int, place: int, kind: str) -> Tensor | None:
        if self._draw is None:
            return None
        return torch.from_numpy(self._draw.drawn(self.step.returned_names(level, place, kind)))

    def _drawn(self, level: int, sent: bool, place: int, kind: str) -> Tensor | None:
        """Which rows of a group take part in this step; None: all."""
        if self._draw is None:
            return None
        known = self.step.group_names(level, sent, place, kind)
        return torch.from_numpy(self._draw.drawn(known))


def as_array(rows: Tensor) -> Array:
    """Rows as an array for a message."""
    rows = rows.detach() if rows.dtype == torch.float64 else rows.detach().float()
    return rows.cpu().contiguous().numpy()
