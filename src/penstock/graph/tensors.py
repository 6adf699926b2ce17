"""Torch tensors as NumPy arrays and back, without copies where both sides allow it."""

from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array


def to_array(value: Any, what: str) -> Array:
    """A tensor or array as an array, shared if it is on the CPU. `what` names it in sentences."""
    import torch

    if not isinstance(value, torch.Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise PenstockError(
                f"{what} holds {array.dtype}, which is not numeric: convert or remove it.", code="wrong-type"
            )
        return array
    if value.layout is not torch.strided:
        raise PenstockError(f"{what} is a sparse tensor: give it as a dense one (.to_dense()).", code="wrong-type")
    # Subclasses such as PyG's EdgeIndex have opinions on conversions; the plain tensor below them has none.
    plain = value.detach().as_subclass(torch.Tensor).cpu()
    try:
        array = plain.numpy()
    except TypeError:
        raise PenstockError(
            f"{what} is {value.dtype}, which NumPy does not support: convert it, for example with .float().",
            code="wrong-type",
        ) from None
    return array


def to_tensor(array: Array, what: str) -> Any:
    """An array as a tensor that may be written to; a mapped one is mapped again, copy-on-write."""
    import torch

    try:
        return torch.from_numpy(_writable(array.astype(array.dtype.newbyteorder("="), copy=False)))
    except TypeError:
        raise PenstockError(
            f"{what} is {array.dtype}, which torch does not support: convert or remove it.", code="wrong-type"
        ) from None


def _writable(array: Array) -> Array:
    if array.flags.writeable:
        return array
    base = array.base
    if isinstance(base, np.memmap) and base.filename is not None and base.nbytes == array.nbytes:
        return np.memmap(base.filename, array.dtype, "c", base.offset, array.shape).view(np.ndarray)
    return array.copy()
