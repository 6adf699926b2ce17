"""Measures a worker's iterations: CPU seconds by stage, bytes by peer. Nothing is written to the run folder."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Parameter

from penstock.cluster.worker.worker_group import ReductionMethod
from penstock.pipeline.stages import Loaded
from penstock.sampling.parts.requests import batch_messages
from penstock.train.run_files.records import Events, Records
from penstock.train.session import Session
from penstock.train.steps.group import DeviceSums
from penstock.wire.channel import own_meter

_STAGES = ("sample", "gather", "transfer", "compute")
_LARGE = 1 << 18
"""Pulls of at least so many bytes measure the speed of a link: smaller ones measure latency."""


class Observer(Records, Events):
    """Records for a loop that is measured. CPU time is taken, as processes of one host share its cores.

    A GPU's steps are timed by the clock, from a batch that is ready to computed gradients. Memory is reported with
    heartbeats.
    """

    def __init__(self, skipped: int, device: torch.device) -> None:
        """The first `skipped` iterations compile kernels and are not counted."""
        self._skipped, self._on_gpu = skipped, device.type == "cuda"
        self._reducing = 0.0
        self._spent: dict[int, float] = {}
        self._seconds: dict[str, dict[int, float]] = {stage: {} for stage in _STAGES}
        self._bytes: dict[str, dict[int, dict[str, int]]] = defaultdict(dict)
        self._blocks: dict[int, int] = {}
        self._rates: list[float] = []
        self._batches = 1
        self._lock = threading.Lock()

    def events(self, batches: int, began: float) -> Events:
        """Itself: the loop is about to begin, on this thread."""
        self._batches = batches
        self._spent[threading.get_ident()] = time.thread_time()
        own_meter().take()
        return self

    def record(self, stage: str, thread: int, start: float, end: float, item: Any) -> None:
        """Record a stage's work on one batch, which this thread has done."""
        if stage not in _STAGES:
            return
        me, now, came = threading.get_ident(), time.thread_time(), own_meter().take()
        assert isinstance(item, Loaded)
        step = item.position.epoch * self._batches + item.position.batch - self._skipped
        if step >= 0:
            with self._lock:
                on_gpu = stage == "compute" and self._on_gpu
                spent = end - start - self._reducing if on_gpu else now - self._spent.get(me, 0.0)
                self._seconds[stage][step] = max(0.0, spent)
                self._add_bytes(step, came)
                if stage == "sample":
                    parts = batch_messages(item.batch)
                    self._blocks[step] = sum(array.nbytes for part in parts for array in part.arrays)
                elif stage == "gather" and sum(came.values()) > _LARGE:
                    self._rates.append(sum(came.values()) / (end - start))
        self._spent[me] = time.thread_time()

    def timed(self, reduction: ReductionMethod) -> ReductionMethod:
        """The same reduction, whose seconds do not count as a GPU's: workers wait for each other in it."""
        return _TimedReduction(reduction, self)

    def reduced(self, seconds: float) -> None:
        """Record the seconds that the current step spent on the reduction."""
        self._reducing = seconds

    def found(self, shared_bytes: int = 0) -> dict[str, Any]:
        """The measurements in plain values, of every iteration that went through all stages. `shared_bytes` are bytes
        of the GPU that torch's allocator does not know.
        """
        device_bytes = torch.cuda.max_memory_allocated() + shared_bytes if self._on_gpu else 0
        steps = sorted(set.intersection(*(set(times) for times in self._seconds.values())))
        return {
            "batches": self._batches,
            "seconds": {stage: [times[step] for step in steps] for stage, times in self._seconds.items()},
            "bytes": {
                flow: {peer: [by_step.get(step, {}).get(peer, 0) for step in steps] for peer in _peers(by_step)}
                for flow, by_step in self._bytes.items()
            },
            "blocks": [self._blocks[step] for step in steps],
            "rates": self._rates,
            "device_gb": device_bytes / (1 << 30),
        }

    def _add_bytes(self, step: int, came: dict[tuple[str, str], int]) -> None:
        for (peer, flow), size in came.items():
            sizes = self._bytes[flow].setdefault(step, {})
            sizes[peer] = sizes.get(peer, 0) + size


class _TimedReduction:
    """A reduction that reports its time to an observer."""

    def __init__(self, inner: ReductionMethod, observer: Observer) -> None:
        self._inner, self._observer, self.group = inner, observer, inner.group

    def step(self, session: Session, loss: float, asked: bool) -> tuple[float, bool]:
        """As the reduction does. The loss is known already, so the GPU has computed all gradients."""
        began = time.perf_counter()
        found = self._inner.step(session, loss, asked)
        self._observer.reduced(time.perf_counter() - began)
        return found

    def start_sum(self, parameters: Sequence[Parameter]) -> None:
        self._inner.start_sum(parameters)

    def device_sums(self) -> DeviceSums | None:
        return self._inner.device_sums()

    def gather_optimiser(self, session: Session) -> None:
        self._inner.gather_optimiser(session)

    def close(self) -> None:
        self._inner.close()


def _peers(by_step: dict[int, dict[str, int]]) -> list[str]:
    return sorted({peer for sizes in by_step.values() for peer in sizes})
