"""A file of named tensors and plain values: one zip, every member with a checksum, no pickle, appears whole."""

import json
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, read_member
from penstock.graph.atomic import replace_whole
from penstock.graph.input_files import open_regular

_DOCUMENT = "state.json"
_FORMAT, _VERSION = "penstock-state", 1
_PLAIN = (bool, int, float, str, type(None))
_DAMAGE = (
    *(
        OSError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        EOFError,
        RuntimeError,
        MemoryError,
        OverflowError,
        RecursionError,
    ),
    *(zipfile.BadZipFile, struct.error),
)
"""What reading raises where bytes have changed. A changed version or flag of a zip file is a RuntimeError there."""
_WIDE = {torch.bfloat16: torch.int16}
"""Types NumPy does not have, and what their bits are stored as."""


class DamagedState(PenstockError):  # noqa: N818
    """A state file whose bytes have changed since it was written, or that is not there any more."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="damaged-file")


def write_state(path: Path, state: Mapping[str, Any], durable: bool = True) -> None:
    """Write nested dicts and lists of tensors, arrays and plain values; the file takes its name when it is whole.

    One that is not `durable` outlives the process, but perhaps not the machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, lambda file: pack_state(file, state), durable)


def read_state(path: Path) -> dict[str, Any]:
    """What `write_state` wrote, checked against its checksums; tensors come back as tensors."""
    try:
        with open_regular(path) as file:
            return unpack_state(file, os.fstat(file.fileno()).st_size, str(path))
    except FileNotFoundError:
        raise DamagedState(f"{path} does not exist") from None
    except OSError as error:
        raise DamagedState(f"{path} cannot be read ({error})") from None


def pack_state(file: BinaryIO, state: Mapping[str, Any]) -> None:
    """Write a state to an open file."""
    arrays: dict[str, Array] = {}
    tree = _encode(state, arrays)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)
        archive.writestr(_DOCUMENT, json.dumps({"format": _FORMAT, "version": _VERSION, "state": tree}))


def unpack_state(file: BinaryIO, size: int, where: str) -> dict[str, Any]:
    """Read a state from an open file of `size` bytes; `where` names it in errors."""
    try:
        with zipfile.ZipFile(file) as archive:
            unread = _members(archive, size)
            document = json.loads(archive.read(_DOCUMENT))
            if document.get("format") != _FORMAT or document.get("version") != _VERSION:
                raise PenstockError(
                    f"{where} is not a state file of this release: use the release that wrote it.",
                    code="unsupported-version",
                )
            decoded = _decode(document["state"], archive, unread)
    except _DAMAGE as error:
        raise DamagedState(f"{where} is damaged ({error})") from None
    if not isinstance(decoded, dict):
        raise DamagedState(f"{where} is damaged (it does not hold a mapping)")
    return decoded


def _encode(value: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value.detach().cpu(), arrays)
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"$array": name}
    if isinstance(value, np.generic):
        return _encode(value.item(), arrays)
    if isinstance(value, Mapping):
        return {"$items": [[_encode(key, arrays), _encode(each, arrays)] for key, each in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_encode(each, arrays) for each in value]
    if isinstance(value, _PLAIN):
        return value
    raise PenstockError(
        f"A {type(value).__name__} cannot be stored in a checkpoint: use another optimiser.",
        code="unsupported-combination",
    )


def _encode_tensor(value: torch.Tensor, arrays: dict[str, Array]) -> dict[str, str]:
    name = f"t{len(arrays)}"
    stored = value.view(_WIDE[value.dtype]) if value.dtype in _WIDE else value
    arrays[name] = stored.contiguous().numpy()
    return {"$tensor": name, "dtype": str(value.dtype).removeprefix("torch.")}


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name, as large together as the file at most: what is read takes no more memory than that."""
    members = {info.filename: info for info in archive.infolist()}
    if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
        raise ValueError("a member is compressed, and checkpoints are not")
    if sum(info.file_size for info in archive.infolist()) > size:
        raise ValueError("its members are larger than the file")
    return members


def _decode(value: Any, archive: zipfile.ZipFile, unread: dict[str, zipfile.ZipInfo]) -> Any:
    if isinstance(value, list):
        return [_decode(each, archive, unread) for each in value]
    if not isinstance(value, dict):
        return value
    if "$items" in value:
        return {_decode(key, archive, unread): _decode(each, archive, unread) for key, each in value["$items"]}
    # Taken out: an array named a thousand times would be read into memory as often.
    array = read_member(archive, unread.pop(f"{value.get('$tensor') or value['$array']}.npy"))
    if "$array" in value:
        return array
    dtype = getattr(torch, value["dtype"])
    tensor = torch.from_numpy(array)
    if tensor.dtype != _WIDE.get(dtype, dtype):
        raise ValueError(f"a tensor of {dtype} is stored as {tensor.dtype}")
    return tensor.view(dtype)
