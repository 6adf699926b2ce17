"""The worker's side of learnable rows: one table over all parts, updated synchronously."""

import threading
from collections import deque
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.partition.owners import Book, split_by_owner
from penstock.store.embedding import MOMENTS, Optimiser
from penstock.store.parts.owned import chunks
from penstock.store.parts.requests import (
    Channels,
    Expected,
    Traffic,
    arrived,
    ask_rows,
    encoding_for,
    far_rows,
    receive_rows,
)
from penstock.store.rows import gather_rows, place_rows
from penstock.wire.channel import PendingCall
from penstock.wire.message import Message

_AT_ONCE = 8
"""Messages of a restore that may be in flight."""


class RemoteEmbedding:
    """The table of a node type, by new number. Steps of a run are counted from 0.

    In every step each rank of `world` pushes once, before the ranks agree that the step is done; only then does any of
    them pull for the next one, and the owners apply what was pushed. Repeating a step replaces its gradients.
    """

    def __init__(
        self,
        name: str,
        book: Book,
        width: int,
        optimiser: Optimiser,
        channels: Channels,
        names: Array | None = None,
    ) -> None:
        """With `names`, the vertices' original numbers, states are those of the unpartitioned graph's table."""
        self.name, self.width, self._channels, self._names = name, width, channels, names
        self._keys = ["rows", *(f"moment{i}" for i in range(MOMENTS[optimiser]))]
        self._bounds = book.bounds(name)
        self._traffic, self._lock = Traffic(), threading.Lock()

    def pull(self, ids: Array, step: int, out: Array | None = None) -> Array:
        """Rows before a step, into `out` if given; RemoteError of type PushMissing if a rank's
        gradients are missing.
        """
        if out is None:
            out = np.empty((len(ids), self.width), np.float32)
        elif out.shape != (len(ids), self.width) or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise PenstockError(
                f"Rows of {self.width} float32 do not fit a buffer of {out.dtype} {out.shape}.", code="shape-mismatch"
            )
        split = split_by_owner(ids, self._bounds, np.ones(self._parts, np.bool_))
        wanted = far_rows(split, range(self._parts))
        asked = ask_rows(self._channels, wanted, lambda part: self._message("embed-pull", part, step))
        way = encoding_for("stored", out.dtype, (self.width,), None)
        for each in asked:
            self._count(len(each.places), receive_rows(each, way, out))
        place_rows(out, split.first, split.again, out)
        return out

    def push(
        self, ids: Array, gradients: Array | None, step: int, rank: int, world: int, clipped: bool = False
    ) -> None:
        """Send a rank's gradients of a step to the owners; those of a repeated vertex are summed.

        None: the rank's batch had no vertices of this type. If no rank's had any, no optimiser step is made. If
        `clipped`, the step waits for `shrink`.
        """
        learned = gradients is not None
        gradients = np.zeros((0, self.width), np.float32) if gradients is None else gradients
        ids = ids if learned else ids[:0]
        if gradients.shape != (len(ids), self.width):
            raise PenstockError(
                f"Gradients of shape {gradients.shape} do not fit {len(ids)} rows of {self.name!r}.",
                code="shape-mismatch",
            )
        gradients = np.ascontiguousarray(gradients, np.float32)
        split = split_by_owner(ids, self._bounds)
        calls = []
        for part in range(self._parts):
            # Owners without rows in the step count it too.
            rows, places = split.of(part)
            body = {"rank": rank, "world": world, "learned": learned, "clipped": clipped}
            request = self._message("embed-push", part, step, (rows, gather_rows(gradients, places)), **body)
            calls.append(self._channels(part).start(request))
        for call in calls:
            call.result()

    def squares(self, step: int) -> float:
        """The sum of the squares of a step's gradients, once every rank has pushed: the same for all ranks."""
        return sum(float(answer.body["squares"]) for answer in self._tell_all("embed-squares", step))

    def shrink(self, step: int, factor: float) -> None:
        """Have the owners multiply a step's gradients by a factor, which all ranks have computed."""
        self._tell_all("embed-shrink", step, factor=factor)

    def begin_round(self, step: int, number: int) -> None:
        """Tell all owners that the ranks begin the round of this number before a step."""
        self._tell_all("embed-round", step, round=number)

    def _tell_all(self, kind: str, step: int, **body: Any) -> list[Message]:
        calls = [self._channels(part).start(self._message(kind, part, step, **body)) for part in range(self._parts)]
        return [call.result() for call in calls]

    def stream(self, step: int) -> Iterator[tuple[int, int, list[Array]]]:
        """The state before a step in pieces: (first new number, optimiser steps, [rows, moments...])."""
        asked = [self._channels(part).start(self._message("embed-state", part, step)) for part in range(self._parts)]
        for part, answer in enumerate(asked):
            shape = (int(self._bounds[part + 1] - self._bounds[part]), self.width)
            for (start, stop), piece in zip(chunks(*shape, len(self._keys)), answer.parts(), strict=True):
                expected: list[Expected] = [((stop - start, self.width), np.dtype(np.float32))] * len(self._keys)
                tables = arrived(piece.arrays, expected)
                yield int(self._bounds[part]) + start, int(piece.body["steps"]), list(tables)

    def state(self, step: int) -> dict[str, Array | int]:
        """Everything a checkpoint must hold, in the form of an EmbeddingTable."""
        found = {key: np.empty((int(self._bounds[-1]), self.width), np.float32) for key in self._keys}
        steps = set()
        for start, taken, tables in self.stream(step):
            steps.add(taken)
            place = self._place(start, start + len(tables[0]))
            for key, table in zip(self._keys, tables, strict=True):
                found[key][place] = table
        if len(steps) != 1:
            raise PenstockError(
                f"The parts of {self.name!r} are at different steps ({sorted(steps)}): restore a checkpoint.",
                code="step-conflict",
            )
        return {"steps": steps.pop(), **found}

    def restore(self, state: dict[str, Array | int], step: int) -> None:
        """Have all owners load a stored state before a step; returns when they have."""
        tables = self._stored(state)
        token, calls = token_hex(8), deque[PendingCall]()
        for part in range(self._parts):
            first, last = int(self._bounds[part]), int(self._bounds[part + 1])
            complete = False
            for start, stop in chunks(last - first, self.width, len(tables)):
                place = self._place(first + start, first + stop)
                arrays = tuple(np.ascontiguousarray(table[place], np.float32) for table in tables)
                body: dict[str, Any] = {"token": token, "start": start, "steps": int(state["steps"])}
                calls.append(self._channels(part).start(self._message("embed-restore", part, step, arrays, **body)))
                if len(calls) >= _AT_ONCE:
                    complete |= _complete(calls.popleft())
            while calls:
                complete |= _complete(calls.popleft())
            if not complete:
                raise PenstockError(
                    f"Part {part} did not accept all embeddings of {self.name!r}: restore them again.",
                    code="step-conflict",
                )

    def traffic(self) -> Traffic:
        """What pulls have transferred so far."""
        with self._lock:
            return self._traffic

    @property
    def _parts(self) -> int:
        return len(self._bounds) - 1

    def _place(self, start: int, stop: int) -> Any:
        """The positions of new numbers in a state."""
        return slice(start, stop) if self._names is None else self._names[start:stop]

    def _stored(self, state: dict[str, Array | int]) -> list[Array]:
        found = [state.get(key) for key in self._keys]
        shape = (int(self._bounds[-1]), self.width)
        tables = [table for table in found if isinstance(table, np.ndarray) and table.shape == shape]
        if len(tables) != len(found) or not isinstance(state.get("steps"), int):
            raise PenstockError(
                f"The checkpoint's embeddings of {self.name!r} do not have the shape that the graph needs: use a"
                " checkpoint of this run.",
                code="mismatched-inputs",
            )
        return tables

    def _message(self, kind: str, part: int, step: int, arrays: tuple[Array, ...] = (), **body: Any) -> Message:
        return Message(kind, {"table": self.name, "part": part, "step": step, **body}, arrays)

    def _count(self, rows: int, size: int) -> None:
        with self._lock:
            self._traffic = self._traffic.plus(rows, size, rows * self.width * 4)


def _complete(call: PendingCall) -> bool:
    return bool(call.result().body.get("complete"))
