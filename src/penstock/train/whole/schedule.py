"""The steps of a run on the whole graph: the same training vertices in the same steps, epoch after epoch."""

from collections.abc import Iterator

from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.sampling.key import BatchKey


def first_epoch(schedule: Schedule) -> list[Planned]:
    """The steps of the first epoch, whose training vertices every epoch's steps have."""
    found = []
    for planned in schedule.from_position():
        found.append(planned)
        if planned.last:
            return found
    return found


def repeated_epochs(schedule: Schedule, start: Position) -> Iterator[Planned]:
    """Every step from a position on. No epoch is shuffled: sorting a large split takes longer than a GPU's step."""
    steps = first_epoch(schedule)
    epoch, first = start
    while schedule.epochs is None or epoch < schedule.epochs:
        for number in range(first, len(steps)):
            yield steps[number]._replace(key=BatchKey(schedule.seed, epoch, number))
        epoch, first = epoch + 1, 0
