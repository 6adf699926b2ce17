"""OGB's `.pt` files: plain tensors and arrays, read without running anything they contain."""

import codecs
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError


def load_saved(path: Path) -> Any:
    """What `torch.save` wrote: dicts, lists, tensors and NumPy arrays, and nothing else."""
    import torch

    try:
        with torch.serialization.safe_globals(_array_makers()):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise PenstockError(f"{path} is missing: download the set again.", code="file-not-found") from None
    except pickle.UnpicklingError:
        raise PenstockError(
            f"{path} holds more than tensors and arrays, which will not be run:"
            " load it where you trust it and save it again as plain tensors.",
            code="untrusted-code",
        ) from None
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise PenstockError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): download the set again.", code="damaged-file"
        ) from None


def _array_makers() -> list[Any]:
    """What rebuilds a NumPy array, under its names in old and new NumPy. None of it can do harm."""
    reconstruct = np.zeros(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    named = [
        (made, f"{module}.{made.__name__}")  # type: ignore[union-attr]
        for made in (reconstruct, scalar)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray")
    ]
    kinds = [type(np.dtype(kind)) for kind in ("int64", "int32", "float64", "float32", "bool", "uint8")]
    # Contents are pickled as text that `encode` turns back to bytes, those of empty arrays as `bytes()`.
    contents = [(codecs.encode, "_codecs.encode"), (bytes, "__builtin__.bytes"), (bytes, "builtins.bytes")]
    return [*named, *kinds, *contents, np.ndarray, np.dtype]
