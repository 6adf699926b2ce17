"""Sums and gathers among workers, by torch's process groups or over the run's own wire."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import Store
from torch.nn import functional

from penstock.cluster.gpus import own_gpus
from penstock.cluster.layout import worker_rank
from penstock.cluster.member import Member
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.train.steps.group import RegroupError
from penstock.wire.coflows import GRADIENTS, NORMS, current_coflow, within_kind
from penstock.wire.message import Message

# The interface of a group of workers that sums and gathers numbers in one round.


class CollectiveGroup(Protocol):
    """Sums and gathers numbers of one round's workers. The order of sums depends only on the number of workers."""

    device: torch.device
    """The device on which the numbers must be."""
    sums_on_device: bool
    """Whether that is a GPU, and not the host's memory."""

    def sum(self, numbers: Tensor) -> None:
        """Sum over all workers in place. Raises RegroupError when the round is over."""

    def launch_sum(self, numbers: Tensor) -> None:
        """Sum numbers in a GPU's memory, in place: later launches on the stream see the sums."""

    def finish_sums(self, is_done: Callable[[], bool]) -> None:
        """Wait until launched sums, and whatever else `is_done` checks, are done; raises RegroupError as `sum` does."""

    def gather(self, numbers: Tensor) -> list[Tensor]:
        """All workers' rows of numbers, of any length each, by rank."""

    def close(self) -> None:
        """Leave the group: workers that still wait for this one get an error."""


class StagedSums:
    """Sums of numbers in a GPU's memory for groups of hosts: through page-locked memory, one copy each way."""

    sums_on_device = False
    _staged: Tensor | None = None

    def sum(self, numbers: Tensor) -> None:
        """Sum arrays in host memory in place."""
        self.start_sum(numbers)()

    def start_sum(self, numbers: Tensor) -> Callable[[], None]:
        """Begin a sum of arrays in host memory, in place. They must not be touched until the returned function, which
        waits, has been called. All workers begin the same sums in the same order, other sums among them.
        """
        raise NotImplementedError

    def launch_sum(self, numbers: Tensor) -> None:
        """Wait for the numbers on the host and sum them; the copy back is launched."""
        if numbers.device.type == "cpu":
            self.sum(numbers)
            return
        if self._staged is None or self._staged.shape != numbers.shape:
            self._staged = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._staged.copy_(numbers, non_blocking=True)
        torch.cuda.current_stream(numbers.device).synchronize()
        self.sum(self._staged)
        numbers.copy_(self._staged, non_blocking=True)

    def finish_sums(self, is_done: Callable[[], bool]) -> None:
        """Do nothing but check: sums are done when they were launched."""


# Sums and gathers among workers over the run's own authenticated and encrypted connections. With parameter servers and
# `reduction: wire` nothing of a run leaves the wire. Short arrays are sent by every worker to all others, and summed in
# the order of ranks. Of long ones every worker sums a share (a reduce-scatter), again in the order of ranks, and sends
# the sums to all others (an all-gather): each worker sends and receives twice the numbers, however many workers there
# are. Either way all have the same bits, in every run.

_LOOK = 0.5
"""Seconds between two checks whether the round is still valid."""
_SHARED = 1 << 14
"""From this many numbers on, each worker sums a share of them; fewer are sent to all workers in one exchange."""
_AHEAD = 256
"""Exchanges by which another worker may be ahead: sums that were begun, one for each layer of a model, and one more."""
_KINDS = {np.dtype(kind) for kind in (np.float32, np.float64, np.int64)}


