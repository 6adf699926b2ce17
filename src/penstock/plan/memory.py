"""Memory over time: what machines and their devices hold while a simulated run goes on."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.timeline import Timeline


class HeldMemory(NamedTuple):
    """Memory that a task's machine holds from the start of the task in each iteration on."""

    task: str
    gb: float
    device: str = "cpu"
    until: str | None = None
    """The task at whose end it is given back; None: it is held for the whole run."""
    lag: int = 0
    """It is given back so many iterations later."""


class MemoryCurve(NamedTuple):
    """What is held of one kind of memory: `gb[k]` from `seconds[k]` to `seconds[k + 1]`."""

    seconds: Array
    gb: Array

    @property
    def peak(self) -> float:
        """The most that is held at any time."""
        return float(self.gb.max(initial=0.0))


def memory_over_time(
    timeline: Timeline, placement: Array, held: Iterable[HeldMemory]
) -> dict[tuple[str, str], MemoryCurve]:
    """By machine and kind of device, what is held in a timeline whose tasks are placed on machines by number."""
    numbers = {name: number for number, name in enumerate(timeline.load.task_names)}
    changes: dict[tuple[str, str], list[Array]] = {}
    for each in held:
        task = numbers[each.task]
        place = timeline.network.machines[int(placement[task])], each.device
        if each.until is None:
            found = np.array([[0.0, each.gb]])
        else:
            starts, ends = timeline.starts[:, task], timeline.ends[each.lag :, numbers[each.until]]
            # What the last iterations take is given back behind the end of the simulation.
            taken = np.stack([starts, np.full(len(starts), each.gb)], axis=1)
            found = np.concatenate([taken, np.stack([ends, np.full(len(ends), -each.gb)], axis=1)])
        changes.setdefault(place, []).append(found)
    return {place: _curve(np.concatenate(parts)) for place, parts in changes.items()}


def _curve(changes: Array) -> MemoryCurve:
    """Changes of (second, GB) added up in order; at one moment memory is given back before it is taken."""
    ordered = changes[np.lexsort((changes[:, 1], changes[:, 0]))]
    return MemoryCurve(ordered[:, 0], np.maximum(ordered[:, 1].cumsum(), 0.0))
