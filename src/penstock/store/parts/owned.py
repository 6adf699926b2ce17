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
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.output_files import open_lock
from penstock.kernels import njit
from penstock.store.embedding import MOMENTS, Optimiser, catch_up, check_optimiser, draw_rows, learn_rows
from penstock.store.files import rows_in_file
from penstock.store.parts.journal import Journal, UnreadableRecord, write_journal
from penstock.store.rows import check_rows, gather_rows, spread_rows
from penstock.wire.message import Message

JOURNAL = "journal"


class PushMissing(PenstockError):  # noqa: N818
    """A step cannot be applied: not every rank's gradients are there."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="step-conflict")


class DamagedEmbedding(PenstockError):  # noqa: N818
    """The files of an embedding are not as they were left: its rows must come from a checkpoint."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="damaged-file")


class StepPast(PenstockError):  # noqa: N818
    """Rows of a step were asked for after it had been applied."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="step-conflict")


class Push(NamedTuple):
    """What one rank learned in one step."""

    step: int
    rank: int
    world: int
    learned: bool
    """Whether the rank's batch had vertices of this type, in whatever part."""
    ids: Array
    gradients: Array
    clipped: bool = False
    """Whether the step waits for a factor that all ranks' gradients are multiplied by."""


class _Undo(NamedTuple):
    """Rows that a step touches, as they and their moments were before it; and the optimiser steps then."""

    step: int
    steps: int
    ids: Array
    tables: list[Array]

    def record(self) -> Message:
        """The undo information as a journal record."""
        return Message("undo", {"step": self.step, "steps": self.steps}, (self.ids, *self.tables))


