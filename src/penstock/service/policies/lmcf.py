"""Lowest memory consumption first, in groups: small jobs are mostly short ones, so that most jobs end early."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.service.policies.overdue import Packing
from penstock.service.policies.policy import AGE_S, DeviceRoom, RunningJob, Start, WaitingJob, by_size


@dataclass(frozen=True)
class Lmcf:
    """The source's LMCF policy, with priorities and a bound on waiting."""

    name = "lmcf"
    barriers = True
    age_s: float = AGE_S

    def choose(
        self, waiting: Sequence[WaitingJob], running: Sequence[RunningJob], devices: Sequence[DeviceRoom]
    ) -> list[Start]:
        """A group for every idle device: the smallest jobs that have room together."""
        packing = Packing(waiting, running, devices, age_s=self.age_s, barriers=self.barriers)
        for device in packing.open:
            for job in sorted(packing.candidates, key=by_size):
                if packing.admits(job, device):
                    packing.start(job, device)
        return packing.starts
