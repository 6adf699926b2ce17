"""Tensors as a .safetensors file: the length of a JSON header, the header, and the numbers one behind the other."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch

from penstock.errors import PenstockError
from penstock.graph.atomic import replace_whole

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
}
_ALIGNED = 8
"""The numbers begin at a multiple of as many bytes: the header is filled up with spaces."""


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, str]) -> None:
    """Write named tensors; `about` are words for whoever opens the file."""
    header: dict[str, object] = {"__metadata__": dict(about)}
    place = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise PenstockError(
                f"Weight {name} is of type {tensor.dtype}, which is not exported: convert the model.", code="wrong-type"
            )
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, place + size],
        }
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)

    def write(file: BinaryIO) -> None:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())

    replace_whole(path, write)
