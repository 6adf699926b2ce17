"""The owner's side of learnable rows: what it answers for the parts that it holds."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.output_files import make_private_folder
from penstock.graph.schema import file_name
from penstock.partition.folder import Partition
from penstock.store.embedding import Optimiser
from penstock.store.initial_rows import InitialRows
from penstock.store.parts.embedding_files import JOURNAL, DamagedEmbedding, Push
from penstock.store.parts.owned import OwnedEmbedding, chunks
from penstock.store.parts.requests import Restore, RoundRequest, Shrink, Staged, TableRequest, checked, row_numbers
from penstock.store.parts.send_buffers import SendBuffers, rows_a_part
from penstock.store.rows import check_rows
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

Tables = Mapping[tuple[str, int], OwnedEmbedding]
"""By table, which is a node type, and part."""


def own_embedding(
    folder: Path,
    partition: Partition,
    part: int,
    table: str,
    width: int,
    optimiser: Optimiser,
    rate: float,
    seed: int,
    decay: float = 0.0,
    damaged: Callable[[DamagedEmbedding], None] | None = None,
    initial: InitialRows | None = None,
) -> OwnedEmbedding:
    """A part's share of the table of a node type, in a folder of its own below `folder`: as it was left, or new.

    Where its files are damaged, `damaged` is told and may refuse; if it does not, the rows begin anew, and whoever
    asked for that restores them from a checkpoint.
    """
    names = partition.original(table)[slice(*partition.book.range(part, table))]
    own = make_private_folder(make_private_folder(folder / file_name(table)) / f"part{part}")
    given = own, table, names, width, optimiser, rate, seed, decay, initial
    try:
        return OwnedEmbedding(*given)
    except DamagedEmbedding as error:
        if damaged is None:
            raise
        damaged(error)
        (own / JOURNAL).unlink()
        return OwnedEmbedding(*given)


class EmbeddingService:
    """Answers `embed-pull`, `-push`, `-squares`, `-shrink`, `-round`, `-state` and `-restore`.

    Rows are numbered inside their part.
    """

    def __init__(self, endpoint: Endpoint, tables: Tables) -> None:
        self._tables, self._name, self._buffers = tables, endpoint.name, SendBuffers()
        for kind in ("pull", "push", "squares", "shrink", "round", "state", "restore"):
            endpoint.serve(f"embed-{kind}", getattr(self, f"_{kind}"))

    def _pull(self, request: Message, sender: str) -> Iterator[Message]:
        asked = checked(request, TableRequest)
        owned, rows = self._owned(asked), row_numbers(request)
        check_rows(owned.rows, rows)
        owned.reach(asked.step)
        return self._parts(owned, rows, asked.step)

    def _parts(self, owned: OwnedEmbedding, rows: Array, step: int) -> Iterator[Message]:
        width = owned.rows.shape[1]
        count = rows_a_part(4 * width)
        for start in range(0, len(rows), count):
            some = rows[start : start + count]
            buffer = self._buffers.take(4 * width * len(some))
            out = buffer[: 4 * width * len(some)].view(np.float32).reshape(len(some), width)
            try:
                owned.pull(some, step, out)
            except PenstockError:
                self._buffers.give(buffer)
                raise
            yield Message("rows", {}, (out,), done=lambda buffer=buffer: self._buffers.give(buffer))  # type: ignore[misc]

    def _push(self, request: Message, sender: str) -> Message:
        asked = checked(request, Staged)
        ids = row_numbers(request, 2)
        push = Push(asked.step, asked.rank, asked.world, asked.learned, ids, request.arrays[1], asked.clipped)
        self._owned(asked).push(push)
        return Message("staged")

    def _squares(self, request: Message, sender: str) -> Message:
        asked = checked(request, TableRequest)
        return Message("squares", {"squares": self._owned(asked).squares(asked.step)})

    def _shrink(self, request: Message, sender: str) -> Message:
        asked = checked(request, Shrink)
        self._owned(asked).shrink(asked.step, asked.factor)
        return Message("shrunk")

    def _round(self, request: Message, sender: str) -> Message:
        asked = checked(request, RoundRequest)
        self._owned(asked).begin_round(asked.step, asked.round)
        return Message("round")

    def _state(self, request: Message, sender: str) -> Iterator[Message]:
        asked = checked(request, TableRequest)
        owned = self._owned(asked)
        owned.reach(asked.step)
        return self._state_parts(owned, asked.step)

    def _state_parts(self, owned: OwnedEmbedding, step: int) -> Iterator[Message]:
        for start, stop in chunks(len(owned.rows), owned.rows.shape[1], 1 + len(owned.moments)):
            tables = owned.read(start, stop, step)
            yield Message("state", {"start": start, "steps": owned.steps}, tuple(tables))

    def _restore(self, request: Message, sender: str) -> Message:
        asked = checked(request, Restore)
        if not request.arrays:
            raise PenstockError("An 'embed-restore' request needs rows and their moments.", code="malformed-message")
        owned = self._owned(asked)
        complete = owned.restore(asked.token, asked.start, list(request.arrays), asked.step, asked.steps)
        return Message("restored", {"complete": complete})

    def _owned(self, asked: TableRequest) -> OwnedEmbedding:
        owned = self._tables.get((asked.table, asked.part))
        if owned is None:
            has = ", ".join(f"{table} of part {part}" for table, part in self._tables) or "none"
            raise PenstockError(
                f"{self._name} has no embeddings {asked.table!r} of part {asked.part} (it has {has}).",
                code="not-available",
            )
        return owned
