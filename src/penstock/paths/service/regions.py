"""Regions of memory for one-sided reads and writes: shared by processes of one host, or on a device."""

import mmap
import os
import secrets
from pathlib import Path
from typing import Any

from penstock.closed_on_exit import ClosedOnExit
from penstock.errors import PenstockError

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
