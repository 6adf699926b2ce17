"""What no schedule can beat, from the jobs' true times: a bound on the makespan and one on the mean completion.

Both relax the devices to one machine as fast as all of them together, which can switch between jobs at any moment.
There a job takes `share x alone_s` of throughput and `memory / all memory x alone_s` of memory, whatever runs beside
it. On such a machine the shortest remaining job first is optimal for the mean completion.
"""

import heapq
from collections.abc import Sequence

from penstock.service.policies import never_fits
from penstock.service.simulation.document import QueueTrace, TraceJob


def least_makespan(trace: QueueTrace) -> float:
    """Seconds from the first arrival that no schedule takes less than."""
    jobs = _possible(trace)
    if not jobs:
        return 0.0
    first = min(job.arrival_s for job in jobs)
    longest = max(job.arrival_s + job.alone_s for job in jobs)
    return max([longest, *(_drained(work) for work in _works(trace, jobs))]) - first


def least_mean_completion(trace: QueueTrace) -> float:
    """Mean seconds from arrival to end that no schedule takes less than."""
    jobs = _possible(trace)
    if not jobs:
        return 0.0
    sums = [sum(job.alone_s for job in jobs), *(_shortest_first(work) for work in _works(trace, jobs))]
    return max(sums) / len(jobs)


def _possible(trace: QueueTrace) -> list[TraceJob]:
    """The jobs that some device can run, each as often as it is in the trace."""
    rooms = [device.room for device in trace.devices]
    fitting = [job for job in trace.jobs if never_fits(job.needs, rooms) is None]
    return [job for job in fitting for _ in range(job.count)]


def _works(trace: QueueTrace, jobs: Sequence[TraceJob]) -> list[list[tuple[float, float]]]:
    """For throughput and for memory: arrival and seconds of all devices for each job."""
    devices = len(trace.devices)
    memory = sum(device.memory_gb for device in trace.devices)
    works = [[(job.arrival_s, job.share * job.alone_s / devices) for job in jobs]]
    if memory:
        works.append([(job.arrival_s, job.memory_gb / memory * job.alone_s) for job in jobs])
    return works


def _drained(work: Sequence[tuple[float, float]]) -> float:
    """When a machine that is never idle while there is work has done it all."""
    now = 0.0
    for arrival, needed in sorted(work):
        now = max(now, arrival) + needed
    return now


def _shortest_first(work: Sequence[tuple[float, float]]) -> float:
    """The sum of completion times with the shortest remaining job first, on one machine that can switch at any time."""
    arrivals = sorted(work)
    waiting: list[list[float]] = []
    now = total = 0.0
    at = 0
    while at < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[at][0])
        while at < len(arrivals) and arrivals[at][0] <= now:
            heapq.heappush(waiting, [arrivals[at][1], arrivals[at][0]])
            at += 1
        until = arrivals[at][0] if at < len(arrivals) else float("inf")
        needed, arrival = waiting[0]
        if now + needed <= until:
            heapq.heappop(waiting)
            now += needed
            total += now - arrival
        else:
            heapq.heapreplace(waiting, [needed - (until - now), arrival])
            now = until
    return total
