"""How a group of batches is divided among the processors that draw it.

At first nothing is known and every processor gets as many as the others. Later a batch's time is forecast by the moving
median of what it took before, and the batches are divided as jobs on uniform machines: a processor of speed s takes
1 / s of a batch's time.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

WINDOW = 9
"""Observations that a moving median is over."""


class MovingMedian:
    """The median of the newest observations."""

    def __init__(self, window: int = WINDOW) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> None:
        """One more observation; the oldest is forgotten."""
        self._values.append(value)

    def forecast(self) -> float | None:
        """What the next one is expected to be; None before the first."""
        return median(self._values) if self._values else None


class DrawForecasts:
    """Forecasts of how long batches take to draw, and of how fast each processor is beside the first.

    A batch is known by its number in its epoch: while seeds are not shuffled it takes about as long in every epoch. A
    number that was not seen before is expected to take as long as others did lately.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = list(kinds)
        self._batches: dict[int, MovingMedian] = {}
        self._lately = MovingMedian()
        self._by_kind = {kind: MovingMedian() for kind in kinds}

    def observe(self, kind: str, number: int, seconds: float) -> None:
        """A processor of some kind took so long for a batch; its time counts as the first kind's would."""
        self._by_kind[kind].add(seconds)
        usual = seconds * self.speed(kind)
        self._lately.add(usual)
        self._batches.setdefault(number, MovingMedian()).add(usual)

    def speed(self, kind: str) -> float:
        """How fast a kind of processor is, as a multiple of the first kind's speed."""
        first, own = self._by_kind[self.kinds[0]].forecast(), self._by_kind[kind].forecast()
        return first / own if first and own else 1.0

    def seconds(self, number: int) -> float | None:
        """What a batch is expected to take the first kind; None before anything was observed."""
        known = self._batches.get(number)
        return self._lately.forecast() if known is None else known.forecast()


def divided_evenly(count: int, processors: int) -> list[list[int]]:
    """Places 0 to `count` - 1 in turn: every processor has as many as the others, or one less."""
    return [list(range(first, count, processors)) for first in range(processors)]


def divided(times: Sequence[float], speeds: Sequence[float]) -> list[list[int]]:
    """Places of the batches of each processor, so that the last is done early: jobs on uniform machines.

    The longest batch first, each where it is done first (at most 1.58 times the optimum, and close to it where batches
    are many); then single batches move away from the processor that ends last, as long as that helps. Places are in
    ascending order.
    """
    shares: list[list[int]] = [[] for _ in speeds]
    loads = [0.0] * len(speeds)
    for place in sorted(range(len(times)), key=lambda place: (-times[place], place)):
        to = min(range(len(speeds)), key=lambda at: (loads[at] + times[place] / speeds[at], at))
        shares[to].append(place)
        loads[to] += times[place] / speeds[to]
    while _moved_one(shares, loads, times, speeds):
        pass
    return [sorted(share) for share in shares]


def _moved_one(shares: list[list[int]], loads: list[float], times: Sequence[float], speeds: Sequence[float]) -> bool:
    """Move a batch from the processor that ends last to one that then ends earlier than that did, if there is any."""
    last = loads.index(max(loads))
    for place in shares[last]:
        for to in range(len(speeds)):
            after = loads[to] + times[place] / speeds[to]
            if to != last and after < loads[last] * (1 - 1e-9):
                shares[last].remove(place)
                shares[to].append(place)
                loads[last] -= times[place] / speeds[last]
                loads[to] = after
                return True
    return False
