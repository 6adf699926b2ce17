"""A region of memory on a device: one-sided reads and writes are copies over the bus."""

from typing import Any

from penstock.errors import PenstockError


class DeviceRegion:
    """Bytes in a tensor of type uint8, on a GPU or elsewhere; reads and writes wait for their copy."""

    def __init__(self, tensor: Any) -> None:
        """`tensor`: one row of bytes, which the application computes with as it likes."""
        # Torch takes a second to import, and only those who have a tensor have it already.
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
        self._check(offset, len(data))
        if data:
            given = self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)
            self.tensor[offset : offset + len(data)].copy_(given)

    def read(self, offset: int, size: int) -> bytes:
        """A copy of the bytes at an offset."""
        self._check(offset, size)
        return bytes(self.tensor[offset : offset + size].cpu().numpy())

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise PenstockError(
                f"Bytes {offset} to {offset + size} are outside of a region of {self.size} bytes.",
                code="value-out-of-range",
            )
