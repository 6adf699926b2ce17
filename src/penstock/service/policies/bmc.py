"""Balanced memory consumption, in groups: the smallest and the largest job in turn, so that large jobs meet small ones.

The published algorithm takes jobs from the two ends of a sorted queue and begins a new group when the sum of their
memory reaches that of the device. So it refuses a group that fits exactly, opens a group for a job that is larger than
the device, and closes a group at the first job without room although others would still fit. Here an exact fit is
taken, a job that no device could run is left out, and at each end the search goes on to the next job that has room.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.service.policies.overdue import Packing
from penstock.service.policies.policy import AGE_S, DeviceRoom, RunningJob, Start, WaitingJob, by_size


@dataclass(frozen=True)
class Bmc:
    """The source's BMC policy, mended, with priorities and a bound on waiting."""

    name = "bmc"
    barriers = True
    age_s: float = AGE_S

    def choose(
        self, waiting: Sequence[WaitingJob], running: Sequence[RunningJob], devices: Sequence[DeviceRoom]
    ) -> list[Start]:
        """A group for every idle device: smallest, largest, smallest, ... among jobs of the same priority."""
        packing = Packing(waiting, running, devices, age_s=self.age_s, barriers=self.barriers)
        for device in packing.open:
            ascending = sorted(packing.candidates, key=by_size)
            for _, jobs in groupby(ascending, key=lambda job: job.priority):
                _alternate(packing, device, deque(jobs))
        return packing.starts


def _alternate(packing: Packing, device: DeviceRoom, ascending: deque[WaitingJob]) -> None:
    """Start jobs from the two ends in turn, beginning with the smallest; one without room is passed over."""
    smallest_next = True
    while ascending:
        job = ascending.popleft() if smallest_next else ascending.pop()
        if packing.admits(job, device):
            packing.start(job, device)
            smallest_next = not smallest_next
