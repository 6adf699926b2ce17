"""Training steps that are timed and thrown away."""

import time
from collections.abc import Callable
from itertools import islice

from penstock.pipeline.schedule import START, Schedule
from penstock.train.execution_modes import choose_execution
from penstock.train.session import Session

_TURNS = 2
_UNCOUNTED = 4
"""The first of so many parts of a trial is not counted: the pipeline fills, and kernels are loaded."""

Clock = Callable[[], float]


def seconds_of_batches(session: Session, batches: int, clock: Clock = time.perf_counter) -> float:
    """The mean time of a batch while the session trains its first ones, as it is set now.

    The caller sees to it that the session's state is kept.
    """
    session.execution = choose_execution(session, session.placed)
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed)
    with session.execution.steps(schedule, START, lambda position: 1, lambda *_: None) as steps:
        ends = [clock() for _ in islice(steps, batches)]
    first = batches // _UNCOUNTED
    return (ends[-1] - ends[first]) / (batches - 1 - first)


def turns_of(batches: int, fewest: int) -> list[int]:
    """Batches of each turn of a trial of so many: two turns where both are long enough."""
    return [batches // _TURNS] * _TURNS if batches >= _TURNS * fewest else [batches]
