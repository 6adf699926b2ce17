"""Seconds of an operator, run again and again."""

import time

import torch

from penstock.cost.operators.entry import Run

_WARM_UP = 2
_LEAST, _MOST = 5, 200
"""Runs that are timed."""
_SECONDS = 0.06
"""That runs of an operator are timed for, where they are short."""


def seconds_of_runs(run: Run, device: torch.device) -> tuple[float, list[float]]:
    """The seconds of the very first run, and those of some later ones."""
    first = _timed(run, device)
    for _ in range(_WARM_UP):
        run()
    times, end = list[float](), time.perf_counter() + _SECONDS
    while len(times) < _LEAST or (time.perf_counter() < end and len(times) < _MOST):
        times.append(_timed(run, device))
    return first, times


def undisturbed(times: list[float]) -> float:
    """Seconds of a run that nothing else on the machine disturbed: the mean of the shortest quarter."""
    shortest = sorted(times)[: max(1, len(times) // 4)]
    return sum(shortest) / len(shortest)


def _timed(run: Run, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
