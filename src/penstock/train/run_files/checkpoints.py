"""Checkpoints: the newest few and the best model, what they keep of a run's progress, and their file format."""

import json
import math
import os
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from pydantic import TypeAdapter, ValidationError

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, read_member
from penstock.graph.documents import first_problem
from penstock.graph.files import open_regular, replace_whole, writing
from penstock.progress import SILENT, Progress

# State files: a zip of named tensors and plain values, with a checksum for each member and without pickle, renamed into
# place when complete.

_DOCUMENT = "state.json"
_FORMAT, _VERSION = "penstock-state", 1
_PLAIN = (bool, int, float, str, type(None))
_DAMAGE = (
    *(
        OSError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        EOFError,
        RuntimeError,
        MemoryError,
        OverflowError,
        RecursionError,
    ),
    *(zipfile.BadZipFile, struct.error),
)
"""Exceptions that reading a damaged zip file raises; a changed version or flag is a RuntimeError."""
_WIDE = {torch.bfloat16: torch.int16}
"""Types NumPy does not have, and what their bits are stored as."""


class DamagedState(PenstockError):  # noqa: N818
    """A state file that is damaged or missing."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="damaged-file")


def write_state(path: Path, state: Mapping[str, Any], durable: bool = True) -> None:
    """Write nested dicts and lists of tensors, arrays and plain values; the file gets its name when it is complete.

    Without `durable` it is not synced: it survives a crash of the process, but perhaps not of the machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, lambda file: pack_state(file, state), durable)


def read_state(path: Path) -> dict[str, Any]:
    """What `write_state` wrote, checked against its checksums; tensors come back as tensors."""
    try:
        with open_regular(path) as file:
            return unpack_state(file, os.fstat(file.fileno()).st_size, str(path))
    except FileNotFoundError:
        raise DamagedState(f"{path} does not exist") from None
    except OSError as error:
        raise DamagedState(f"{path} cannot be read ({error})") from None


def pack_state(file: BinaryIO, state: Mapping[str, Any]) -> None:
    """Write a state to an open file."""
    arrays: dict[str, Array] = {}
    tree = _encode(state, arrays)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)
        archive.writestr(_DOCUMENT, json.dumps({"format": _FORMAT, "version": _VERSION, "state": tree}))


def unpack_state(file: BinaryIO, size: int, where: str) -> dict[str, Any]:
    """Read a state from an open file of `size` bytes; `where` names it in errors."""
    try:
        with zipfile.ZipFile(file) as archive:
            unread = _members(archive, size)
            document = json.loads(archive.read(_DOCUMENT))
            if document.get("format") != _FORMAT or document.get("version") != _VERSION:
                raise PenstockError(
                    f"{where} is not a state file of this release: use the release that wrote it.",
                    code="unsupported-version",
                )
            decoded = _decode(document["state"], archive, unread)
    except _DAMAGE as error:
        raise DamagedState(f"{where} is damaged ({error})") from None
    if not isinstance(decoded, dict):
        raise DamagedState(f"{where} is damaged (it does not hold a mapping)")
    return decoded


