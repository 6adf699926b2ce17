"""Which waiting job starts where and when: a policy's inputs, all policies, and when jobs would end by one.

`service.POLICIES` lists them; a new policy is a class and one line there (docs/queue.md). A policy sees memory, cores,
throughput and time, never how jobs are started or what they train.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import inf
from statistics import median
from typing import Protocol

# The interface of scheduling policies. A policy is a pure function of what waits, what runs and which devices there
# are: it keeps no state, starts nothing and reads no clock. The service calls it after every change (a job was
# submitted, ended or cancelled, a memory prediction arrived, speeds were measured) and carries out the answer; the
# simulator calls it on a simulated clock.

AGE_S = 1800.0
"""Seconds after which a waiting job is overdue: it goes before all others, and memory is reserved for it."""


@dataclass(frozen=True, kw_only=True)
class JobNeeds:
    """What a job takes of a device and of its machine while it runs."""

    id: str
    kind: str = ""
    """The kind of device that it needs, such as cpu or cuda."""
    device_bytes: int = 0
    """Reserved memory on the device, everything included (CUDA context too); 0 on a CPU."""
    host_bytes: int = 0
    cores: float = 0.0
    share: float | None = None
    """Share of the device's throughput that the job uses when it runs alone, from 0 to 1; None where unknown."""
    predicted: bool = False
    """Whether the share was only predicted: measured speeds take precedence."""
    alone: bool = False
    """Whether the job must have the device to itself."""


@dataclass(frozen=True, kw_only=True)
class WaitingJob(JobNeeds):
    """A job that could start as soon as there is room."""

    submitted: int
    """Order of submission, unique."""
    priority: int = 0
    """Jobs of a higher priority go first."""
    waited_s: float = 0.0
    expected_s: float | None = None
    """Seconds that the job would take alone, from a profile or from history; None where unknown."""


@dataclass(frozen=True, kw_only=True)
class RunningJob(JobNeeds):
    """A job on a device."""

    device: str
    ran_s: float = 0.0
    """Seconds since it started."""
    speed: float | None = None
    """Its steps per second, relative to running alone, measured since its neighbours last changed: 1 is undisturbed,
    0.5 half as fast. None where too few steps were done since, or its rate alone is not known.
    """


@dataclass(frozen=True, kw_only=True)
class DeviceRoom:
    """A device with its total capacity. Host memory and cores are those of the machine: devices that name the same
    machine share them.
    """

    name: str
    kind: str = ""
    bytes: int = 0
    """Memory that jobs may reserve, after a safety margin; 0 for a CPU."""
    host_bytes: int
    cores: float
    concurrent: int | None = None
    """How many jobs may run at once; None decides by throughput (`concurrent: auto`)."""
    machine: str = ""


@dataclass(frozen=True)
class Start:
    """The decision to start a waiting job on a device now."""

    id: str
    device: str


class QueuePolicy(Protocol):
    """Decides which waiting jobs start now, and on which device."""

    name: str
    barriers: bool
    """Whether jobs run in groups: a device takes no job before the last one of its group has ended. All jobs that one
    answer starts on a device are a group.
    """

    def __init__(self, age_s: float = AGE_S) -> None: ...

    def choose(
        self, waiting: Sequence[WaitingJob], running: Sequence[RunningJob], devices: Sequence[DeviceRoom]
    ) -> list[Start]:
        """The jobs to start now, each on a device that has room for it beside all others started and running."""
        ...


def by_size(job: WaitingJob) -> tuple[float, ...]:
    """A sort key: priority, then memory (that of the host for a job that needs no other), then order of submission."""
    return (-job.priority, job.device_bytes, job.host_bytes, job.submitted)


# Whether a device has room for one more job: device memory, host memory, cores, number of jobs and throughput.