class OwnedEmbedding:
    """A part's rows of an embedding table with their moments, in files in a folder of their own.

    `names` are the original numbers of the part's vertices. Any thread may call; every call may be made twice.
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
    ) -> None:
        check_optimiser(optimiser)
        self.name, self.optimiser, self.rate, self.decay = name, optimiser, rate, decay
        self.step = self.steps = 0
        """The step that the rows stand before; and how many optimiser steps they have had."""
        self._about: dict[str, Any] = {
            "table": name, "count": len(names), "names": zlib.crc32(np.ascontiguousarray(names, np.int64).data),
            "width": width, "optimiser": optimiser, "seed": seed, "decay": decay,
        }  # fmt: skip
        self._staged: dict[int, Push] = {}
        self._factor: float | None = None
        self._total: tuple[Array, Array] | None = None
        """What is staged, summed, once somebody has asked for its squares."""
        self._squares: tuple[int, float] = -1, 0.0
        """The last step that was applied, and the sum of its gradients' squares."""
        self._undo: _Undo | None = None
        self._round = 0
        self._restoring = ""
        self._covered: dict[int, int] = {}
        self._past: dict[str, bool] = {}
        """Restorings there were, and whether each came to its end: their messages may still be on their way."""
        self._lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)
        self._key = _locked(folder)
        try:
            path = folder / JOURNAL
            new = not path.exists()
            if new:
                _clear(folder)
            self._tables = _tables(folder, (len(names), width), MOMENTS[optimiser], decay > 0, new)
            if new:
                draw_rows(name, seed, names, self._tables[0])
                write_journal(path, [self._clock()])
            self._journal = _opened(path)
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
        """The rows before `step`, mapped; with a decay, each as it was after the last step that touched it."""
        return self._tables[0]

    @property
    def moments(self) -> list[Array]:
        """What the optimiser keeps beside the rows, mapped."""
        return self._tables[1 : 1 + MOMENTS[self.optimiser]]

    def pull(self, ids: Array, step: int, out: Array) -> Array:
        """Rows before a step, by number in the part, into `out`; applies what lies before it where that is to do."""
        with self._lock:
            self.reach(step)
            if self.decay:
                out[...] = self._current([gather_rows(table, ids) for table in self._tables])[0]
                return out
            return gather_rows(self.rows, ids, out)

    def push(self, push: Push) -> None:
        """Stage gradients, in place of those that the rank pushed for the step before; returns when they are safe."""
        self._check(push)
        with self._lock:
            if push.step < self.step:
                return
            self.reach(push.step)
            self._journal.append(_staged(push))
            self._stage(push)

    def squares(self, step: int) -> float:
        """The sum of the squares of a step's gradients, those of all ranks added up; of the last step, if it is past.

        A rank may ask when all have pushed, and another may then have gone on already.
        """
        with self._lock:
            if step == self.step - 1 and self._squares[0] == step:
                return self._squares[1]
            self.reach(step)
            self._total = self._total or self._summed(self._complete())
            return _squared(self._total[1])

    def shrink(self, step: int, factor: float) -> None:
        """Have a step's gradients multiplied by a factor; again is no harm, as all ranks come to the same one."""
        with self._lock:
            if step < self.step:
                return
            self.reach(step)
            self._journal.append(_shrunk(step, factor))
            self._factor = factor

    def reach(self, step: int) -> None:
        """Apply what lies before a step. Raises PushMissing, or StepPast if the rows are beyond it."""
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

    def stand(self, step: int, number: int) -> None:
        """The ranks have met for the round of this number, and stand before a step: go back by one if need be."""
        with self._lock:
            # Older rounds' messages may still be on their way.
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
        """Take rows (and moments) from `start` on from a checkpoint; True when, with those before, these are all.

        `token` names the restoring: the rows of one restoring come in any order, and each as often as it will.
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
            if self.decay:
                self._tables[-1][start:stop] = steps
            self._journal.append(Message("restored", {"start": start, "stop": stop}))
            self._covered[start] = max(stop, self._covered.get(start, 0))
            if not _covers(self._covered, len(self.rows)):
                return False
            self._stand(step, steps, "", {**self._past, token: True})
            return True

    def _begin_restoring(self, token: str) -> None:
        """From now on the rows are of no step, until all of them have come."""
        superseded = {self._restoring: False} if self._restoring else {}
        self._stand(self.step, self.steps, token, {**self._past, **superseded})
        self._covered = {}

    def _stand(self, step: int, steps: int, restoring: str, past: dict[str, bool]) -> None:
        """Be somewhere else altogether: first in the journal, for if that fails nothing may have changed."""
        self._journal.replace([self._clock(step=step, steps=steps, restoring=restoring, past=past)])
        self.step, self.steps, self._restoring, self._past = step, steps, restoring, past
        self._unstage()
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
        """Let go of the files, as a kill would. Again is no harm."""
        with self._lock:
            self._journal.close()
            if self._key >= 0:
                os.close(self._key)
                self._key = -1

    def _recover(self, folder: Path) -> None:
        """Take up what the journal says."""
        if not self._journal.records or self._journal.records[0].kind != "clock":
            raise DamagedEmbedding(f"{folder / JOURNAL} is damaged")
        head, *rest = self._journal.records
        self._journal.records = []
        # Journals of releases without a decay do not speak of it.
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
                self._stage(_push(record))
            elif record.kind == "shrunk":
                self._factor = record.body["factor"]
            elif record.kind == "restored":
                self._covered[record.body["start"]] = record.body["stop"]
            elif record.kind == "undo":
                self._undo = _undo(record)
            elif record.kind == "applied":
                self._copy(record.arrays[0], list(record.arrays[1:]))
                self.step, self.steps = record.body["step"], record.body["steps"]
                # A step that was taken back has none.
                told = record.body.get("squares")
                self._squares = (-1, 0.0) if told is None else (self.step - 1, told)
                self._unstage()
        if any(record.kind == "applied" for record in rest):
            undo = [] if self._undo is None else [self._undo.record()]
            shrunk = [] if self._factor is None else [_shrunk(self.step, self._factor)]
            self._journal.replace([self._clock(), *undo, *map(_staged, self._staged.values()), *shrunk])

    def _stage(self, push: Push) -> None:
        if any(other.world != push.world for other in self._staged.values()):
            # The step is done again by more or fewer: nothing of the first attempt counts.
            self._staged.clear()
        self._staged[push.rank], self._total = push, None

    def _unstage(self) -> None:
        """What was staged is applied, or counts no more."""
        self._staged.clear()
        self._factor = self._total = None

    def _check(self, push: Push) -> None:
        check_rows(self.rows, push.ids)
        if len(push.ids) and not push.learned:
            raise PenstockError(
                f"Rank {push.rank} pushes rows of {self.name!r}, but its header says that it has none.",
                code="malformed-message",
            )
        if not 0 <= push.rank < push.world:
            raise PenstockError(
                f"Rank {push.rank} is not one of {push.world} ranks, which count from 0.", code="malformed-message"
            )
        if push.gradients.shape != (len(push.ids), self.rows.shape[1]) or push.gradients.dtype != np.float32:
            raise PenstockError(
                f"Gradients of {push.gradients.dtype} {push.gradients.shape} do not fit {len(push.ids)} rows of"
                f" {self.rows.shape[1]} float32 of {self.name!r}.",
                code="shape-mismatch",
            )

    def _apply(self) -> None:
        """One step: outcome to the journal, to the tables, and a new journal."""
        pushes = self._complete()
        steps = self.steps + any(push.learned for push in pushes)
        if self._factor is None and any(push.clipped for push in pushes):
            raise PushMissing(f"Step {self.step} of the embeddings of {self.name!r} has no factor: do the step again.")
        ids, total = self._total or self._summed(pushes)
        squares = _squared(total)
        if self._factor is not None:
            total = total * np.float32(self._factor)
        before, tables = self._outcome(ids, total, steps)
        undo = _Undo(self.step, self.steps, ids, before)
        self._journal.append(undo.record())
        told = {"step": self.step + 1, "steps": steps, "squares": squares}
        self._journal.append(Message("applied", told, (ids, *tables)))
        self._copy(ids, tables)
        self._squares = self.step, squares
        self._settle(self.step + 1, steps, undo)

    def _complete(self) -> list[Push]:
        """The staged pushes in order of rank, if there is one of every rank."""
        world = next((push.world for push in self._staged.values()), 1)
        missing = [rank for rank in range(world) if rank not in self._staged]
        if missing:
            who = ", ".join(map(str, missing))
            of = f" of {world}" if self._staged else ""
            raise PushMissing(
                f"Step {self.step} of the embeddings of {self.name!r} cannot be applied: no gradients came from rank"
                f" {who}{of}. Do the step again."
            )
        return [self._staged[rank] for rank in range(world)]

    def _summed(self, pushes: list[Push]) -> tuple[Array, Array]:
        """The rows that a step touches, and the gradient of each."""
        ids, place = np.unique(np.concatenate([push.ids for push in pushes]), return_inverse=True)
        total = np.zeros((len(ids), self.rows.shape[1]), np.float32)
        _add(np.concatenate([push.gradients for push in pushes]), place, total)
        return ids, total

    def _outcome(self, ids: Array, total: Array, steps: int) -> tuple[list[Array], list[Array]]:
        """What the rows that a step touches and their moments are and will be."""
        before = [gather_rows(table, ids) for table in self._tables]
        tables = [table.copy() for table in before]
        if len(ids):
            learn_rows(self.optimiser, self.rate, steps, tables, np.arange(len(ids)), total, self.decay)
        return before, tables

    def _current(self, tables: list[Array]) -> list[Array]:
        """Copies of some rows, their moments and, with a decay, their last steps: rows and moments as they are now.

        What is mapped stays as it is: only what the journal knows of may change there.
        """
        if not self.decay:
            return tables
        catch_up(self.optimiser, self.rate, self.steps, tables, np.arange(len(tables[0])), self.decay)
        return tables[:-1]

    def _copy(self, ids: Array, tables: list[Array]) -> None:
        for own, new in zip(self._tables, tables, strict=True):
            spread_rows(new, ids, own)

    def _settle(self, step: int, steps: int, undo: _Undo | None) -> None:
        """The tables are those before `step`: begin a journal that says so."""
        self.step, self.steps, self._undo = step, steps, undo
        self._unstage()
        self._journal.replace([self._clock(), *([] if undo is None else [undo.record()])])

    def _clock(self, **instead: Any) -> Message:
        now = {"step": self.step, "steps": self.steps, "restoring": self._restoring, "past": self._past}
        now["squares"] = list(self._squares)
        return Message("clock", {**self._about, **now, **instead})


def chunks(count: int, width: int, tables: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose share of so many tables is about a megabyte; an empty one if there are no rows."""
    size = max(1, (1 << 20) // max(1, width * 4 * tables))
    yield 0, min(count, size)
    for start in range(size, count, size):
        yield start, min(count, start + size)


def _tables(folder: Path, shape: tuple[int, int], moments: int, decays: bool, new: bool) -> list[Array]:
    """Rows and moments; and, where rows decay, the step that each was last brought to."""
    shapes = {"rows": shape, **{f"moment{i}": shape for i in range(moments)}}
    if decays:
        shapes["last"] = (shape[0], 1)
    tables = {}
    for name, (rows, columns) in shapes.items():
        file, size = folder / f"{name}.f32", rows * columns * 4
        # A file that is shorter would be made anew, of zeros.
        if not new and (not file.exists() or file.stat().st_size != size):
            raise DamagedEmbedding(f"{file} is damaged (it does not have {size:,} bytes)")
        tables[name] = rows_in_file(file, (rows, columns))
    if decays:
        tables["last"] = tables["last"].view(np.int32)
    return list(tables.values())


def _opened(path: Path) -> Journal:
    try:
        return Journal(path)
    except UnreadableRecord as error:
        raise DamagedEmbedding(f"{path} is damaged ({error})") from None


def _clear(folder: Path) -> None:
    """Remove what a process left that was killed before its tables were complete."""
    for path in folder.glob("*.f32"):
        path.unlink()


def _covers(ranges: dict[int, int], count: int) -> bool:
    """Whether ranges (stops by start) are all of 0..count."""
    end = 0
    for start in sorted(ranges):
        if start > end:
            return False
        end = max(end, ranges[start])
    return end >= count


def _locked(folder: Path) -> int:
    """A lock that ends with the process: two must never write one journal."""
    try:
        return open_lock(folder / "lock")
    except BlockingIOError:
        raise PenstockError(
            f"{folder} is in use by another process: end that one, or name another folder.", code="in-use"
        ) from None


def _staged(push: Push) -> Message:
    body = {"step": push.step, "rank": push.rank, "world": push.world, "learned": push.learned}
    body["clipped"] = push.clipped
    return Message("staged", body, (push.ids, push.gradients))


def _push(record: Message) -> Push:
    body = record.body
    who = body["step"], body["rank"], body["world"], body["learned"]
    return Push(*who, record.arrays[0], record.arrays[1], body.get("clipped", False))


def _shrunk(step: int, factor: float) -> Message:
    return Message("shrunk", {"step": step, "factor": factor})


def _squared(total: Array) -> float:
    return float(np.square(total, dtype=np.float64).sum())


def _undo(record: Message) -> _Undo:
    return _Undo(record.body["step"], record.body["steps"], record.arrays[0], list(record.arrays[1:]))


@njit(nogil=True, cache=True)
def _add(gradients: Array, place: Array, total: Array) -> None:
    """Sum rows that are one vertex's, in the order of ranks."""
    for i in range(len(place)):
        for k in range(total.shape[1]):
            total[place[i], k] += gradients[i, k]
