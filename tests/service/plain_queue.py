"""A plain and slow simulator of queues, written apart from `penstock.service.simulation`: exact fractions, one device,
jobs all known at the start, policies spelled out."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass
class PlainJob:
    name: str
    memory: int
    seconds: Fraction
    share: Fraction


def plain_ends(jobs: list[PlainJob], policy: str, memory: int, limit: int) -> dict[str, Fraction]:
    """When each job ends, under a policy that runs at most `limit` jobs in `memory`."""
    waiting = list(jobs)
    left = {job.name: job.seconds for job in jobs}
    running: list[PlainJob] = []
    ends: dict[str, Fraction] = {}
    now = Fraction(0)
    while waiting or running:
        for job in _starts(waiting, running, policy, memory, limit):
            waiting.remove(job)
            running.append(job)
        asked = sum((job.share for job in running), Fraction(0))
        speed = 1 / max(Fraction(1), asked)
        step = min(left[job.name] / speed for job in running)
        now += step
        for job in list(running):
            left[job.name] -= step * speed
            if left[job.name] == 0:
                running.remove(job)
                ends[job.name] = now
    return ends


def _starts(waiting: list[PlainJob], running: list[PlainJob], policy: str, memory: int, limit: int) -> list[PlainJob]:
    if policy != "fit" and running:
        return []
    free, places = memory - sum(job.memory for job in running), limit - len(running)
    chosen: list[PlainJob] = []
    rest = list(waiting) if policy == "base" else sorted(waiting, key=lambda job: job.memory)
    take_smallest = True
    while rest and len(chosen) < places:
        if policy == "bmc" and not take_smallest:
            fitting = [job for job in reversed(rest) if job.memory <= free]
            # Of equally large jobs the one that came last stands at the end.
        else:
            fitting = [job for job in rest if job.memory <= free]
        if not fitting or (policy == "base" and fitting[0] is not rest[0]):
            break
        chosen.append(fitting[0])
        rest.remove(fitting[0])
        free -= fitting[0].memory
        take_smallest = not take_smallest
    return chosen
