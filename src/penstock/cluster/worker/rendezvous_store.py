"""A `torch.distributed.Store` kept by the controller, in which the members of a process group find each other."""

import time
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
from torch.distributed.distributed_c10d import Store

from penstock.cluster.member import Member
from penstock.errors import PenstockError
from penstock.train.execution.worker_group import RegroupError
from penstock.wire import Message

_AGAIN = 0.01


class RendezvousStore(Store):
    """The values of one round. What torch's process groups do not ask for is not there."""

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
        """A value, once it is there."""
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
        """Whether several can be asked for at once."""
        return True

    def clone(self) -> "RendezvousStore":
        """The store itself: it may be used from several threads."""
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """The run's own patience counts."""

    def _read(self, key: str) -> bytes | None:
        answer = self._channel.call(Message("read", {"generation": self._generation, "key": key}), self._patience)
        if answer.kind == "over":
            raise RegroupError
        return answer.arrays[0].tobytes() if answer.kind == "found" else None
