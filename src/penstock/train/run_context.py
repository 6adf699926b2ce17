"""The device that a run computes on, and process-wide settings that it changes and restores: threads, TF32, generators,
memory, signals.

torch and the C library keep these for the whole process. Runs in several threads of one process share them by rules
that leave each run's results as they would be alone:
- Threads. With OpenMP torch's number belongs to the calling thread, and the process keeps one for future threads. Where
  products are MKL's, theirs is the process's: then concurrent runs must have the same number.
- TF32 is one switch: concurrent runs on GPUs must agree on it.
- Generators are seeded for what is drawn inside `seeded`, and one run at a time is inside.
- Peaks of memory are reset for the whole process, so a measurement passes on to the others what it had counted
  (`memory.Peak`).
- Freed memory is kept until the last run has ended, and then all of it is returned.

Code that draws from torch's generators in a thread beside a run is not protected from it.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.memory import Peak, PeakCounter, freed_memory_kept
from penstock.pipeline.stages import StageError
from penstock.processes import default_threads
from penstock.train.job import Job


@contextmanager
def run_context(job: Job) -> Iterator[None]:
    """Set the job's threads and precision, and restore them and torch's generators afterwards, so that a notebook is
    unaffected.
    """
    threads, before = job.threads or default_threads(), torch.get_num_threads()
    device = chosen_device(job.device)
    with _process.changed:
        _process.enter(threads, device, job.compute_type == "tf32")
        torch.set_num_threads(threads)
    try:
        with freed_memory_kept():
            yield
    finally:
        with _process.changed:
            torch.set_num_threads(before)
            _process.leave()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators for the host and a device within the context; other runs wait until it is left.

    Weights are initialised in it, and users' modules compute in it, since they draw from these generators.
    """
    with _process.drawing:
        seed_generators(seed, device)
        yield


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's generators for the host and a device; the caller ensures that no other run draws from them."""
    with _process.drawing:
        # torch.manual_seed would also format a stack trace for each kind of device.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)


@contextmanager
def generators_kept(device: torch.device | None = None) -> Iterator[None]:
    """Restore torch's generators for the host and a device afterwards; other runs wait until the context is left."""
    gpus = [device] if device is not None and device.type == "cuda" else []
    with _process.drawing, torch.random.fork_rng(devices=gpus):
        yield


def device_peak(device: torch.device) -> Peak:
    """A measurement of the peak bytes of tensors on a GPU from now on, independent of other measurements."""
    with _process.changed:
        counter = _process.peaks.setdefault(
            str(device),
            PeakCounter(
                lambda: torch.cuda.max_memory_allocated(device), lambda: torch.cuda.reset_peak_memory_stats(device)
            ),
        )
    return counter.measure()


@dataclass
class _Process:
    """The runs in progress, and the settings that the process had before the first of them."""

    changed: threading.Lock = field(default_factory=threading.Lock)
    drawing: threading.RLock = field(default_factory=threading.RLock)
    runs: int = 0
    threads: int = 0
    tf32: bool | None = None
    """The TF32 setting of runs on GPUs; None while there are none."""
    given_back: ExitStack = field(default_factory=ExitStack)
    saved: set[str] = field(default_factory=set)
    """Devices whose generators will be restored."""
    peaks: dict[str, PeakCounter] = field(default_factory=dict)

    def enter(self, threads: int, device: torch.device, tf32: bool) -> None:
        """Add a run, or refuse it where its settings conflict with those of others."""
        one_number = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        if self.runs and one_number and threads != self.threads:
            raise PenstockError(
                f"Another run in this process computes with {self.threads} threads, and MKL has one number for all: set"
                f" threads to {self.threads}, or run it in a process of its own.",
                code="in-use",
            )
        on_gpu = device.type == "cuda"
        if on_gpu and self.tf32 is not None and tf32 != self.tf32:
            other, own = ("tf32", "float32") if self.tf32 else ("float32", "tf32")
            raise PenstockError(
                f"Another run in this process computes in {other} and this one in {own}, and torch has one switch for"
                " both: run one after the other, or in processes of their own.",
                code="in-use",
            )
        self.runs += 1
        try:
            self._save(threads, device if on_gpu else None, tf32)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Remove a run; the last one restores the process's settings."""
        self.runs -= 1
        if not self.runs:
            self.given_back.close()
            self.saved.clear()
            self.tf32 = None

    def _save(self, threads: int, gpu: torch.device | None, tf32: bool) -> None:
        """Save the settings that no run has saved yet, and set TF32."""
        if self.runs == 1:
            self.threads = threads
            # A new thread has the number for future threads, and setting it there affects no existing thread.
            self.given_back.callback(_in_new_thread, torch.set_num_threads, _in_new_thread(torch.get_num_threads))
            self.given_back.callback(torch.set_rng_state, torch.get_rng_state())
        if gpu is not None and str(gpu) not in self.saved:
            self.saved.add(str(gpu))
            self.given_back.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state(gpu), gpu)
        if gpu is not None and self.tf32 is None:
            matmul = torch.backends.cuda.matmul
            self.given_back.callback(setattr, matmul, "allow_tf32", matmul.allow_tf32)
            matmul.allow_tf32 = self.tf32 = tf32


