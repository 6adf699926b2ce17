"""The answering side: what an application registers, regions of memory among it, and the format of messages."""

import mmap
import os
import secrets
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

from penstock.closed_on_exit import ClosedOnExit
from penstock.errors import PenstockError, nearest
from penstock.paths.documents import HardwareDocument
from penstock.wire.message import Malformed

# What an application registers: functions for communication, memory, time and its own work, by name and role.

Communication = Callable[[bytes], bytes]
"""Sends a request over one path and returns the answer; called by several threads."""
MemoryFunction = Callable[..., Any]
"""`write(offset, data)` or `read(offset, size)` of a region."""
Timestamp = Callable[[], int]
"""Nanoseconds on a clock of this host."""
ApplicationFunction = Callable[[bytes], bytes]
"""Works on a request of one type at one node."""


class Functions:
    """The registered functions of one side of a service."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Callable[..., Any]] = {("timestamp", "software", ""): perf_counter_ns}

    def register_communication(self, function: Communication, path: str, role: str = "requester") -> None:
        """Register a function that sends messages over the path of that name."""
        self._register("communication", function, path, role)

    def register_memory(self, function: MemoryFunction, name: str, region: str) -> None:
        """Register how a region of memory is read (`name` is "read") or written ("write")."""
        if name not in ("read", "write"):
            raise PenstockError(f"A memory function is 'read' or 'write', not {name!r}.", code="invalid-value")
        self._register("memory", function, name, region)

    def register_timestamp(self, function: Timestamp, name: str = "software") -> None:
        """Register a clock; "software" is used unless "hardware" is registered."""
        self._found["timestamp", name, ""] = function

    def register_application(self, function: ApplicationFunction, request: str, role: str) -> None:
        """Register a function that handles requests of a type at a node."""
        self._register("application", function, request, role)

    def get(self, what: str, name: str, role: str) -> Callable[..., Any]:
        """The registered function; an error if there is none."""
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


# The messages between requester and responder: a request with its type, an answer with its time there. An answer begins
# with 4 bytes: the responder's t4 - t3 in microseconds, or the largest number if it took longer. Everything that
# arrives is validated: lengths are checked before anything is read.

ASK, WRITE, READ = 0, 1, 2
_HEAD = struct.Struct("<BBQQ")
_TOOK = struct.Struct("<I")
HEADER_BYTES = _TOOK.size
_LONGEST = (1 << 32) - 1


class Request(NamedTuple):
    """A request: `name` is a request type (ASK) or a region of memory (WRITE, READ)."""

    operation: int
    name: str
    payload: bytes = b""
    offset: int = 0
    size: int = 0


def pack_request(request: Request) -> bytes:
    """Encode a request as bytes."""
    name = request.name.encode()
    if len(name) > 255:
        raise Malformed(f"The name {request.name[:40]!r}... is longer than 255 bytes.")
    return _HEAD.pack(request.operation, len(name), request.offset, request.size) + name + request.payload


def unpack_request(message: bytes) -> Request:
    """The request in a message, or Malformed."""
    if len(message) < _HEAD.size:
        raise Malformed(f"A request of {len(message)} bytes is shorter than its head.")
    operation, length, offset, size = _HEAD.unpack_from(message)
    end = _HEAD.size + length
    if operation not in (ASK, WRITE, READ) or len(message) < end:
        raise Malformed("A request's head does not fit the request.")
    try:
        name = message[_HEAD.size : end].decode()
    except UnicodeDecodeError:
        raise Malformed("The name in a request is not UTF-8.") from None
    return Request(operation, name, message[end:], offset, size)


def pack_answer(took_us: float, payload: bytes) -> bytes:
    """An answer with the time between t3 and t4."""
    return _TOOK.pack(min(max(round(took_us), 0), _LONGEST)) + payload


def unpack_answer(message: bytes) -> tuple[float, bytes]:
    """Microseconds between t3 and t4, and the payload; or Malformed."""
    if len(message) < HEADER_BYTES:
        raise Malformed(f"An answer of {len(message)} bytes has no header.")
    return float(_TOOK.unpack_from(message)[0]), message[HEADER_BYTES:]


# The answering side: application functions at nodes with a parallel capacity, and regions of memory.

_LARGEST_READ = 1 << 30


class Responder(Functions):
    """Handles requests. A node works on as many at once as its capacity; others wait, which t4 - t3 includes."""

    def __init__(self, hardware: HardwareDocument) -> None:
        super().__init__()
        self._places = {name: threading.Semaphore(node.capacity) for name, node in hardware.nodes.items()}

    def handle(self, message: bytes, role: str) -> bytes:
        """The answer to a message at the node `role`, with its header. May be called by many threads."""
        arrived = self.now()
        request = unpack_request(message)
        if role not in self._places:
            raise PenstockError(f"There is no node {role!r}{nearest(role, self._places)}", code="unknown-name")
        if request.operation == ASK:
            function = self.get("application", request.name, role)
            with self._places[role]:
                payload = function(request.payload)
        elif request.operation == WRITE:
            self.get("memory", "write", request.name)(request.offset, request.payload)
            payload = b""
        else:
            assert request.operation == READ, "checked when it was unpacked"
            if request.size > _LARGEST_READ:
                raise PenstockError(f"A read of {request.size} bytes is too large.", code="too-large")
            payload = bytes(self.get("memory", "read", request.name)(request.offset, request.size))
        return pack_answer((self.now() - arrived) / 1e3, payload)


# A region of memory that processes of one host share: one-sided reads and writes bypass the other process.

_FOLDER = Path("/dev/shm")


class SharedRegion(ClosedOnExit):
    """Bytes in shared memory. Only the user who made it can open it: its file is readable only by its owner."""

    def __init__(self, size: int, path: Path | None = None) -> None:
        """Make a region of `size` bytes, or map the one at `path` that another process made."""
        self._made = path is None
        if path is None:
            folder = _FOLDER if _FOLDER.is_dir() else Path("/tmp")
            path = folder / f"penstock-paths-{secrets.token_hex(8)}"
        self.path, self.size = path, size
        flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if self._made else 0)
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise PenstockError(f"There is no shared region {path}: make it first.", code="file-not-found") from None
        try:
            found = os.fstat(descriptor)
            if self._made:
                os.ftruncate(descriptor, size)
            elif found.st_uid != os.geteuid() or found.st_mode & 0o077 or found.st_size != size:
                raise PenstockError(
                    f"The shared region {path} is not of this user, is open to others, or is not {size} bytes.",
                    code="not-permitted",
                )
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes at an offset."""
        _check(self, offset, len(data))
        self._map[offset : offset + len(data)] = data

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at an offset."""
        _check(self, offset, size)
        return self._map[offset : offset + size]

    def close(self) -> None:
        """Unmap it; its maker also removes it."""
        self._map.close()
        if self._made:
            self.path.unlink(missing_ok=True)


# A region of memory on a device: one-sided reads and writes are copies over the bus.


class DeviceRegion:
    """Bytes in a tensor of type uint8, on a GPU or elsewhere; reads and writes wait for their copy."""

    def __init__(self, tensor: Any) -> None:
        """`tensor`: one row of bytes, which the application may use freely."""
        # Torch takes a second to import, and a caller with a tensor has imported it already.
        import torch

        self._torch = torch
        if tensor.dtype != torch.uint8 or tensor.dim() != 1 or not tensor.is_contiguous():
            raise PenstockError(
                "A region on a device is one contiguous row of bytes: give a tensor of type uint8 with one dimension.",
                code="shape-mismatch",
            )
        self.tensor, self.size = tensor, len(tensor)

    def write(self, offset: int, data: bytes) -> None:
        """Copy bytes to an offset."""
        _check(self, offset, len(data))
        if data:
            given = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
            self.tensor[offset : offset + len(data)].copy_(given)

    def read(self, offset: int, size: int) -> bytes:
        """A copy of the bytes at an offset."""
        _check(self, offset, size)
        return bytes(self.tensor[offset : offset + size].cpu().numpy())


def _check(region: SharedRegion | DeviceRegion, offset: int, size: int) -> None:
    if offset < 0 or size < 0 or offset + size > region.size:
        raise PenstockError(
            f"Bytes {offset} to {offset + size} are outside of a region of {region.size} bytes.",
            code="value-out-of-range",
        )
