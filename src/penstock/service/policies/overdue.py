"""No job waits for ever: past the age bound it goes first, and room is kept for it.

An overdue job that cannot start yet keeps a claim. Another job may then start only where the overdue one would still
find room beside everything that has been started since it became overdue. So it starts at the latest when the jobs that
ran at that moment have ended (and, under a policy with barriers, the group after them), however many others arrive.
"""

from collections.abc import Sequence

from penstock.service.policies.policy import DeviceRoom, RunningJob, Start, WaitingJob
from penstock.service.policies.room import Rooms


class Packing:
    """A decision in the making: overdue jobs start first, and what a policy starts afterwards leaves them room."""

    def __init__(
        self,
        waiting: Sequence[WaitingJob],
        running: Sequence[RunningJob],
        devices: Sequence[DeviceRoom],
        *,
        age_s: float,
        barriers: bool,
    ) -> None:
        self.rooms = Rooms(devices, running)
        self.open = self.rooms.idle() if barriers else list(devices)
        """The devices that may take jobs now."""
        self._started: list[tuple[WaitingJob, DeviceRoom]] = []
        self._claim: WaitingJob | None = None
        self._beside_claim = empty = Rooms(devices, [])
        # Behind a barrier nothing starts, however many wait.
        asked = waiting if self.open else []
        self._possible = [job for job in asked if any(empty.admits(job, device) for device in devices)]
        late = [job for job in self._possible if job.waited_s >= age_s]
        for job in sorted(late, key=lambda job: (-job.priority, job.submitted)):
            device = self.best_device(job, measured=False)
            if device is None:
                self._keep_room_for(job, age_s, running)
                break
            self.start(job, device)

    @property
    def candidates(self) -> list[WaitingJob]:
        """The jobs that still wait; those that no device could ever run are left out."""
        started = {job.id for job, _ in self._started}
        return [job for job in self._possible if job.id not in started]

    @property
    def starts(self) -> list[Start]:
        """The decision so far."""
        return [Start(job.id, device.name) for job, device in self._started]

    def start(self, job: WaitingJob, device: DeviceRoom) -> None:
        """The job starts on the device."""
        self.rooms.add(job, device)
        self._started.append((job, device))
        if self._claim is not None:
            self._beside_claim.add(job, device)

    def admits(self, job: WaitingJob, device: DeviceRoom, measured: bool = True) -> bool:
        """Whether the job has room on the device and leaves an overdue job the room that it waits for."""
        return job is not self._claim and self.rooms.admits(job, device, measured) and self._leaves_room(job, device)

    def best_device(self, job: WaitingJob, measured: bool = True) -> DeviceRoom | None:
        """The device for the job: the one with most throughput left, then the one whose memory it fills best."""
        admitting = [device for device in self.open if self.admits(job, device, measured)]
        rooms = self.rooms
        return max(
            admitting, key=lambda device: (rooms.throughput_left(device), -rooms.bytes_left(device)), default=None
        )

    def _keep_room_for(self, job: WaitingJob, age_s: float, running: Sequence[RunningJob]) -> None:
        self._claim = job
        since_s = job.waited_s - age_s
        self._beside_claim = Rooms(self.rooms.devices, [other for other in running if other.ran_s < since_s])
        for other, device in self._started:
            self._beside_claim.add(other, device)

    def _leaves_room(self, job: WaitingJob, device: DeviceRoom) -> bool:
        claim = self._claim
        if claim is None:
            return True
        beside = self._beside_claim.with_job(job, device)
        return all(
            beside.admits(claim, peer, measured=False)
            for peer in self.rooms.devices
            if peer.machine == device.machine and Rooms([peer], []).admits(claim, peer)
        )