UNKNOWN_SHARE = 0.5
"""The share of a device that is assumed for a job about which nothing is known: two such jobs fill it, as in CoGNN."""
FULL_SPEED = 0.95
"""Jobs at this speed or above count as undisturbed; a little slowdown is noise."""
LEAST_LEFT = 0.1
"""A device with less of its throughput left is full: what one more job would gain is lost to interference. In
simulations of CoGNN's queues, waiting until a job gets half of what it asks for took a fifth longer in makespan and
mean completion alike: while others wait, unused throughput delays all of them.
"""


@dataclass(frozen=True)
class _Held:
    """The jobs on a device, and their total needs; kept as sums, as queues of ten thousand jobs query them often."""

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
            # A saturated device gives all its throughput: speeds are one over the sum of shares.
            return 1 / max(mean, 1e-9)
        # Undisturbed: jobs whose shares are not known leave room, and one more is tried. The next measurement shows its
        # effect.
        known = [job.share for job in self.jobs if job.share is not None and not job.predicted]
        return min(1.0, sum(known))

    @cached_property
    def predicted_load(self) -> float:
        """The same, by what is known of the jobs before they run."""
        return sum(UNKNOWN_SHARE if job.share is None else job.share for job in self.jobs)


class Rooms:
    """The devices with the jobs on them. `add` fills them up while a policy decides."""

    def __init__(self, devices: Sequence[DeviceRoom], running: Iterable[RunningJob]) -> None:
        self.devices = list(devices)
        self._held: dict[str, _Held] = {device.name: _Held() for device in devices}
        for job in running:
            # A device that was removed may still have a job that is ending.
            self._held[job.device] = self._held.get(job.device, _Held()).plus(job)

    def idle(self) -> list[DeviceRoom]:
        """The devices on which nothing runs."""
        return [device for device in self.devices if not self._held[device.name].jobs]

    def add(self, job: JobNeeds, device: DeviceRoom) -> None:
        """Record that the job starts on the device."""
        self._held[device.name] = self._held[device.name].plus(job)

    def with_job(self, job: JobNeeds, device: DeviceRoom) -> "Rooms":
        """A copy with one more job on the device."""
        more = Rooms(self.devices, [])
        more._held = self._held | {device.name: self._held[device.name].plus(job)}
        return more

    def admits(self, job: JobNeeds, device: DeviceRoom, measured: bool = True) -> bool:
        """Whether the job may start on the device now. An exact fit does. Without `measured`, measured speeds are
        ignored, and only predicted shares count.
        """
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
    """Why no device could ever run the job, as a sentence; None where one could when it is empty."""
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


# No job waits for ever: past the age bound it goes first, and room is reserved for it. Another job may then start only
# where the overdue one would still find room beside everything that has been started since it became overdue. So it
# starts at the latest when the jobs that ran at that moment have ended (and, under a policy with barriers, the group
# after them), however many others arrive.


class Packing:
    """A decision in progress: overdue jobs start first, and later starts leave them room."""

    def __init__(
        self,
        waiting: Sequence[WaitingJob],
        running: Sequence[RunningJob],
        devices: Sequence[DeviceRoom],
        *,
        age_s: float,
        barriers: bool,
    ) -> None:
        self.waiting, self.rooms = waiting, Rooms(devices, running)
        self.open = self.rooms.idle() if barriers else list(devices)
        """The devices that may take jobs now."""
        self._started: list[tuple[WaitingJob, DeviceRoom]] = []
        self._claim: WaitingJob | None = None
        self._beside_claim = empty = Rooms(devices, [])
        # With barriers, a busy device starts nothing, however many wait.
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
        """The jobs that the decision starts so far."""
        return [Start(job.id, device.name) for job, device in self._started]

    def start(self, job: WaitingJob, device: DeviceRoom) -> None:
        """Record that the job starts on the device."""
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


