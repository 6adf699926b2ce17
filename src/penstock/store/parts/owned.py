"""Learnable rows at their owner: gradients staged in a journal, applied exactly once, whenever the process is killed.

Steps of a run are counted from 0. The rows are those *before* `step`. Gradients of that step are staged as ranks push
them; a request for a later step, which nobody makes before all ranks have agreed on this one, applies them. Applying
writes what rows and moments will be to the journal, then to the mapped tables, then begins a new journal. A process
that is killed finds, when it starts again, either all gradients (and applies them when asked) or the whole outcome (and
copies it once more). What the touched rows were before is kept until the next step: the only rank that knew of an
agreement may be killed, and then the step is done again.
"""

import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.store.embedding import (
    MOMENTS,
    Optimiser,
    catch_up,
    check_optimiser,
    draw_rows,
    learn_rows,
    moves_every_row,
)
from penstock.store.initial_rows import InitialRows, usual_rows
from penstock.store.parts.embedding_files import (
    JOURNAL,
    DamagedEmbedding,
    Push,
    Undo,
    clear_tables,
    lock_folder,
    open_journal,
    open_tables,
    shrunk_record,
    write_journal,
)
from penstock.store.rows import check_rows, gather_rows, spread_rows
from penstock.wire.message import Message

# The gradients of one step that ranks have pushed to the owner of an embedding, until the step is applied.


class PushMissing(PenstockError):  # noqa: N818
    """A step cannot be applied because gradients of some rank are missing."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="step-conflict")


class StagedGradients:
    """The ranks' gradients for the current step of a table, and the factor that they are multiplied by, if any."""

    def __init__(self, name: str) -> None:
        """`name` is the table's, for errors."""
        self._name = name
        self.pushes: dict[int, Push] = {}
        """The pushes by rank."""
        self.factor: float | None = None
        self._total: tuple[Array, Array] | None = None

    def check(self, push: Push, rows: Array) -> None:
        """Refuse what cannot be gradients of `rows`."""
        check_rows(rows, push.ids)
        if len(push.ids) and not push.learned:
            raise PenstockError(
                f"Rank {push.rank} pushes rows of {self._name!r}, but its header says that it has none.",
                code="malformed-message",
            )
        if not 0 <= push.rank < push.world:
            raise PenstockError(
                f"Rank {push.rank} is not one of {push.world} ranks, which count from 0.", code="malformed-message"
            )
        if push.gradients.shape != (len(push.ids), rows.shape[1]) or push.gradients.dtype != np.float32:
            raise PenstockError(
                f"Gradients of {push.gradients.dtype} {push.gradients.shape} do not fit {len(push.ids)} rows of"
                f" {rows.shape[1]} float32 of {self._name!r}.",
                code="shape-mismatch",
            )

    def add(self, push: Push) -> None:
        """Store a rank's gradients, replacing those that it pushed before."""
        if any(other.world != push.world for other in self.pushes.values()):
            # The step is repeated by another number of ranks: drop the first attempt.
            self.pushes.clear()
        self.pushes[push.rank], self._total = push, None

    def clear(self) -> None:
        """Drop what was staged, after it was applied or became invalid."""
        self.pushes.clear()
        self.factor = self._total = None

    def complete(self, step: int) -> list[Push]:
        """The pushes in order of rank; an error if one is missing."""
        world = next((push.world for push in self.pushes.values()), 1)
        missing = [rank for rank in range(world) if rank not in self.pushes]
        if missing:
            who = ", ".join(map(str, missing))
            of = f" of {world}" if self.pushes else ""
            raise PushMissing(
                f"Step {step} of the embeddings of {self._name!r} cannot be applied: no gradients came from rank"
                f" {who}{of}. Do the step again."
            )
        return [self.pushes[rank] for rank in range(world)]

    def total(self, step: int) -> tuple[Array, Array]:
        """The rows that a step touches, and the gradient of each, summed over ranks; computed once."""
        if self._total is None:
            self._total = _summed(self.complete(step))
        return self._total


def sum_of_squares(total: Array) -> float:
    """The sum of squares of gradients, in float64."""
    return float(np.square(total, dtype=np.float64).sum())


def _summed(pushes: list[Push]) -> tuple[Array, Array]:
    ids, place = np.unique(np.concatenate([push.ids for push in pushes]), return_inverse=True)
    total = np.zeros((len(ids), pushes[0].gradients.shape[1]), np.float32)
    _add(np.concatenate([push.gradients for push in pushes]), place, total)
    return ids, total