_process = _Process()


def _in_new_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a new thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call(*arguments)))
    thread.start()
    thread.join()
    return found[0]


# The device that a job names.


def chosen_device(name: str) -> torch.device:
    """The device of a job; `auto` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise PenstockError(f"There is no device {name!r}: use auto, cpu or cuda.", code="unknown-name") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise PenstockError(f"Device {name!r} is not supported: use auto, cpu or cuda.", code="unsupported-combination")
    if not torch.cuda.is_available():
        raise PenstockError(
            f"Device {name!r} does not exist, or torch was built without CUDA: use auto or cpu.",
            code="device-not-found",
        )
    if device.index:
        # Each thread would have to set its device; CUDA_VISIBLE_DEVICES sets it for the whole process.
        raise PenstockError(
            f"Device {name!r} is not the first GPU: set CUDA_VISIBLE_DEVICES={device.index} and use device cuda.",
            code="unsupported-combination",
        )
    return device


# The memory of a GPU: what there is, and what may still be taken.

UNKNOWN = 1 << 62
"""Assumed bytes of a GPU whose memory is not known: everything fits."""


def device_memory_of(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU that this process can still allocate, and its total."""
    assumed = _assumed.get()
    if assumed is not None:
        size, used = assumed
        return size - used(), size
    free, total = torch.cuda.mem_get_info(device)
    # Memory that torch has cached can be allocated as well.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total


def is_assumed() -> bool:
    """Whether the memory of GPUs is assumed (`assumed_memory`) rather than queried."""
    return _assumed.get() is not None


@contextmanager
def assumed_memory(size: int, used: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Within this context every GPU is taken to have `size` bytes, `used()` of them taken; no GPU needs to exist."""
    token = _assumed.set((size, used))
    try:
        yield
    finally:
        _assumed.reset(token)


_assumed: ContextVar[tuple[int, Callable[[], int]] | None] = ContextVar("_assumed", default=None)


# Out-of-memory errors of a device or the host in the middle of a run, as one sentence.

STEPS = "lower batch_size, fanouts or hidden, or use a device with more memory"
INFERENCE = "lower hidden, or use a device with more memory"


class DeviceFull(PenstockError):  # noqa: N818
    """Raised where a job does not fit the device's memory."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="out-of-memory")


@contextmanager
def device_memory(where: Callable[[], str], mend: str) -> Iterator[None]:
    """Turn out-of-memory errors of the device into one sentence, with the place (`where`, called then) and the remedy
    `mend`.
    """
    try:
        yield
    except (torch.OutOfMemoryError, StageError) as error:
        cause = error.__cause__ if isinstance(error, StageError) else error
        if not isinstance(cause, torch.OutOfMemoryError):
            raise
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(cause))
        amount = f" ({asked[1]} more were asked for)" if asked else ""
        raise DeviceFull(f"The device ran out of memory {where()}{amount}: {mend}.") from error


def is_host_full(error: BaseException) -> bool:
    """Whether an error means that the host is out of memory; torch raises a plain RuntimeError for that."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
