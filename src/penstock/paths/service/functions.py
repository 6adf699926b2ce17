"""What an application registers: functions for communication, memory, time and its own work, by name and role."""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from penstock.errors import PenstockError, nearest

Communication = Callable[[bytes], bytes]
"""Sends a request over one path and returns the answer; called by several threads."""
MemoryFunction = Callable[..., Any]
"""`write(offset, data)` or `read(offset, size)` of a region."""
Timestamp = Callable[[], int]
"""Nanoseconds on a clock of this host."""
ApplicationFunction = Callable[[bytes], bytes]
"""Works on a request of one type at one node."""


class Functions:
    """The functions of one side of a service."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Callable[..., Any]] = {("timestamp", "software", ""): perf_counter_ns}

    def register_communication(self, function: Communication, path: str, role: str = "requester") -> None:
        """`function` carries messages over the path of that name."""
        self._register("communication", function, path, role)

    def register_memory(self, function: MemoryFunction, name: str, region: str) -> None:
        """`function` is how a region of memory is read (`name` is "read") or written ("write")."""
        if name not in ("read", "write"):
            raise PenstockError(f"A memory function is 'read' or 'write', not {name!r}.", code="invalid-value")
        self._register("memory", function, name, region)

    def register_timestamp(self, function: Timestamp, name: str = "software") -> None:
        """`function` tells the time; "software" is used unless "hardware" is registered."""
        self._found["timestamp", name, ""] = function

    def register_application(self, function: ApplicationFunction, request: str, role: str) -> None:
        """`function` handles requests of a type at a node."""
        self._register("application", function, request, role)

    def get(self, what: str, name: str, role: str) -> Callable[..., Any]:
        """The function that was registered, or a sentence."""
        found = self._found.get((what, name, role))
        if found is None:
            known = [f"{other} for {whose}" for kind, other, whose in self._found if kind == what]
            raise PenstockError(
                f"No {what} function is registered for {name!r} and {role!r}{nearest(name, known) if known else '.'}",
                code="unknown-name",
            )
        return found

    def has(self, what: str, name: str, role: str) -> bool:
        """Whether such a function was registered."""
        return (what, name, role) in self._found

    def now(self) -> int:
        """Nanoseconds, by the hardware's clock where one is registered."""
        clock = self._found.get(("timestamp", "hardware", "")) or self._found["timestamp", "software", ""]
        return int(clock())

    def _register(self, what: str, function: Callable[..., Any], name: str, role: str) -> None:
        if (what, name, role) in self._found:
            raise PenstockError(
                f"A {what} function is registered for {name!r} and {role!r} already: register each once.",
                code="duplicate",
            )
        self._found[what, name, role] = function
