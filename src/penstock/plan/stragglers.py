"""How a plan's epochs vary: by steps and flows that take longer in some iterations, and by machines that are slow."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.formatting import percent
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key, unit_draws
from penstock.hardware.machines import Machines
from penstock.plan.comparison import Comparison, Trial, in_threads
from penstock.plan.document import Change
from penstock.simulate.timeline import Timeline
from penstock.simulate.transport import hashed_again

P95 = 0.95

# Steps and flows that vary. A synchronous step waits for its slowest worker, and a batch for its slowest flow: what is
# simulated draws each amount anew in every iteration, so the spread of simulated iterations has both in it.

_BLOCKS = 8
"""Parts of a period whose sums are compared: neighbouring iterations share a pipeline and are not independent."""


def epoch_p95(timeline: Timeline, ahead: int, period: int, mean: float, iterations: float) -> float:
    """The seconds that 95 of 100 epochs of so many iterations stay below, where an iteration takes `mean` seconds.

    The sum of many iterations is nearly normal; its variance is that of sums of neighbouring iterations of one period.
    """
    ends: Array = np.maximum.accumulate(timeline.iteration_ends)
    last = len(ends) - 1 - ahead
    took = np.diff(ends[max(last - period, 0) : last + 1])
    if len(took) < 2 or not took.mean():
        return mean * iterations
    length = max(1, len(took) // _BLOCKS)
    sums = np.array([np.roll(took, -start)[:length].sum() for start in range(len(took))])
    # Amounts have exactly their means within a period, so sums of its parts vary less than those of a longer run.
    variance = float(sums.var()) / length / (1 - length / len(took))
    deviation = sqrt(variance * iterations) * mean / float(took.mean())
    return mean * iterations + NormalDist().inv_cdf(P95) * deviation


# Machines that compute at a share of their speed.

ANY = "any"
_SCENARIOS = 128
"""How often slow machines are drawn at random; equal sets of them are simulated once."""


@dataclass(frozen=True)
class SlowMachine:
    """One machine, or any of them with a probability, that computes at a share of its speed."""

    machine: str
    share: float
    probability: float = 1.0


def parsed_slow(text: str) -> SlowMachine:
    """`m1=0.5`, or `any=0.5:0.1`: every machine with a probability of 0.1."""
    name, _, rest = text.partition("=")
    share, _, chance = rest.partition(":")
    try:
        found = SlowMachine(name, float(share), float(chance) if name == ANY else 1.0)
        valid = bool(name) and 0 < found.share <= 1 and 0 < found.probability <= 1 and (name == ANY or not chance)
    except ValueError:
        valid = False
    if not valid:
        raise PenstockError(
            f"--slow {text} names no slow machine: write m1=0.5 for a machine at half of its speed, or any=0.5:0.1 for"
            " every machine with a probability of 0.1.",
            code="invalid-value",
        )
    return found


def check_slow(slow: Sequence[SlowMachine], names: Sequence[str]) -> None:
    """Refuse machines that the cluster does not have."""
    for each in slow:
        if each.machine != ANY and each.machine not in names:
            raise PenstockError(f"--slow names {each.machine!r}{nearest(each.machine, names)}", code="unknown-name")


def slow_changes(
    run: Comparison,
    best: Trial,
    slow: Sequence[SlowMachine],
    seed: int,
    planned: Callable[[Machines], float],
    threads: int = 1,
) -> list[Change]:
    """What a plan takes with slow machines, and what one that is `planned` for them would take."""
    names = run.machines.names

    def seconds(machines: Machines) -> float:
        return run.on(machines).trial(best.placed, best.flows).iteration_s

    found = list[Change]()
    for each in slow:
        what = f"at {percent(each.share)} of its speed"
        if each.machine != ANY:
            machines = run.machines.with_speed(names.index(each.machine), each.share)
            found.append(_change(f"{each.machine} {what}", seconds(machines), best))
            found.append(_change(f"{each.machine} {what}, planned for that", planned(machines), best))
            continue
        drawn = [*_drawn(len(names), each.probability, seed)]
        different = [*dict.fromkeys(drawn)]
        work = [partial(seconds, _slowed(run.machines, which, each.share)) for which in different]
        times = dict(zip(different, in_threads(work, threads), strict=True))
        ordered = sorted(times[which] for which in drawn)
        chance = f"every machine {what} with a probability of {percent(each.probability)}"
        for name, level in (("median", 0.5), ("95th percentile", P95)):
            found.append(_change(f"{chance}: {name}", ordered[ceil(level * len(ordered)) - 1], best))
    return found


def network_changes(run: Comparison, best: Trial, threads: int = 1) -> list[Change]:
    """What a plan takes as a fluid, over other seeds of hashes and timeouts, and without other tenants."""
    machines, transport, found = run.machines, run.machines.transport, list[Change]()

    def seconds(others: Machines) -> float:
        return run.on(others).trial(best.placed, best.flows).iteration_s

    if transport is not None:
        found.append(_change("links as a fluid", seconds(replace(machines, transport=None)), best))
        hashed = (each.transport for each in hashed_again(run.problem.network))
        ordered = sorted(in_threads([partial(seconds, replace(machines, transport=each)) for each in hashed], threads))
        for name, level in (("median", 0.5), ("95th percentile", P95)) if ordered else ():
            at = ordered[ceil(level * len(ordered)) - 1]
            found.append(_change(f"{len(ordered)} seeds of hashes and timeouts: {name}", at, best))
    if machines != machines.alone():
        found.append(_change("without other tenants", seconds(machines.alone()), best))
    return found


def _drawn(machines: int, probability: float, seed: int) -> Iterator[frozenset[int]]:
    """Which machines are slow, drawn so many times."""
    uniform = unit_draws(document_key(seed, "machines that are slow"), _SCENARIOS * machines).reshape(
        _SCENARIOS, machines
    )
    for row in uniform:
        yield frozenset(np.flatnonzero(row < probability).tolist())


def _slowed(machines: Machines, which: frozenset[int], share: float) -> Machines:
    for number in which:
        machines = machines.with_speed(number, share)
    return machines


def _change(what: str, seconds: float, best: Trial) -> Change:
    return Change(what=what, iteration_s=seconds, gain=1 - seconds / best.iteration_s if best.iteration_s else 0.0)
