"""The allocations and frees of a computation that is traced on tensors without numbers, in their order.

The tensors are torch's `meta` tensors: shapes and types that go through operations and autograd and take no memory.
torch's `FakeTensorMode`, which is made of them, would bring its compiler along: seconds of import, and more memory than
many a job.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from penstock.train.memory.shapes import like, rule_for

META = torch.device("meta")


class Event(NamedTuple):
    """Memory of a tensor that is taken (bytes above zero) or given back (below)."""

    storage: int
    """Names the memory."""
    bytes: int
    moment: str
    """What was computed."""


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, new tensors have no numbers, and the memory of each is noted until nothing refers to it.

    A tensor's memory lives as long as Python or autograd keeps it, here as in a real step, since the same code runs.
    Real tensors are read as if they had no numbers; they are not noted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.moment = ""
        self._alive: dict[int, tuple[int, Any]] = {}
        self._names = 0
        self._counts_steps = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled here, and torch's compiler takes seconds to import."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation on shapes alone, and note what it allocates."""
        if self._counts_steps and func is torch.ops.aten._local_scalar_dense.default:
            return 1
        args, kwargs = tree_map_only(torch.Tensor, _without_numbers, (args, dict(kwargs or {})))
        if _chooses_device(func):
            kwargs |= {"device": META}
            kwargs.pop("pin_memory", None)
        out = rule_for(func)(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor)
        return out

    def note(self, tensor: torch.Tensor) -> None:
        """Follow a tensor's memory from now on, unless it is known."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._alive.get(key)
        if known is not None and known[1]() is not None:
            return
        size = storage.nbytes()
        if not size:
            return
        self._names += 1
        name = self._names
        self.events.append(Event(name, size, self.moment))
        self._alive[key] = name, weakref.ref(storage, lambda _: self._freed(key, name, size))

    def _freed(self, key: int, name: int, size: int) -> None:
        self.events.append(Event(name, -size, self.moment))
        found = self._alive.get(key)
        if found is not None and found[0] == name:
            del self._alive[key]

    @contextmanager
    def during(self, moment: str) -> Iterator[None]:
        """What happens within it happens at this moment of the run."""
        before, self.moment = self.moment, moment
        try:
            yield
        finally:
            self.moment = before

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around an optimiser's step: the only numbers that it asks for are counts of its steps."""
        self._counts_steps = True
        try:
            yield
        finally:
            self._counts_steps = False

    @property
    def now(self) -> int:
        """Bytes that are taken at this moment."""
        return sum(event.bytes for event in self.events)


def _without_numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_meta else like(tensor)


@cache
def _chooses_device(operation: Any) -> bool:
    return any(argument.name == "device" for argument in operation._schema.arguments)


class PeakMemory(NamedTuple):
    """The most memory that was taken at once, and when."""

    bytes: int
    moment: str


def peak_of(events: list[Event], unit: int = 1) -> PeakMemory:
    """The most that was allocated at once, each allocation rounded up to whole units."""
    now = most = 0
    moment = ""
    for event in events:
        size = -(-abs(event.bytes) // unit) * unit
        now += size if event.bytes > 0 else -size
        if now > most:
            most, moment = now, event.moment
    return PeakMemory(most, moment)
