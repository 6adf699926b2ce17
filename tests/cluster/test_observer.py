"""What a measured worker counts as a step: a processor's seconds, or a GPU's without the time that workers wait."""

import time

import numpy as np
import pytest
import torch

from penstock.cluster.worker.observer import Observer
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Loaded
from penstock.sampling import BatchKey


class SlowReduction:
    group = None
    closed = False

    def step(self, session, loss, asked):
        time.sleep(0.05)
        return 2 * loss, asked

    def gather_optimiser(self, session):
        raise AssertionError

    def close(self):
        self.closed = True


def computed(device: str) -> float:
    """Seconds of a step of 0.25 s by the clock, of which 0.05 s are the reduction's."""
    observer = Observer(0, torch.device(device))
    observer.events(4, 0.0)
    inner = SlowReduction()
    reduction = observer.timed(inner)
    assert reduction.step(None, 1.5, True) == (3.0, True)
    reduction.close()
    assert inner.closed
    item = Loaded(Planned(BatchKey(0, 0, 1), np.arange(3), False), None)
    observer.record("compute", 0, 10.0, 10.25, item)
    return observer._seconds["compute"][1]


def test_a_gpu_is_timed_by_the_clock_without_the_reduction() -> None:
    assert 0.1 < computed("cuda") == pytest.approx(0.2, abs=0.04)


def test_a_processor_is_timed_by_its_own_seconds() -> None:
    assert computed("cpu") < 0.04
