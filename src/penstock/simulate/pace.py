"""How long a step takes once training is under way, and how much of it a device is idle."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.rate_policy import Case
from penstock.simulate.timeline import Timeline

COMPUTING = ("forward", "backward")
"""Kinds of tasks that keep a device of a language model busy."""


def step_seconds(case: Case, ends: Array) -> float:
    """Seconds from one iteration's last task to the next's, over all but the first, which nothing went before.

    Of language models only forward and backward passes count: nobody waits for what follows the last of them.
    """
    chosen = np.flatnonzero([kind in COMPUTING for kind in case.task_kinds])
    tasks = chosen if len(chosen) else np.arange(case.shape.tasks)
    last = ends[:, tasks].max(axis=1)
    return float((last[-1] - last[0]) / (len(last) - 1) if len(last) > 1 else last[0])


def bubble_fraction(timeline: Timeline, placement: Array) -> float | None:
    """What devices idle in a step, over what they compute in it, on average; None where nothing is a device."""
    case = timeline.case
    chosen = np.flatnonzero([kind in COMPUTING for kind in case.task_kinds])
    if len(chosen) == 0:
        return None
    step = step_seconds(case, timeline.ends)
    seconds = (case.amounts.seconds[-1] * case.slowness)[chosen]
    busy = np.bincount(np.asarray(placement)[chosen], weights=seconds)
    busy = busy[busy > 0]
    return float(np.mean((step - busy) / busy))


def exposed_seconds(timeline: Timeline, silent: Timeline) -> float:
    """Seconds of a step that communication adds to it; `silent` is the same without any."""
    return max(0.0, step_seconds(timeline.case, timeline.ends) - step_seconds(silent.case, silent.ends))