@njit(nogil=True, cache=True)
def _add(gradients: Array, place: Array, total: Array) -> None:
    """Sum rows that belong to the same vertex, in the order of ranks."""
    for i in range(len(place)):
        for k in range(total.shape[1]):
            total[place[i], k] += gradients[i, k]


class StepPast(PenstockError):  # noqa: N818
    """Rows before a step were requested after it had been applied."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="step-conflict")


class OwnedEmbedding:
    """A part's rows of an embedding table with their moments, in files in a folder of their own.

    `names` are the original numbers of the part's vertices. Any thread may call it; every call may be repeated.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        names: Array,
        width: int,
        optimiser: Optimiser,
        rate: float,
        seed: int,
        decay: float = 0.0,
        initial: InitialRows | None = None,
    ) -> None:
        """`initial` is the distribution of new rows, as in `EmbeddingTable`."""
        check_optimiser(optimiser)
        self.name, self.optimiser, self.rate, self.decay = name, optimiser, rate, decay
        self._moves_every_row = moves_every_row(optimiser, decay)
        self.step = self.steps = 0
        """The step that the rows precede; and the number of optimiser steps that they have had."""
        self._about: dict[str, Any] = {
            "table": name, "count": len(names), "names": zlib.crc32(np.ascontiguousarray(names, np.int64).data),
            "width": width, "optimiser": optimiser, "seed": seed, "decay": decay,
        }  # fmt: skip
        self._staged = StagedGradients(name)
        self._squares: tuple[int, float] = -1, 0.0
        """The last step that was applied, and the sum of its gradients' squares."""
        self._undo: Undo | None = None
        self._round = 0
        self._restoring = ""
        self._covered: dict[int, int] = {}
        self._past: dict[str, bool] = {}
        """Earlier restores by token, and whether each was completed: messages of them may still arrive."""
        self._lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        self._key = lock_folder(folder)
        try:
            path = folder / JOURNAL
            new = not path.exists()
            if new:
                clear_tables(folder)
            self._tables = open_tables(folder, (len(names), width), MOMENTS[optimiser], self._moves_every_row, new)
            if new:
                draw_rows(name, seed, names, initial or usual_rows(width), self._tables[0])
                write_journal(path, [self._clock()])
            self._journal = open_journal(path)
        except BaseException:
            os.close(self._key)
            raise
        try:
            self._recover(folder)
        except BaseException:
            self.close()
            raise

    @property
    def rows(self) -> Array:
        """The rows before `step`, mapped; where every step changes every row, as of the last step that touched it."""
        return self._tables[0]

    @property
    def moments(self) -> list[Array]:
        """The tables of the optimiser's moments, mapped; a row of each belongs to a row of `rows`."""
        return self._tables[1 : 1 + MOMENTS[self.optimiser]]

    def pull(self, ids: Array, step: int, out: Array) -> Array:
        """Rows before a step, by number in the part, into `out`; applies pending steps before it first."""
        with self._lock:
            self.reach(step)
            if self._moves_every_row:
                out[...] = self._current([gather_rows(table, ids) for table in self._tables])[0]
                return out
            return gather_rows(self.rows, ids, out)

    def push(self, push: Push) -> None:
        """Stage gradients, replacing those that the rank pushed for the step before; returns when they are in the
        journal.
        """
        self._staged.check(push, self.rows)
        with self._lock:
            if push.step < self.step:
                return
            self.reach(push.step)
            self._journal.append(push.record())
            self._staged.add(push)

    def squares(self, step: int) -> float:
        """The sum of the squares of a step's gradients, added over all ranks; also for the last step that was applied.

        A rank may ask when all have pushed, and another one may already have started the next step.
        """
        with self._lock:
            if step == self.step - 1 and self._squares[0] == step:
                return self._squares[1]
            self.reach(step)
            return sum_of_squares(self._staged.total(step)[1])

    def shrink(self, step: int, factor: float) -> None:
        """Set the factor of a step's gradients; may be repeated, as all ranks compute the same one."""
        with self._lock:
            if step < self.step:
                return
            self.reach(step)
            self._journal.append(shrunk_record(step, factor))
            self._staged.factor = factor

    def reach(self, step: int) -> None:
        """Apply pending steps before a step. Raises PushMissing, or StepPast if the rows are beyond it."""
        with self._lock:
            if self._restoring:
                raise PenstockError(
                    f"The embeddings of {self.name!r} were only partly restored: restore them again.",
                    code="step-conflict",
                )
            if step < self.step:
                raise StepPast(f"The embeddings of {self.name!r} are at step {self.step}: step {step} is over.")
            while self.step < step:
                self._apply()

    def begin_round(self, step: int, number: int) -> None:
        """Called when the ranks begin the round of this number before a step: undoes one step if need be."""
        with self._lock:
            # Messages of older rounds may still arrive.
            if number <= self._round or self._restoring:
                return
            undo = self._undo
            if step == self.step - 1 and undo is not None and undo.step == step:
                self._journal.append(Message("applied", {"step": step, "steps": undo.steps}, (undo.ids, *undo.tables)))
                self._copy(undo.ids, undo.tables)
                self._squares = -1, 0.0
                self._settle(step, undo.steps, None)
            elif step not in (self.step, self.step + 1):
                raise StepPast(
                    f"The embeddings of {self.name!r} are at step {self.step} and the run is at step {step}: resume"
                    " from a checkpoint."
                )
            self._round = number

    def read(self, start: int, stop: int, step: int) -> list[Array]:
        """Copies of some rows and their moments before a step, for a checkpoint."""
        with self._lock:
            self.reach(step)
            return self._current([table[start:stop].copy() for table in self._tables])

    def restore(self, token: str, start: int, tables: list[Array], step: int, steps: int) -> bool:
        """Load rows (and moments) from `start` on from a checkpoint; True when all rows are complete.

        `token` identifies the restore: its rows may come in any order, and more than once.
        """
        stop = start + len(tables[0])
        self._check_state(stop, tables)
        with self._lock:
            if token in self._past:
                if not self._past[token]:
                    raise PenstockError(
                        f"The embeddings of {self.name!r} were restored by another call in the meantime: restore them"
                        " again.",
                        code="step-conflict",
                    )
                return True
            if token != self._restoring:
                self._begin_restoring(token)
            for own, given in zip([self.rows, *self.moments], tables, strict=True):
                own[start:stop] = given
            if self._moves_every_row:
                self._tables[-1][start:stop] = steps
            self._journal.append(Message("restored", {"start": start, "stop": stop}))
            self._covered[start] = max(stop, self._covered.get(start, 0))
            if not _covers(self._covered, len(self.rows)):
                return False
            self._move_to(step, steps, "", {**self._past, token: True})
            return True

    def _begin_restoring(self, token: str) -> None:
        """Mark the rows as belonging to no step until all of them have been restored."""
        superseded = {self._restoring: False} if self._restoring else {}
        self._move_to(self.step, self.steps, token, {**self._past, **superseded})
        self._covered = {}

    def _move_to(self, step: int, steps: int, restoring: str, past: dict[str, bool]) -> None:
        """Make another step the current one: first in the journal, so that nothing has changed if that fails."""
        self._journal.replace([self._clock(step=step, steps=steps, restoring=restoring, past=past)])
        self.step, self.steps, self._restoring, self._past = step, steps, restoring, past
        self._staged.clear()
        self._undo = None

    def _check_state(self, stop: int, tables: list[Array]) -> None:
        fit = len(tables) == 1 + len(self.moments) and all(
            given.shape == (len(tables[0]), self.rows.shape[1]) and given.dtype == np.float32 for given in tables
        )
        if not fit or stop > len(self.rows):
            raise PenstockError(
                f"The checkpoint's embeddings of {self.name!r} do not have the shape that the graph needs: use a"
                " checkpoint of this run.",
                code="mismatched-inputs",
            )

    def close(self) -> None:
        """Close the files, in a state like that after a kill; may be called again."""
        with self._lock:
            self._journal.close()
            if self._key >= 0:
                os.close(self._key)
                self._key = -1

    def _recover(self, folder: Path) -> None:
        """Recover the state that the journal describes."""
        if not self._journal.records or self._journal.records[0].kind != "clock":
            raise DamagedEmbedding(f"{folder / JOURNAL} is damaged")
        head, *rest = self._journal.records
        self._journal.records = []
        # Journals of releases without a decay do not mention it.
        said = {key: head.body.get(key, 0.0 if key == "decay" else None) for key in self._about}
        if said != self._about:
            raise PenstockError(
                f"{folder} holds other embeddings ({said}, not {self._about}): name another folder.",
                code="mismatched-inputs",
            )
        self.step, self.steps = head.body["step"], head.body["steps"]
        self._restoring, self._past = head.body["restoring"], head.body["past"]
        step, squares = head.body.get("squares", (-1, 0.0))
        self._squares = int(step), float(squares)
        for record in rest:
            if record.kind == "staged":
                self._staged.add(Push.of(record))
            elif record.kind == "shrunk":
                self._staged.factor = record.body["factor"]
            elif record.kind == "restored":
                self._covered[record.body["start"]] = record.body["stop"]
            elif record.kind == "undo":
                self._undo = Undo.of(record)
            elif record.kind == "applied":
                self._copy(record.arrays[0], list(record.arrays[1:]))
                self.step, self.steps = record.body["step"], record.body["steps"]
                # A step that was undone has none.
                told = record.body.get("squares")
                self._squares = (-1, 0.0) if told is None else (self.step - 1, told)
                self._staged.clear()
        if any(record.kind == "applied" for record in rest):
            undo = [] if self._undo is None else [self._undo.record()]
            factor = self._staged.factor
            shrunk = [] if factor is None else [shrunk_record(self.step, factor)]
            self._journal.replace(
                [self._clock(), *undo, *(push.record() for push in self._staged.pushes.values()), *shrunk]
            )

    def _apply(self) -> None:
        """Apply one step: write the outcome to the journal, then to the tables, then begin a new journal."""
        pushes, factor = self._staged.complete(self.step), self._staged.factor
        steps = self.steps + any(push.learned for push in pushes)
        if factor is None and any(push.clipped for push in pushes):
            raise PushMissing(f"Step {self.step} of the embeddings of {self.name!r} has no factor: do the step again.")
        ids, total = self._staged.total(self.step)
        squares = sum_of_squares(total)
        if factor is not None:
            total = total * np.float32(factor)
        before, tables = self._outcome(ids, total, steps)
        undo = Undo(self.step, self.steps, ids, before)
        self._journal.append(undo.record())
        told = {"step": self.step + 1, "steps": steps, "squares": squares}
        self._journal.append(Message("applied", told, (ids, *tables)))
        self._copy(ids, tables)
        self._squares = self.step, squares
        self._settle(self.step + 1, steps, undo)

    def _outcome(self, ids: Array, total: Array, steps: int) -> tuple[list[Array], list[Array]]:
        """The rows and moments that a step touches, as they are and as they will be."""
        before = [gather_rows(table, ids) for table in self._tables]
        tables = [table.copy() for table in before]
        if len(ids):
            learn_rows(self.optimiser, self.rate, steps, tables, np.arange(len(ids)), total, self.decay)
        return before, tables

    def _current(self, tables: list[Array]) -> list[Array]:
        """Copies of some rows, their moments and, where every step changes every row, their last step: brought up to
        date.

        Mapped tables are not changed: they may only change as the journal records.
        """
        if not self._moves_every_row:
            return tables
        catch_up(self.optimiser, self.rate, self.steps, tables, np.arange(len(tables[0])), self.decay)
        return tables[:-1]

    def _copy(self, ids: Array, tables: list[Array]) -> None:
        for own, new in zip(self._tables, tables, strict=True):
            spread_rows(new, ids, own)

    def _settle(self, step: int, steps: int, undo: Undo | None) -> None:
        """Begin a journal which says that the tables are those before `step`."""
        self.step, self.steps, self._undo = step, steps, undo
        self._staged.clear()
        self._journal.replace([self._clock(), *([] if undo is None else [undo.record()])])

    def _clock(self, **instead: Any) -> Message:
        now = {"step": self.step, "steps": self.steps, "restoring": self._restoring, "past": self._past}
        now["squares"] = list(self._squares)
        return Message("clock", {**self._about, **now, **instead})


def chunks(count: int, width: int, tables: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose share of so many tables is about a megabyte; one empty range if there are no rows."""
    size = max(1, (1 << 20) // max(1, width * 4 * tables))
    yield 0, min(count, size)
    for start in range(size, count, size):
        yield start, min(count, start + size)


def _covers(ranges: dict[int, int], count: int) -> bool:
    """Whether ranges (stops by start) cover 0..count."""
    end = 0
    for start in sorted(ranges):
        if start > end:
            return False
        end = max(end, ranges[start])
    return end >= count