@dataclass(frozen=True)
class PackingPolicy:
    """A policy that starts overdue jobs first, and then fills the devices in its own way."""

    name = ""
    barriers = True
    age_s: float = AGE_S

    def choose(
        self, waiting: Sequence[WaitingJob], running: Sequence[RunningJob], devices: Sequence[DeviceRoom]
    ) -> list[Start]:
        packing = Packing(waiting, running, devices, age_s=self.age_s, barriers=self.barriers)
        self.fill(packing)
        return packing.starts

    def fill(self, packing: Packing) -> None:
        """Start jobs on the devices that are open."""
        raise NotImplementedError


# First in, first out, in groups: a group takes jobs in the order of their arrival until the next one has no room.


@dataclass(frozen=True)
class Base(PackingPolicy):
    """CoGNN's Base policy. No job overtakes an earlier one, except by priority."""

    name = "base"

    def fill(self, packing: Packing) -> None:
        """A group for every idle device: the longest prefix of the queue that has room. A job that only a larger
        device could run is left for that one."""
        for device in packing.open:
            for job in sorted(packing.candidates, key=lambda job: (-job.priority, job.submitted)):
                if packing.admits(job, device):
                    packing.start(job, device)
                elif never_fits(job, [device]) is None:
                    break


# Balanced memory consumption (BMC), in groups: the smallest and the largest job in turn, so that large jobs run beside
# small ones. The published algorithm takes jobs from the two ends of a sorted queue and begins a new group when the sum
# of their memory reaches that of the device. So it refuses a group that fits exactly, opens a group for a job that is
# larger than the device, and closes a group at the first job without room although others would still fit. Here an
# exact fit is taken, a job that no device could run is left out, and at each end the search continues to the next job
# that has room.


@dataclass(frozen=True)
class Bmc(PackingPolicy):
    """CoGNN's BMC policy, corrected as above, with priorities and a bound on waiting."""

    name = "bmc"

    def fill(self, packing: Packing) -> None:
        """A group for every idle device: smallest, largest, smallest, ... among jobs of the same priority."""
        for device in packing.open:
            ascending = sorted(packing.candidates, key=by_size)
            for _, jobs in groupby(ascending, key=lambda job: job.priority):
                _alternate(packing, device, deque(jobs))


def _alternate(packing: Packing, device: DeviceRoom, ascending: deque[WaitingJob]) -> None:
    """Start jobs from the two ends in turn, beginning with the smallest; one without room is skipped."""
    smallest_next = True
    while ascending:
        job = ascending.popleft() if smallest_next else ascending.pop()
        if packing.admits(job, device):
            packing.start(job, device)
            smallest_next = not smallest_next


# The next job starts as soon as its memory is free and a device has throughput to give: no groups, no barriers.


@dataclass(frozen=True)
class Fit(PackingPolicy):
    """Short jobs first, each as soon as there is room for it on any device."""

    name = "fit"
    barriers = False

    def fill(self, packing: Packing) -> None:
        """Every job that has room, in the order of expected time. Smaller jobs overtake a job without room until it is
        overdue.
        """
        for job in sorted(packing.candidates, key=_by_expected_time(packing.waiting)):
            device = packing.best_device(job)
            if device is not None:
                packing.start(job, device)


def _by_expected_time(waiting: Sequence[WaitingJob]) -> Callable[[WaitingJob], tuple[float, ...]]:
    """A sort key: priority, then seconds. Where a time is not known, memory is used at the rate of the jobs whose time
    is: in CoGNN's measurements, memory and time of a job are correlated.
    """
    rates = [job.expected_s / size for job in waiting if job.expected_s is not None and (size := _size(job)) > 0]
    seconds_per_byte = median(rates) if rates else 1.0

    def key(job: WaitingJob) -> tuple[float, ...]:
        expected_s = job.expected_s if job.expected_s is not None else _size(job) * seconds_per_byte
        return (-job.priority, expected_s, *by_size(job))

    return key


def _size(job: WaitingJob) -> int:
    return job.device_bytes or job.host_bytes


