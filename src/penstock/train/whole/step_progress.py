"""How far a long step has come, bin by bin."""

import time
from collections import Counter
from collections.abc import Sequence

from penstock.progress import Progress
from penstock.sampling.key import BatchKey
from penstock.train.job import Job

_SOON = 2.0
"""Seconds of a step before anything is told of it,"""
_OFTEN = 0.5
"""and between two lines."""


class StepProgress:
    """Tells which bin of which layer is done. A layer that is computed twice in a pass is told of once."""

    def __init__(self, progress: Progress, job: Job, key: BatchKey, bins: Sequence[int]) -> None:
        """`bins` of every layer."""
        self._progress, self._bins, self._done = progress, bins, Counter[tuple[str, int]]()
        self._where = f"epoch {key.epoch + 1}/{job.epochs}"
        if job.steps_per_epoch > 1:
            self._where += f", step {key.batch + 1}/{job.steps_per_epoch}"
        self._next = time.monotonic() + _SOON

    def bin_done(self, direction: str, layer: int) -> None:
        """One more bin of a layer is computed forward or backward."""
        self._done[direction, layer] += 1
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _OFTEN
        count, layers = self._bins[layer], len(self._bins)
        done = min(self._done[direction, layer], count)
        self._progress.status(f"{self._where}: {direction}, layer {layer + 1}/{layers}, bin {done:,}/{count:,}")
