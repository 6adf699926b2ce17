"""torch's process groups for one round: all-reduce and all-gather on the hosts or on the GPUs.

When a worker is lost, sums under way are given up, and all meet again.
"""

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional

from penstock.cluster.member import Member
from penstock.cluster.worker.collective_group import StagedSums
from penstock.cluster.worker.rendezvous_store import RendezvousStore
from penstock.errors import PenstockError
from penstock.train.execution.worker_group import RegroupError

_SETTINGS = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Errors are told to whoever waits. By default torch ends the process when a sum takes too long."""
_LOOK = 2e-5
"""Seconds between two looks at whether a sum is done,"""
_LOOK_AT_JOINING = 0.005
"""or the group is made,"""
_ASK = 0.25
"""and between two questions whether the round still holds."""


class HostCollectiveGroup(StagedSums):
    """By torch's group for hosts (gloo), which notices by itself when another worker is gone."""

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
        """Close the group's connections."""
        self._group = None


class DeviceCollectiveGroup:
    """By NCCL, a GPU a worker. It would wait for a lost worker for ever: while it works, the round is watched."""

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
        """On the stream that computes: the host does not wait, and several sums may be on their way."""
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
        """A sum that a lost worker does not come to is called off, and so are those behind it."""
        self._watch(is_done, _LOOK)

    def gather(self, numbers: Tensor) -> list[Tensor]:
        """All-gather arrays in GPU memory."""
        world = self._member.setup.layout.world
        return _padded(numbers, world, lambda out, own: self._finish(lambda group: group.allgather([out], [own])))

    def _finish(self, start: Callable[[Any], Any]) -> None:
        try:
            work = start(self._group)
            self._watch(work.is_completed, _LOOK)
            # It is done: what went wrong is said now, and the stream that computes comes behind.
            work.wait()
        except RuntimeError as error:
            raise RegroupError(str(error)) from error

    def close(self) -> None:
        """Give up what is under way. NCCL waits until the GPU is done with what is not NCCL's: not for ever."""
        with self._lock:
            self._closed = True
            group, self._group = self._group, None
        if group is not None:
            ending = threading.Thread(target=group.abort, name="nccl-ends", daemon=True)
            ending.start()
            ending.join(self._patience)

    def _join(self, one: Tensor) -> None:
        """Find the others. NCCL cannot be called off meanwhile: a thread of its own would be left waiting."""
        setup, errors = self._member.setup, list[Exception]()

        def join() -> None:
            try:
                nccl: Any = distributed.ProcessGroupNCCL
                options = nccl.Options()
                options._timeout = timedelta(seconds=self._patience)
                group = nccl(self._store, setup.task.rank, setup.layout.world, options)
                # Connections are made by the first sum.
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
        """Others may have failed because one was lost, which the controller knows in time; else it was NCCL itself."""
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
        member = self._member
        if member.round >= self._generation or member.stopped.is_set():
            return True
        if time.monotonic() - self._asked < _ASK:
            return False
        self._asked = time.monotonic()
        return not member.ask("holds", generation=self._generation).body["holds"]


def _padded(numbers: Tensor, world: int, gather: Callable[[list[Tensor], Tensor], None]) -> list[Tensor]:
    """Rows of different lengths, by a group that gathers such as are equally long."""
    own = torch.tensor([len(numbers)], device=numbers.device)
    sizes = [torch.zeros_like(own) for _ in range(world)]
    gather(sizes, own)
    lengths = torch.cat(sizes).tolist()
    sent = functional.pad(numbers, (0, max(lengths) - len(numbers)))
    found = [torch.empty_like(sent) for _ in range(world)]
    if max(lengths):
        gather(found, sent)
    return [each[:length] for each, length in zip(found, lengths, strict=True)]
