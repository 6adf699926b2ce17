"""Checkpoints: the newest few and the best model, each a file that appears whole."""

import time
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.train.standing import checked_standing
from penstock.train.state_file import read_state, write_state


class Checkpoints:
    """Writes when a number of steps or minutes has passed; keeps the newest `keep`."""

    def __init__(self, folder: Path, steps: int, minutes: float, keep: int) -> None:
        self._folder, self._steps, self._seconds, self._keep = folder, steps, minutes * 60, keep
        self._written = time.monotonic()
        self._best_of: list[int] = []

    def due(self, step: int) -> bool:
        """Whether one should be written after so many steps."""
        late = self._seconds > 0 and time.monotonic() - self._written >= self._seconds
        return late or (self._steps > 0 and step % self._steps == 0)

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        """Write a checkpoint whose best model so far is that of an epoch; drop what no checkpoint needs any more."""
        self._write(self._folder / f"step-{step:012d}.ckpt", state)
        self._written = time.monotonic()
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
        except OSError as error:
            last = _numbered(self._folder)
            kept = f"the last good one is {last[-1].name}" if last else "there is none before it"
            raise PenstockError(
                f"Checkpoint {path} could not be written: {error.strerror or error}; {kept}."
                f" Free space, then go on with `penstock train --resume {self._folder.parent}`."
            ) from error


def newest(folder: Path) -> Path:
    """The checkpoint a run goes on from."""
    found = _numbered(folder)
    if not found:
        raise PenstockError(f"{folder.parent} has no checkpoint to go on from: start the run anew.")
    return found[-1]


def read_best(folder: Path) -> dict[str, Any]:
    """The weights of the best model by the newest checkpoint; its own where none was chosen yet."""
    file = newest(folder)
    state = read_state(file)
    epoch = checked_standing(state.get("standing"), file).best_epoch
    return state if epoch < 0 else read_state(_best_file(folder, epoch))


def _best_file(folder: Path, epoch: int) -> Path:
    return folder / f"best-{epoch:06d}.ckpt"


def _numbered(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.ckpt"))