def _encode(value: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value.detach().cpu(), arrays)
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"$array": name}
    if isinstance(value, np.generic):
        return _encode(value.item(), arrays)
    if isinstance(value, Mapping):
        return {"$items": [[_encode(key, arrays), _encode(each, arrays)] for key, each in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_encode(each, arrays) for each in value]
    if isinstance(value, _PLAIN):
        return value
    raise PenstockError(
        f"A {type(value).__name__} cannot be stored in a checkpoint: use another optimiser.",
        code="unsupported-combination",
    )


def _encode_tensor(value: torch.Tensor, arrays: dict[str, Array]) -> dict[str, str]:
    name = f"t{len(arrays)}"
    stored = value.view(_WIDE[value.dtype]) if value.dtype in _WIDE else value
    arrays[name] = stored.contiguous().numpy()
    return {"$tensor": name, "dtype": str(value.dtype).removeprefix("torch.")}


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name. Together they are at most as large as the file, which bounds the memory
    that reading takes.
    """
    members = {info.filename: info for info in archive.infolist()}
    if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
        raise ValueError("a member is compressed, and checkpoints are not")
    if sum(info.file_size for info in archive.infolist()) > size:
        raise ValueError("its members are larger than the file")
    return members


def _decode(value: Any, archive: zipfile.ZipFile, unread: dict[str, zipfile.ZipInfo]) -> Any:
    if isinstance(value, list):
        return [_decode(each, archive, unread) for each in value]
    if not isinstance(value, dict):
        return value
    if "$items" in value:
        return {_decode(key, archive, unread): _decode(each, archive, unread) for key, each in value["$items"]}
    # Removed once read: a file that names one array a thousand times must not be read into memory as often.
    array = read_member(archive, unread.pop(f"{value.get('$tensor') or value['$array']}.npy"))
    if "$array" in value:
        return array
    dtype = getattr(torch, value["dtype"])
    tensor = torch.from_numpy(array)
    if tensor.dtype != _WIDE.get(dtype, dtype):
        raise ValueError(f"a tensor of {dtype} is stored as {tensor.dtype}")
    return tensor.view(dtype)


# The progress of a run: everything in a checkpoint except the weights.


@dataclass
class TrainState:
    """The progress of a run: the next batch to compute, sums over the current epoch, and the best model so far."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    examples: int = 0
    epoch_elapsed: float = 0.0
    """Seconds of the current epoch so far, without validation and checkpoints."""
    train_loss: float = math.nan
    best_value: float | None = None
    best_epoch: int = -1
    without_gain: int = 0
    elapsed: float = 0.0
    epoch_seconds: list[float] = field(default_factory=list)
    all_examples: int = 0
    ending: bool = False
    """Whether the epoch's last step is done but its end (validation, learning-rate schedule, record) is not."""
    val_curve: list[float] = field(default_factory=list)
    """Validation metrics so far, while `shuffle: adaptive` waits for their curve to flatten."""
    shuffled_from: int | None = None
    """The first epoch, from 0, that is shuffled because the curve of validations had flattened before it."""
    done: bool = False
    """Whether training is complete, by the number of epochs or by `patience`."""

    @property
    def rate(self) -> float:
        """Examples per second of training so far."""
        spent = sum(self.epoch_seconds) + self.epoch_elapsed
        return self.all_examples / spent if spent else 0.0


def checked_train_state(raw: Any, file: Path) -> TrainState:
    """The train state of a checkpoint, with every number validated."""
    if not isinstance(raw, dict) or set(raw) != {each.name for each in fields(TrainState)}:
        raise PenstockError(
            f"{file} is not a checkpoint of this release: start the run again.", code="unsupported-version"
        )
    try:
        train_state = TypeAdapter(TrainState).validate_python(raw)
    except ValidationError as error:
        raise DamagedState(f"{file} does not hold the run's progress ({first_problem(error)})") from None
    counts = train_state.epoch, train_state.batch, train_state.step, train_state.examples, train_state.all_examples
    if min(counts) < 0 or train_state.step < train_state.epoch or train_state.best_epoch > train_state.epoch:
        raise DamagedState(f"{file} holds impossible values for the run's progress")
    return train_state


# Checkpoints: the newest few and the best model, each a file that appears whole.

START = "start.ckpt"
"""What a run on a cluster begins with if it starts from an earlier run; removed with the first checkpoint."""
FIRST_S = 10.0
"""Seconds until a process writes its first timed checkpoint. The interval doubles until it is `checkpoint_minutes`: a
job that is killed early loses little.
"""
_SHARE = 0.02
"""The largest share of a run's time that these early checkpoints may take."""


class Checkpoints:
    """Writes a checkpoint after a number of steps or minutes, and keeps the newest `keep`."""

    def __init__(
        self, folder: Path, steps: int, minutes: float, keep: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._steps, self._seconds, self._keep, self._clock = folder, steps, minutes * 60, keep, clock
        self._written, self._wait, self._cost = clock(), min(FIRST_S, minutes * 60), 0.0
        self._best_of: list[int] = []

    def due(self, step: int) -> bool:
        """Whether a checkpoint should be written after so many steps."""
        wait = min(self._seconds, max(self._wait, self._cost / _SHARE))
        late = self._seconds > 0 and self._clock() - self._written >= wait
        return late or (self._steps > 0 and step % self._steps == 0)

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        """Write a checkpoint that names the best model's epoch; delete files that no remaining checkpoint needs."""
        began = self._clock()
        self._write(self._folder / f"step-{step:012d}.ckpt", state)
        self._written = self._clock()
        self._cost = self._written - began
        (self._folder / START).unlink(missing_ok=True)
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
        """Write the best model, of this epoch, beside earlier ones, which older checkpoints refer to."""
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
    """A checkpoint that was read completely."""

    file: Path
    state: dict[str, Any]
    train_state: TrainState


Take = Callable[[dict[str, Any], Path], TrainState]
"""Loads a state into a session and returns its train state; the path names the state in errors."""


def _look(state: dict[str, Any], file: Path) -> TrainState:
    """The train state of a checkpoint, without loading its weights."""
    return checked_train_state(state.get("standing"), file)


def take_newest(folder: Path, progress: Progress, take: Take = _look) -> Checkpoint:
    """Load the newest checkpoint that is readable and fits; newer ones are named in a note and renamed."""
    found, unreadable = _newest_whole(folder, take)
    for file, error in unreadable:
        progress.note(f"{_of(file, error)}: the run resumes from {found.file.name} instead.")
        with writing(file):
            file.replace(file.with_name(f"{file.name}.damaged"))
    return found


def read_best(folder: Path, progress: Progress = SILENT) -> dict[str, Any]:
    """The weights of the best model according to the newest readable checkpoint, or its own weights if there is no best
    yet.

    If the file of the best model is damaged, an older best model or the checkpoint's own weights are used, with a note.
    """
    found, unreadable = _newest_whole(folder)
    for file, error in unreadable:
        progress.note(f"{_of(file, error)}: {found.file.name} is used instead.")
    # The name ends with the epoch's number.
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
    """The newest checkpoint that is readable and fits, and the newer ones that are not, with their errors."""
    unreadable: list[tuple[Path, PenstockError]] = []
    for file in reversed(_numbered(folder)):
        try:
            state = read_state(file)
            return Checkpoint(file, state, take(state, file)), unreadable
        except PenstockError as error:
            unreadable.append((file, error))
    # Readable checkpoints that do not fit mean another job, graph or release, which the user can correct: raise that
    # error.
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
    """Why a checkpoint is not used, as the beginning of a sentence."""
    return str(error) if isinstance(error, DamagedState) else f"{file} is not used ({str(error).removesuffix('.')})"


def _best_file(folder: Path, epoch: int) -> Path:
    return folder / f"best-{epoch:06d}.ckpt"


def _numbered(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.ckpt"))
