"""First in, first out, in groups: a group takes jobs in the order of their arrival until the next one has no room."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.service.policies.overdue import Packing
from penstock.service.policies.policy import AGE_S, DeviceRoom, RunningJob, Start, WaitingJob
from penstock.service.policies.room import never_fits


@dataclass(frozen=True)
class Base:
    """The source's Base policy. Nobody passes a job that came before, except by priority."""

    name = "base"
    barriers = True
    age_s: float = AGE_S

    def choose(
        self, waiting: Sequence[WaitingJob], running: Sequence[RunningJob], devices: Sequence[DeviceRoom]
    ) -> list[Start]:
        """A group for every idle device: the longest prefix of the queue that has room. A job that only a larger
        device could run is left for that one."""
        packing = Packing(waiting, running, devices, age_s=self.age_s, barriers=self.barriers)
        for device in packing.open:
            for job in sorted(packing.candidates, key=lambda job: (-job.priority, job.submitted)):
                if packing.admits(job, device):
                    packing.start(job, device)
                elif never_fits(job, [device]) is None:
                    break
        return packing.starts