class WireCollective:
    """The arrays that other workers sent in the newest round. An array that arrives twice is kept once."""

    def __init__(self, member: Member) -> None:
        self._world, self._changed = member.setup.layout.world, threading.Condition()
        self._generation, self._taken = 0, -1
        self._taken_early: set[int] = set()
        """Exchanges that were taken before an earlier one that is still pending."""
        self._arrays: dict[int, dict[int, Array]] = {}
        member.endpoint.serve("numbers", self._receive)

    def begin(self, generation: int) -> None:
        """Begin a round: arrays of earlier rounds are dropped, and some of this one may have arrived already."""
        with self._changed:
            self._turn_to(generation)

    def take(self, generation: int, number: int, seconds: float) -> dict[int, Array] | None:
        """All other workers' arrays of exchange `number`, by rank; None where some are missing after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_full(generation, number), seconds)
            if not self._is_full(generation, number):
                return None
            self._taken_early.add(number)
            while self._taken + 1 in self._taken_early:
                self._taken += 1
                self._taken_early.discard(self._taken)
            return self._arrays.pop(number)

    def _receive(self, message: Message, sender: str) -> Message:
        rank = worker_rank(sender, self._world, "send numbers to be summed")
        generation, number = int(message.body["generation"]), int(message.body["number"])
        if len(message.arrays) != 1 or message.arrays[0].ndim != 1 or message.arrays[0].dtype not in _KINDS:
            shapes = ", ".join(f"{each.dtype} {each.shape}" for each in message.arrays) or "nothing"
            raise PenstockError(
                f"{sender} sent {shapes} to be summed: send one flat array at a time.", code="malformed-message"
            )
        with self._changed:
            self._turn_to(generation)
            is_new = self._taken < number <= self._taken + _AHEAD and number not in self._taken_early
            if generation == self._generation and is_new:
                # Copied: an array from the wire is a view of the message.
                self._arrays.setdefault(number, {})[rank] = np.array(message.arrays[0])
                self._changed.notify_all()
        return Message("heard")

    def _turn_to(self, generation: int) -> None:
        if generation > self._generation:
            self._generation, self._taken, self._taken_early, self._arrays = generation, -1, set(), {}

    def _is_full(self, generation: int, number: int) -> bool:
        return generation == self._generation and len(self._arrays.get(number, ())) == self._world - 1


class WireGroup(StagedSums):
    """A collective group (see `CollectiveGroup`) for arrays in host memory, over the run's own connections."""

    def __init__(self, member: Member, generation: int, collective: WireCollective) -> None:
        self._member, self._generation, self._collective = member, generation, collective
        self._rank, self._world, self.device = member.setup.task.rank, member.setup.layout.world, torch.device("cpu")
        self._patience, self._number = member.setup.cluster.failure.patience, 0
        collective.begin(generation)

    def start_sum(self, numbers: Tensor) -> Callable[[], None]:
        """Sum the workers' arrays in the order of ranks, so that sums round the same in every run."""
        own = numbers.reshape(-1).numpy()
        in_shares = len(own) >= _SHARED
        bounds = [len(own) * rank // self._world for rank in range(self._world + 1)]
        whole = [own.copy()] * self._world
        sent = [own[first:last].copy() for first, last in itertools.pairwise(bounds)] if in_shares else whole
        finish = self._start(sent)

        def summed() -> None:
            total = _added(finish(), sent[self._rank])
            if in_shares:
                total = np.concatenate(self._start([total] * self._world)())
            numbers.copy_(torch.from_numpy(total).view_as(numbers))

        return summed

    def gather(self, numbers: Tensor) -> list[Tensor]:
        """The arrays of all workers, by rank."""
        # A copy is sent, as the numbers may change meanwhile.
        own = numbers.numpy().copy()
        return [torch.from_numpy(part) for part in self._start([own] * self._world)()]

    def _start(self, arrays: Sequence[Array]) -> Callable[[], list[Array]]:
        """Send each worker its array, by rank; returns a function that waits for what all workers sent to this one."""
        number, self._number = self._number, self._number + 1
        body = {"generation": self._generation, "number": number}
        # Sums are labelled as those of norms unless the caller says that they are gradients.
        with within_kind(GRADIENTS if current_coflow().kind == GRADIENTS else NORMS):
            sent = [
                self._member.endpoint.channel(f"worker-{rank}", "sums", 0).start(
                    Message("numbers", body, (array,)), self._patience
                )
                for rank, array in enumerate(arrays)
                if rank != self._rank
            ]

        def finish() -> list[Array]:
            found = self._await_arrays(number)
            for call in sent:
                call.result()
            found[self._rank] = arrays[self._rank]
            return [found[rank] for rank in range(self._world)]

        return finish

    def close(self) -> None:
        """Do nothing: workers that wait for this one learn from the controller that the round is over."""

    def _await_arrays(self, number: int) -> dict[int, Array]:
        end = time.monotonic() + self._patience
        while True:
            found = self._collective.take(self._generation, number, _LOOK)
            if found is not None:
                return found
            if time.monotonic() > end or self._member.is_over(self._generation):
                raise RegroupError("a worker's array did not arrive")


def _added(parts: Sequence[Array], own: Array) -> Array:
    """The sum of all workers' numbers, which must have the shape of this worker's own."""
    if any(part.shape != own.shape or part.dtype != own.dtype for part in parts):
        raise PenstockError(
            "Workers sent arrays of different sizes to be summed: run the same release on all machines.",
            code="malformed-message",
        )
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


# A `torch.distributed.Store` kept by the controller, in which the members of a process group find each other.

_AGAIN = 0.01


class RendezvousStore(Store):
    """The values of one round. Only the methods that torch's process groups use are implemented."""

    def __init__(self, member: Member, generation: int, patience: float) -> None:
        super().__init__()
        self._channel, self._generation, self._patience = (
            member.endpoint.channel("controller", "rendezvous"),
            generation,
            patience,
        )

    def set(self, key: str, value: bytes | str) -> None:
        """Write a value under a key."""
        raw = value.encode() if isinstance(value, str) else bytes(value)
        body = {"generation": self._generation, "key": key}
        self._channel.call(Message("write", body, (np.frombuffer(raw, np.uint8),)), self._patience)

    def get(self, key: str) -> bytes:
        """The value of a key; waits until it is set."""
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            found = self._read(key)
            if found is not None:
                return found
            time.sleep(_AGAIN)
        raise PenstockError(f"The workers did not find each other within {self._patience:g} s.", code="peer-lost")

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        return all(self._read(key) is not None for key in keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Write the values of several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether several keys can be read at once."""
        return True

    def clone(self) -> "RendezvousStore":
        """The store itself: it may be used from several threads."""
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: the run's own patience applies."""

    def _read(self, key: str) -> bytes | None:
        answer = self._channel.call(Message("read", {"generation": self._generation, "key": key}), self._patience)
        if answer.kind == "over":
            raise RegroupError
        return answer.arrays[0].tobytes() if answer.kind == "found" else None


# torch's process groups for one round: all-reduce and all-gather on the hosts or on the GPUs. When a worker is lost,
# sums in progress are abandoned, and all join the next round.

_SETTINGS = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Errors are raised to the waiting thread. By default torch ends the process when a sum takes too long."""
_LOOK_AT_WORK = 2e-5
"""Seconds between two checks whether a sum is done."""
_LOOK_AT_JOINING = 0.005
"""Seconds between two checks whether the group is made."""
_ASK = 0.25
"""Seconds between two checks whether the round is still current."""


class HostCollectiveGroup(StagedSums):
    """Uses torch's process group for hosts (gloo), which notices by itself when another worker is gone."""

    def __init__(self, member: Member, generation: int) -> None:
        setup = member.setup
        self.device, self._world = torch.device("cpu"), setup.layout.world
        # The group calls the store's methods, but does not keep a reference to it.
        self._store = RendezvousStore(member, generation, setup.cluster.failure.patience)
        gloo: Any = distributed.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=setup.task.address)]
        options._timeout = timedelta(seconds=setup.cluster.failure.patience)
        try:
            self._group: Any = gloo(self._store, setup.task.rank, setup.layout.world, options)
        except (RuntimeError, PenstockError) as error:
            raise RegroupError(str(error)) from error

    def start_sum(self, numbers: Tensor) -> Callable[[], None]:
        """All-reduce arrays in host memory, in place; gloo's own threads do it."""
        return self._start(lambda group: group.allreduce([numbers]))

    def gather(self, numbers: Tensor) -> list[Tensor]:
        """All-gather arrays in host memory."""

        def gather(out: list[Tensor], own: Tensor) -> None:
            self._start(lambda group: group.allgather([out], [own]))()

        return _padded(numbers, self._world, gather)

    def _start(self, start: Callable[[Any], Any]) -> Callable[[], None]:
        try:
            work = start(self._group)
        except RuntimeError as error:
            raise RegroupError(str(error)) from error

        def finish() -> None:
            try:
                work.wait()
            except RuntimeError as error:
                raise RegroupError(str(error)) from error

        return finish

    def close(self) -> None:
        """Give the group up, which closes its connections; it cannot sum any more."""
        self._group = None


