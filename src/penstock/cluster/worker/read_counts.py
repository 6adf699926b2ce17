"""How often a worker reads each row, counted in batches that are drawn ahead."""

from collections.abc import Callable

import numpy as np

from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Planned, Schedule
from penstock.train.session import Session

_COUNTED = 16
"""Batches drawn ahead."""


def read_counts(session: Session, share: Callable[[Planned], Planned]) -> dict[str, tuple[Array, Array]]:
    """(rows, how often each is read) in a worker's shares of the first batches, by node type with features."""
    drawn: dict[str, list[Array]] = {name: [np.empty(0, np.int64)] for name in session.inputs.sources}
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.draw_seed)
    for planned, _ in zip(schedule.from_position(), range(_COUNTED), strict=False):
        vertices = session.task.sample(share(planned)).vertices
        for name, rows in drawn.items():
            if name in vertices:
                rows.append(np.asarray(vertices[name], np.int64))
    found = {name: np.unique(np.concatenate(rows), return_counts=True) for name, rows in drawn.items()}
    return {name: (ids, counts) for name, (ids, counts) in found.items()}
