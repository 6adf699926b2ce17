"""Whether a device has room for one more job: memory, host memory, cores, places and throughput."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from penstock.service.policies.policy import DeviceRoom, JobNeeds, RunningJob

UNKNOWN_SHARE = 0.5
"""Share of a device that is assumed of a job about which nothing is known: two such jobs fill it, as in the source."""
FULL_SPEED = 0.95
"""Jobs at this speed or above count as undisturbed; a little slowdown is noise."""
LEAST_LEFT = 0.1
"""A device that has less of its throughput left is full: what one more job would gain is lost to interference. In
simulations of the source's queues, waiting until a job gets half of what it asks for took a fifth longer in makespan
and mean completion alike: while others wait, throughput that nobody uses delays all of them."""


@dataclass(frozen=True)
class _Held:
    """The jobs on a device, and what they take together; kept as sums, as queues of ten thousand jobs ask often."""

    jobs: tuple[JobNeeds, ...] = ()
    device_bytes: int = 0
    host_bytes: int = 0
    cores: float = 0.0
    alone: bool = False

    def plus(self, job: JobNeeds) -> "_Held":
        return _Held(
            (*self.jobs, job),
            self.device_bytes + job.device_bytes,
            self.host_bytes + job.host_bytes,
            self.cores + job.cores,
            self.alone or job.alone,
        )

    @cached_property
    def measured_load(self) -> float:
        """The share of the device's throughput that the jobs ask for; above 1 they slow each other down."""
        speeds = [job.speed for job in self.jobs if isinstance(job, RunningJob) and job.speed is not None]
        if len(speeds) < max(2, len(self.jobs)):
            return self.predicted_load
        mean = sum(speeds) / len(speeds)
        if mean < FULL_SPEED:
            # A device that gives less than was asked for gives all it has: speeds are one over the sum of shares.
            return 1 / max(mean, 1e-9)
        # Undisturbed: jobs whose shares are not known leave room, and one more is tried. The next measurement tells.
        known = [job.share for job in self.jobs if job.share is not None and not job.predicted]
        return min(1.0, sum(known))

    @cached_property
    def predicted_load(self) -> float:
        """The same by what is known of the jobs before they run."""
        return sum(UNKNOWN_SHARE if job.share is None else job.share for job in self.jobs)


class Rooms:
    """The devices with the jobs on them. `add` fills them up while a policy decides."""

    def __init__(self, devices: Sequence[DeviceRoom], running: Iterable[RunningJob]) -> None:
        self.devices = list(devices)
        self._held: dict[str, _Held] = {device.name: _Held() for device in devices}
        for job in running:
            # A device that was taken away may still have a job that ends.
            self._held[job.device] = self._held.get(job.device, _Held()).plus(job)

    def idle(self) -> list[DeviceRoom]:
        """The devices on which nothing runs."""
        return [device for device in self.devices if not self._held[device.name].jobs]

    def add(self, job: JobNeeds, device: DeviceRoom) -> None:
        """The job starts on the device."""
        self._held[device.name] = self._held[device.name].plus(job)

    def with_job(self, job: JobNeeds, device: DeviceRoom) -> "Rooms":
        """The same with one more job on the device."""
        more = Rooms(self.devices, [])
        more._held = self._held | {device.name: self._held[device.name].plus(job)}
        return more

    def admits(self, job: JobNeeds, device: DeviceRoom, measured: bool = True) -> bool:
        """Whether the job may start on the device now. An exact fit does. Without `measured`, measured speeds do not
        count against it, only what jobs were predicted to use."""
        held = self._held[device.name]
        return (
            job.kind == device.kind
            and held.device_bytes + job.device_bytes <= device.bytes
            and not (held.jobs and (job.alone or held.alone))
            and self._has_throughput(device, measured)
            and self._has_host(job, device)
        )

    def throughput_left(self, device: DeviceRoom, measured: bool = True) -> float:
        """The share of the device's throughput that the jobs on it leave, from 0 to 1."""
        held = self._held[device.name]
        return max(0.0, 1.0 - (held.measured_load if measured else held.predicted_load))

    def bytes_left(self, device: DeviceRoom) -> int:
        """The memory that the jobs on the device leave."""
        return device.bytes - self._held[device.name].device_bytes

    def _has_host(self, job: JobNeeds, device: DeviceRoom) -> bool:
        machine = [self._held[peer.name] for peer in self.devices if peer.machine == device.machine]
        return (
            sum(held.host_bytes for held in machine) + job.host_bytes <= device.host_bytes
            and sum(held.cores for held in machine) + job.cores <= device.cores
        )

    def _has_throughput(self, device: DeviceRoom, measured: bool) -> bool:
        jobs = len(self._held[device.name].jobs)
        if device.concurrent is not None:
            return jobs < device.concurrent
        return not jobs or self.throughput_left(device, measured) >= LEAST_LEFT - 1e-9


def never_fits(job: JobNeeds, devices: Sequence[DeviceRoom]) -> str | None:
    """Why no device could ever run the job, as a sentence; None where one could once it is empty."""
    devices = [device for device in devices if device.kind == job.kind]
    empty = Rooms(devices, [])
    if any(empty.admits(job, device) for device in devices):
        return None
    if not devices:
        return f"There is no device of kind {job.kind} to run it on."
    largest = max(devices, key=lambda device: (device.bytes, device.host_bytes, device.cores))
    lacks = [
        f"{need:,} {what} where {largest.name} has {room:,}"
        for what, need, room in (
            ("bytes of device memory", job.device_bytes, largest.bytes),
            ("bytes of host memory", job.host_bytes, largest.host_bytes),
            ("cores", job.cores, largest.cores),
        )
        if need > room
    ]
    return f"It needs {' and '.join(lacks)}." if lacks else "No device has enough of everything that it needs."
