"""The files of an embedding at its owner: mapped tables, a lock, and what the records of its journal say."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.output_files import open_lock
from penstock.store.files import rows_in_file
from penstock.store.parts.journal import Journal, UnreadableRecord
from penstock.wire.message import Message

JOURNAL = "journal"


class DamagedEmbedding(PenstockError):  # noqa: N818
    """The files of an embedding are not as they were left: its rows must come from a checkpoint."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="damaged-file")


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

    def record(self) -> Message:
        """The push as a journal record."""
        body = {"step": self.step, "rank": self.rank, "world": self.world, "learned": self.learned}
        body["clipped"] = self.clipped
        return Message("staged", body, (self.ids, self.gradients))

    @staticmethod
    def of(record: Message) -> "Push":
        """The push of a journal record."""
        body = record.body
        who = body["step"], body["rank"], body["world"], body["learned"]
        return Push(*who, record.arrays[0], record.arrays[1], body.get("clipped", False))


class Undo(NamedTuple):
    """Rows that a step touches, as they and their moments were before it; and the optimiser steps then."""

    step: int
    steps: int
    ids: Array
    tables: list[Array]

    def record(self) -> Message:
        """The undo information as a journal record."""
        return Message("undo", {"step": self.step, "steps": self.steps}, (self.ids, *self.tables))

    @staticmethod
    def of(record: Message) -> "Undo":
        """The undo information of a journal record."""
        return Undo(record.body["step"], record.body["steps"], record.arrays[0], list(record.arrays[1:]))


def shrunk_record(step: int, factor: float) -> Message:
    """A journal record of the factor that a step's gradients are multiplied by."""
    return Message("shrunk", {"step": step, "factor": factor})


def open_tables(folder: Path, shape: tuple[int, int], moments: int, decays: bool, new: bool) -> list[Array]:
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


def open_journal(path: Path) -> Journal:
    """The journal at `path`, or the sentence that it is damaged."""
    try:
        return Journal(path)
    except UnreadableRecord as error:
        raise DamagedEmbedding(f"{path} is damaged ({error})") from None


def clear_tables(folder: Path) -> None:
    """Remove what a process left that was killed before its tables were complete."""
    for path in folder.glob("*.f32"):
        path.unlink()


def lock_folder(folder: Path) -> int:
    """A lock that ends with the process: two must never write one journal."""
    try:
        return open_lock(folder / "lock")
    except BlockingIOError:
        raise PenstockError(
            f"{folder} is in use by another process: end that one, or name another folder.", code="in-use"
        ) from None