class DeviceCollectiveGroup:
    """Uses NCCL, with a GPU for each worker. NCCL would wait for a lost worker for ever, so the round is checked
    meanwhile.
    """

    sums_on_device = True

    def __init__(self, member: Member, generation: int, device: torch.device) -> None:
        self._member, self._generation, self.device = member, generation, device
        self._patience = member.setup.cluster.failure.patience
        self._store = RendezvousStore(member, generation, self._patience)
        self._group: Any = None
        self._asked, self._closed, self._lock = time.monotonic(), False, threading.Lock()
        os.environ.update(_SETTINGS)
        self._join(torch.ones(1, device=device))

    def sum(self, numbers: Tensor) -> None:
        """All-reduce arrays in GPU memory, in place."""
        self._finish(lambda group: group.allreduce([numbers]))

    def launch_sum(self, numbers: Tensor) -> None:
        """The sum runs on the stream that computes: the host does not wait, and several sums may be in flight."""
        options: Any = distributed.AllreduceOptions()
        if hasattr(options, "asyncOp"):
            options.asyncOp = False
        try:
            work = self._group.allreduce([numbers], options)
        except RuntimeError as error:
            raise RegroupError(str(error)) from error
        if work is not None:
            # Before torch 2.7 the sum is on a stream of NCCL's own, and has to be waited for.
            self._finish(lambda _: work)

    def finish_sums(self, is_done: Callable[[], bool]) -> None:
        """Abort a sum that a lost worker does not join, and those after it."""
        self._watch(is_done, _LOOK_AT_WORK)

    def gather(self, numbers: Tensor) -> list[Tensor]:
        """All-gather arrays in GPU memory."""
        world = self._member.setup.layout.world
        return _padded(numbers, world, lambda out, own: self._finish(lambda group: group.allgather([out], [own])))

    def _finish(self, start: Callable[[Any], Any]) -> None:
        try:
            work = start(self._group)
            self._watch(work.is_completed, _LOOK_AT_WORK)
            # It is done: errors are raised now, and the computing stream continues after it.
            work.wait()
        except RuntimeError as error:
            raise RegroupError(str(error)) from error

    def close(self) -> None:
        """Abort what is in progress. NCCL waits until the GPU has finished other work, which is bounded."""
        with self._lock:
            self._closed = True
            group, self._group = self._group, None
        if group is not None:
            ending = threading.Thread(target=group.abort, name="nccl-ends", daemon=True)
            ending.start()
            ending.join(self._patience)

    def _join(self, one: Tensor) -> None:
        """Connect to the other workers. NCCL cannot be aborted meanwhile, so a thread does it, which would be left
        waiting.
        """
        setup, errors = self._member.setup, list[Exception]()

        def join() -> None:
            try:
                nccl: Any = distributed.ProcessGroupNCCL
                options = nccl.Options()
                options._timeout = timedelta(seconds=self._patience)
                group = nccl(self._store, setup.task.rank, setup.layout.world, options)
                # NCCL connects in the first sum.
                group.allreduce([one]).wait()
                with self._lock:
                    late = self._closed
                    self._group = None if late else group
                if late:
                    group.abort()
            except Exception as error:  # torch has many kinds, and one that is lost would look like a sum of nothing
                errors.append(error)

        thread = threading.Thread(target=join, name="nccl-joins", daemon=True)
        thread.start()
        self._watch(lambda: not thread.is_alive(), _LOOK_AT_JOINING)
        if errors:
            self._explain(errors[0])
        if float(one) != setup.layout.world:
            raise PenstockError(
                f"NCCL connected only {float(one):g} of {setup.layout.world} workers: set device to cpu.",
                code="external-failure",
            )

    def _explain(self, error: BaseException) -> None:
        """Raise RegroupError if the controller has reported a loss, which makes others fail; else
        an error about NCCL.
        """
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            if self._is_over():
                raise RegroupError(str(error)) from error
            time.sleep(_LOOK_AT_JOINING)
        what = " ".join(str(error).split())[:300]
        raise PenstockError(
            f"The workers' GPUs could not be joined by NCCL ({what}): set NCCL_DEBUG=INFO and look at the tasks' logs,"
            " or use reduce: servers.",
            code="external-failure",
        ) from error

    def _watch(self, is_done: Callable[[], bool], pause: float) -> None:
        end = time.monotonic() + self._patience
        while not is_done():
            if self._is_over() or time.monotonic() > end:
                self.close()
                raise RegroupError("a worker did not come to a sum")
            time.sleep(pause)

    def _is_over(self) -> bool:
        asks = time.monotonic() - self._asked >= _ASK
        if asks:
            self._asked = time.monotonic()
        return self._member.is_over(self._generation, asks)