# Lowest memory consumption first, in groups: small jobs are mostly short ones, so that most jobs end early.


@dataclass(frozen=True)
class Lmcf(PackingPolicy):
    """CoGNN's LMCF policy, with priorities and a bound on waiting."""

    name = "lmcf"

    def fill(self, packing: Packing) -> None:
        """A group for every idle device: the smallest jobs that have room together."""
        for device in packing.open:
            for job in sorted(packing.candidates, key=by_size):
                if packing.admits(job, device):
                    packing.start(job, device)


# The speed of jobs beside each other. A device has a throughput of 1. Jobs ask for shares of it; together they get what
# they ask for up to 1, and beyond that all are slowed alike. In addition every neighbour makes steps longer by
# `interference`, a measurable factor: the time of a step of two jobs together over its time alone, where their shares
# fit.


def relative_speed(shares: Sequence[float], interference: float) -> float:
    """The speed of each of the jobs with these shares on one device, relative to running alone."""
    if not shares:
        return 1.0
    return 1.0 / max(1.0, sum(shares)) / (1.0 + interference * (len(shares) - 1))


def throughput(shares: Sequence[float], interference: float) -> float:
    """The part of the device's throughput that the jobs turn into steps."""
    return sum(shares) * relative_speed(shares, interference)


# When jobs are expected to end: the policy's own decisions on a clock that runs ahead.

_MOST_WAITING = 200
"""Waiting jobs whose ends are predicted, the first ones to have been submitted: each end asks the policy again."""


def expected_ends(
    waiting: Sequence[WaitingJob],
    running: Sequence[RunningJob],
    left_s: Mapping[str, float | None],
    devices: Sequence[DeviceRoom],
    policy: QueuePolicy,
) -> dict[str, float]:
    """Seconds from now to the end of each job whose time is known, and which starts before those whose time is not
    have to end. `left_s` are the seconds that running jobs would still take as fast as they are now.
    """
    if len(waiting) > _MOST_WAITING:
        waiting = sorted(waiting, key=lambda job: (-job.priority, job.submitted))[:_MOST_WAITING]
    on: dict[str, dict[str, RunningJob]] = {device.name: {} for device in devices}
    for job in running:
        on.setdefault(job.device, {})[job.id] = job
    # Seconds of a device that does nothing else.
    left = {job.id: (left_s.get(job.id) or inf) * _speed(on[job.device].values()) for job in running}
    found, now = dict[str, float](), 0.0
    while True:
        ahead = [replace(job, ran_s=job.ran_s + now) for jobs in on.values() for job in jobs.values()]
        for start in policy.choose([replace(job, waited_s=job.waited_s + now) for job in waiting], ahead, devices):
            begun = next(each for each in waiting if each.id == start.id)
            waiting = [each for each in waiting if each is not begun]
            needs = {name: getattr(begun, name) for name in JobNeeds.__dataclass_fields__}
            on[start.device][begun.id] = RunningJob(**needs, device=start.device, ran_s=-now)
            left[begun.id] = inf if begun.expected_s is None else begun.expected_s
        speeds = {name: _speed(jobs.values()) for name, jobs in on.items()}
        passed = min((left[job] / speeds[name] for name, jobs in on.items() for job in jobs), default=inf)
        if passed == inf:
            return found
        now += passed
        for name, jobs in on.items():
            for job_id in list(jobs):
                left[job_id] -= passed * speeds[name]
                if left[job_id] <= 1e-9 * max(1.0, now):
                    found[job_id] = now
                    del jobs[job_id]
            # Speeds that were measured were those beside the jobs that have ended.
            on[name] = {job_id: replace(job, speed=None) for job_id, job in jobs.items()}


def _speed(jobs: Iterable[RunningJob]) -> float:
    """The speed of jobs beside each other on a device, relative to running alone."""
    return relative_speed([UNKNOWN_SHARE if job.share is None else job.share for job in jobs], 0.0)
