"""The iterations that a plan is simulated over: how many, and the amounts of each.

Amounts repeat with a period. Within one period every task and flow has exactly its mean, so that the busiest link of a
simulated run is as busy as that of a long run. Large clusters are simulated over fewer iterations, and each batch
reads from some of the far parts at a time, in turn and so much more from each: as many bytes, in fewer flows.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.amounts import Amounts, Spread, draw_amounts
from penstock.simulate.workload import Workload

_PERIODS = 4
"""Periods that a placement is judged by."""
_LONG, _SHORT = 32, 8
"""Iterations of a period, and those of a large cluster."""
_MANY = 1_000
"""Flows of an iteration from which a cluster counts as large."""
_READ = 16
"""Far parts that a batch of a large cluster reads from, at least."""
_NEAR = 2.0
"""A part from which a batch reads so many times the mean is near: it is read in every iteration."""


@dataclass(frozen=True, eq=False)
class Iterations:
    """What is simulated for a workload."""

    searched: Amounts
    """One period: what a search compares placements by."""
    judged: Amounts
    """Several of them: what the pace of a placement is measured on."""
    turns: int
    """Iterations over which a batch's reads from all far parts are spread; 1: every batch reads from all."""

    @property
    def period(self) -> int:
        """Iterations after which amounts repeat."""
        return len(self.searched.seconds)


def draw_iterations(
    load: Workload,
    seed: int,
    spreads: Mapping[str, Spread],
    ahead: int,
    owners: str | None = None,
    own_period: int | None = None,
) -> Iterations:
    """The iterations of a workload that works so many of them `ahead`.

    `owners` is the kind of tasks that hold what others read: on large clusters, reads from them are made in turns.
    `own_period` replaces the number of iterations after which amounts repeat.
    """
    large = load.flows > _MANY or own_period is not None
    period = own_period or (_SHORT if large else _LONG)
    turns = _turns_of(load, period, owners) if large and owners is not None else 1
    drawn = draw_amounts(load, period, seed, spreads)
    one = _balanced(_in_turns(drawn, load, turns, owners) if turns > 1 else drawn, load)
    # A third of the run fills the pipeline, the end runs it dry, and at least one period is left between. Whole periods
    # are judged, so that links carry their means there too.
    periods = -(-(period + ahead + 1) * 3 // (2 * period)) if large else _PERIODS
    return Iterations(one, _repeated(one, periods * period), turns)


def _balanced(drawn: Amounts, load: Workload) -> Amounts:
    """The same with every item's mean over the iterations exactly the workload's."""
    return Amounts(*(_with_mean(*pair) for pair in zip(drawn, (load.task_seconds, load.flow_bytes), strict=True)))


def _with_mean(values: Array, mean: Array) -> Array:
    found = values.mean(axis=0)
    scale = np.divide(mean, found, out=np.ones_like(found), where=found > 0)
    # An item that drew nothing but zeros is constant instead.
    return np.ascontiguousarray(np.where(found > 0, values * scale, mean))


def _repeated(one: Amounts, count: int) -> Amounts:
    rows = np.arange(count) % len(one.seconds)
    return Amounts(one.seconds[rows], one.sizes[rows])


def _turns_of(load: Workload, period: int, owners: str) -> int:
    """Iterations that all far parts are read in: a power of two, so that a period holds whole turns."""
    parts, turns = load.task_kinds.count(owners), 1
    while 2 * turns <= period and parts // (2 * turns) >= _READ:
        turns *= 2
    return turns


def _in_turns(amounts: Amounts, load: Workload, turns: int, owners: str | None) -> Amounts:
    """Every batch reads from each far part in one of so many iterations, so many times as much."""
    seconds, sizes = amounts.seconds.copy(), amounts.sizes.copy()
    iterations = np.arange(len(sizes))
    # Work that an owner does for one request: it is beside the owner, and sends.
    owned = np.array([kind == owners for kind in load.task_kinds])[load.beside]
    serving = owned & (load.beside != np.arange(load.tasks))
    for number, flows in _reads(load, owners):
        # The largest first, so that every turn has about as many bytes; neighbours begin with different parts.
        far = flows[load.flow_bytes[flows] <= _NEAR * load.flow_bytes[flows].mean()]
        ranked = far[np.argsort(-load.flow_bytes[far], kind="stable")]
        idle = (np.arange(len(ranked))[None, :] + number + iterations[:, None]) % turns != 0
        sizes[:, ranked] = np.where(idle, 0.0, turns * sizes[:, ranked])
        # A store takes as much longer over a request as there is more in it.
        served = serving[load.sources[ranked]]
        senders = load.sources[ranked[served]]
        seconds[:, senders] = np.where(idle[:, served], 0.0, turns * seconds[:, senders])
    return Amounts(seconds, sizes)


def _reads(load: Workload, owners: str | None) -> list[tuple[int, Array]]:
    """The flows between all parts and one task, of one kind, and the task's number among those with such flows."""
    stores = np.array([kind == owners for kind in load.task_kinds])[load.beside]
    groups: dict[tuple[str, int], list[int]] = {}
    for flow, (source, target) in enumerate(zip(load.sources.tolist(), load.targets.tolist(), strict=True)):
        if stores[source] != stores[target]:
            other = target if stores[source] else source
            groups.setdefault((load.flow_kinds[flow], other), []).append(flow)
    seen: Counter[str] = Counter()
    found = []
    for (kind, _), flows in groups.items():
        found.append((seen[kind], np.array(flows)))
        seen[kind] += 1
    return found
