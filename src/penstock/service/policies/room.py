"""Whether a device has room for one more job: memory, host memory, cores, places and throughput."""

from collections.abc import Iterable, Sequence

from penstock.service.policies.policy import DeviceRoom, JobNeeds, RunningJob

UNKNOWN_SHARE = 0.5
"""Share of a device that is assumed of a job about which nothing is known: two such jobs fill it, as in the source."""
FULL_SPEED = 0.95
"""Jobs at this speed or above count as undisturbed; a little slowdown is noise."""


class Rooms:
    """The devices with the jobs on them. `add` fills them up while a policy decides."""

    def __init__(self, devices: Sequence[DeviceRoom], running: Iterable[RunningJob]) -> None:
        self.devices = list(devices)
        self._held: dict[str, list[JobNeeds]] = {device.name: [] for device in devices}
        for job in running:
            # A device that was taken away may still have a job that ends.
            self._held.setdefault(job.device, []).append(job)

    def idle(self) -> list[DeviceRoom]:
        """The devices on which nothing runs."""
        return [device for device in self.devices if not self._held[device.name]]

    def add(self, job: JobNeeds, device: DeviceRoom) -> None:
        """The job starts on the device."""
        self._held[device.name].append(job)

    def with_job(self, job: JobNeeds, device: DeviceRoom) -> "Rooms":
        """The same with one more job on the device."""
        copy = Rooms(self.devices, [])
        copy._held = {**self._held, device.name: [*self._held[device.name], job]}
        return copy

    def admits(self, job: JobNeeds, device: DeviceRoom, measured: bool = True) -> bool:
        """Whether the job may start on the device now. An exact fit does. Without `measured`, measured speeds do not
        count against it, only what jobs were predicted to use."""
        held = self._held[device.name]
        if held and (job.alone or any(other.alone for other in held)):
            return False
        machine = [other for peer in self.devices if peer.machine == device.machine for other in self._held[peer.name]]
        return (
            sum(other.device_bytes for other in held) + job.device_bytes <= device.bytes
            and sum(other.host_bytes for other in machine) + job.host_bytes <= device.host_bytes
            and sum(other.cores for other in machine) + job.cores <= device.cores
            and self._has_throughput(job, device, measured)
        )

    def throughput_left(self, device: DeviceRoom, measured: bool = True) -> float:
        """The share of the device's throughput that the jobs on it leave, from 0 to 1."""
        return max(0.0, 1.0 - _load(self._held[device.name], measured))

    def bytes_left(self, device: DeviceRoom) -> int:
        """The memory that the jobs on the device leave."""
        return device.bytes - sum(job.device_bytes for job in self._held[device.name])

    def _has_throughput(self, job: JobNeeds, device: DeviceRoom, measured: bool) -> bool:
        held = self._held[device.name]
        if device.concurrent is not None:
            return len(held) < device.concurrent
        if not held:
            return True
        # A job that would get less than half of what it asks for slows all others down and gains little: two equal
        # jobs that need three quarters of a device each end sooner on average one after the other.
        share = _share(job, _at_full_speed(held) if measured else 0)
        return self.throughput_left(device, measured) >= share / 2 - 1e-9


def never_fits(job: JobNeeds, devices: Sequence[DeviceRoom]) -> str | None:
    """Why no device could ever run the job, as a sentence; None where one could once it is empty."""
    empty = Rooms(devices, [])
    if any(empty.admits(job, device) for device in devices):
        return None
    if not devices:
        return "There is no device to run it on."
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


def _load(held: Sequence[JobNeeds], measured: bool) -> float:
    """The share of a device's throughput that jobs ask for; above 1 they slow each other down."""
    full_speed = _at_full_speed(held) if measured else 0
    predicted = sum(_share(job, full_speed) for job in held)
    speeds = [job.speed for job in held if isinstance(job, RunningJob) and job.speed is not None]
    if not measured or len(speeds) < len(held) or len(held) < 2:
        return predicted
    mean = sum(speeds) / len(speeds)
    # A device that gives less than was asked for gives all it has: everybody's speed is one over the sum of shares.
    return min(predicted, 1.0) if mean >= FULL_SPEED else 1 / max(mean, 1e-9)


def _share(job: JobNeeds, full_speed: int) -> float:
    """The job's share, or a guess. Where several unknown jobs run undisturbed there is probably room for one more: each
    is taken for a part so small that one fits, and the next measurement tells."""
    if job.share is not None:
        return job.share
    return min(UNKNOWN_SHARE, 1 / (full_speed + 1)) if full_speed else UNKNOWN_SHARE


def _at_full_speed(held: Sequence[JobNeeds]) -> int:
    """How many jobs are on the device if all of them were measured and run undisturbed, else 0."""
    speeds = [job.speed for job in held if isinstance(job, RunningJob) and job.speed is not None]
    return len(held) if held and len(speeds) == len(held) and sum(speeds) >= FULL_SPEED * len(held) else 0