def _padded(numbers: Tensor, world: int, gather: Callable[[list[Tensor], Tensor], None]) -> list[Tensor]:
    """Gather rows of different lengths with a group that gathers equal ones, by padding."""
    own = torch.tensor([len(numbers)], device=numbers.device)
    sizes = [torch.zeros_like(own) for _ in range(world)]
    gather(sizes, own)
    lengths = torch.cat(sizes).tolist()
    sent = functional.pad(numbers, (0, max(lengths) - len(numbers)))
    found = [torch.empty_like(sent) for _ in range(world)]
    if max(lengths):
        gather(found, sent)
    return [each[:length] for each, length in zip(found, lengths, strict=True)]


# The ways to sum gradients in a round, by name: torch's collectives, or the run's own wire.

MakeGroup = Callable[[Member, int, WireCollective, torch.device], CollectiveGroup | None]
"""(the worker, the round's number, its wire collective, the device of its gradients) -> the group;
None: it is alone.
"""


def _torch_group(
    member: Member, generation: int, collective: WireCollective, device: torch.device
) -> CollectiveGroup | None:
    """GPUs sum where each worker has its own (NCCL); workers that share one sum on their hosts (gloo)."""
    setup = member.setup
    if setup.layout.world == 1:
        return None
    if device.type == "cuda" and own_gpus(setup.cluster, setup.layout):
        return DeviceCollectiveGroup(member, generation, device)
    return HostCollectiveGroup(member, generation)


def _wire_group(
    member: Member, generation: int, collective: WireCollective, device: torch.device
) -> CollectiveGroup | None:
    """Hosts sum over the run's own authenticated and encrypted connections."""
    return WireGroup(member, generation, collective) if member.setup.layout.world > 1 else None


class Reduction(NamedTuple):
    """One way to sum gradients over workers."""

    make_group: MakeGroup
    on_the_wire: bool
    """Whether what is summed is protected like the run's other messages."""


REDUCTIONS = {"torch": Reduction(_torch_group, False), "wire": Reduction(_wire_group, True)}
