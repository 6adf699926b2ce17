"""Checkpoints: the newest few and the best model, each a file that appears whole."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.graph.output_files import writing
from penstock.progress import SILENT, Progress
from penstock.train.state_file import DamagedState, read_state, write_state
from penstock.train.train_state import TrainState, checked_train_state

FIRST_S = 10.0
"""Seconds until the first checkpoint of a process by time. Each further one takes twice as long as the one before,
until there are `checkpoint_minutes` between them: a job that is killed early has little to do again."""
_SHARE = 0.02
"""Of a run's time that these early checkpoints may take to be written."""


class Checkpoints:
    """Writes when a number of steps or some time has passed; keeps the newest `keep`."""

    def __init__(
        self, folder: Path, steps: int, minutes: float, keep: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._steps, self._seconds, self._keep, self._clock = folder, steps, minutes * 60, keep, clock
        self._written, self._wait, self._cost = clock(), min(FIRST_S, minutes * 60), 0.0
        self._best_of: list[int] = []

    def due(self, step: int) -> bool:
        """Whether one should be written after so many steps."""
        wait = min(self._seconds, max(self._wait, self._cost / _SHARE))
        late = self._seconds > 0 and self._clock() - self._written >= wait
        return late or (self._steps > 0 and step % self._steps == 0)

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        """Write a checkpoint whose best model so far is that of an epoch; drop what no checkpoint needs any more."""
        began = self._clock()
        self._write(self._folder / f"step-{step:012d}.ckpt", state)
        self._written = self._clock()
        self._cost = self._written - began
        if step > 0:
            self._wait = min(self._seconds, 2 * self._wait)
        for old in _numbered(self._folder)[: -self._keep]:
            old.unlink(missing_ok=True)
        self._best_of = [*self._best_of, best_epoch][-self._keep :]
        if len(self._best_of) == self._keep:
            needed = {_best_file(self._folder, epoch) for epoch in self._best_of}
            for old in set(self._folder.glob("best-*.ckpt")) - needed:
                old.unlink(missing_ok=True)

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        """Keep the model of an epoch beside those before it, which older checkpoints name."""
        self._write(_best_file(self._folder, epoch), weights)

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        try:
            write_state(path, state)
        except PenstockError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            last = _numbered(self._folder)
            kept = f"the last good one is {last[-1].name}" if last else "there is none before it"
            raise PenstockError(
                f"Checkpoint {path} could not be written: {error.__cause__.strerror or error}; {kept}. Free space,"
                f" then resume with `penstock train --resume {self._folder.parent}`.",
                code="write-failed",
            ) from error


class Checkpoint(NamedTuple):
    """A checkpoint that is whole."""

    file: Path
    state: dict[str, Any]
    train_state: TrainState


Take = Callable[[dict[str, Any], Path], TrainState]
"""Takes the place of a state, which a file names in errors, and returns its train state."""


def _look(state: dict[str, Any], file: Path) -> TrainState:
    """The train state of a checkpoint whose weights nobody takes yet."""
    return checked_train_state(state.get("standing"), file)


def take_newest(folder: Path, progress: Progress, take: Take = _look) -> Checkpoint:
    """The newest checkpoint that can be read and taken, from which a run resumes; a note names newer ones.

    Those are renamed: they must not count among the checkpoints that are kept.
    """
    found, unreadable = _newest_whole(folder, take)
    for file, error in unreadable:
        progress.note(f"{_of(file, error)}: the run resumes from {found.file.name} instead.")
        with writing(file):
            file.replace(file.with_name(f"{file.name}.damaged"))
    return found


def read_best(folder: Path, progress: Progress = SILENT) -> dict[str, Any]:
    """The weights of the best model by the newest whole checkpoint; its own where none was chosen yet.

    Where the file of the best model is damaged it is an older one's, or the checkpoint's own, and a note says so.
    """
    found, unreadable = _newest_whole(folder)
    for file, error in unreadable:
        progress.note(f"{_of(file, error)}: {found.file.name} is used instead.")
    # The last digits are the epoch's.
    files = sorted(folder.glob("best-*.ckpt"), reverse=True)
    chosen = _best_file(folder, found.train_state.best_epoch)
    for file in [chosen, *(each for each in files if each < chosen)] if found.train_state.best_epoch >= 0 else []:
        try:
            state = read_state(file)
        except PenstockError as error:
            progress.note(f"{_of(file, error)}: an older model is used instead of the best.")
            continue
        return state
    return found.state


def _newest_whole(folder: Path, take: Take = _look) -> tuple[Checkpoint, list[tuple[Path, PenstockError]]]:
    """The newest checkpoint that can be read and taken, and the newer ones that cannot."""
    unreadable: list[tuple[Path, PenstockError]] = []
    for file in reversed(_numbered(folder)):
        try:
            state = read_state(file)
            return Checkpoint(file, state, take(state, file)), unreadable
        except PenstockError as error:
            unreadable.append((file, error))
    # Of whole ones that do not fit, the job, the graph or the release is another: that can be mended.
    for _, refusal in unreadable:
        if not isinstance(refusal, DamagedState):
            raise refusal
    if unreadable:
        raise PenstockError(
            f"{unreadable[0][1]}, and no older checkpoint is intact: start the run again.", code="damaged-file"
        )
    raise PenstockError(
        f"{folder.parent} has no checkpoint to resume from: start the run again.", code="file-not-found"
    )


def _of(file: Path, error: PenstockError) -> str:
    """Why a checkpoint is not used, as a sentence that goes on."""
    return str(error) if isinstance(error, DamagedState) else f"{file} is not used ({str(error).removesuffix('.')})"


def _best_file(folder: Path, epoch: int) -> Path:
    return folder / f"best-{epoch:06d}.ckpt"


def _numbered(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.ckpt"))
