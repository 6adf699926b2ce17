"""Training steps that are timed and thrown away."""

import time
from collections.abc import Callable
from itertools import islice

from penstock.pipeline.schedule import START, Position, Schedule
from penstock.train.execution_modes import choose_execution
from penstock.train.session import Session

_TURNS = 2
_UNCOUNTED = 4
"""The first of so many parts of a trial is not counted: the pipeline fills, and kernels are loaded."""

BURST = 16
"""Captured steps between two readings of the clock: the device rests there, as it does in a run from time to time."""
CAPTURED_BATCHES = (3 * BURST, 9 * BURST)
"""Fewest and most captured steps of a trial: host and device try several shares of their work meanwhile."""

Clock = Callable[[], float]


def seconds_of_batches(session: Session, batches: int, clock: Clock = time.perf_counter) -> float:
    """The mean time of a batch while the session trains its first ones, as it is set now.

    The caller sees to it that the session's state is kept.
    """
    session.execution = choose_execution(session, session.placed)
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.draw_seed)
    if session.placed is not None and session.placed.is_captured:
        return _fastest_burst(session, schedule, batches, clock)
    with session.execution.steps(schedule, START, lambda position: 1, lambda *_: None) as steps:
        ends = [clock() for _ in islice(steps, batches)]
    first = batches // _UNCOUNTED
    return (ends[-1] - ends[first]) / (batches - 1 - first)


def _fastest_burst(session: Session, schedule: Schedule, batches: int, clock: Clock) -> float:
    """The mean time of a batch in the fastest burst behind the first: shares of host and device are tried in others."""

    def pause(position: Position) -> int:
        return min(BURST, schedule.batches - position.batch)

    trained, spent = 0, list[tuple[int, float]]()
    with session.execution.steps(schedule, START, pause, lambda *_: None) as steps:
        last = clock()
        for done in steps:
            now = clock()
            spent.append((len(done), (now - last) / len(done)))
            trained, last = trained + len(done), now
            if trained >= batches:
                break
    counted = spent[1:] or spent
    # An epoch may end with a burst of few steps.
    longest = max(size for size, _ in counted)
    return min(seconds for size, seconds in counted if size == longest)


def turns_of(batches: int, fewest: int) -> list[int]:
    """Batches of each turn of a trial of so many: two turns where both are long enough."""
    return [batches // _TURNS] * _TURNS if batches >= _TURNS * fewest else [batches]
