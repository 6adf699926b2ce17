"""OGB's splits: vertices to train and evaluate on, or edges kept out of the graph."""

import codecs
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.edges import vertex_numbers
from penstock.graph.convert.ogb.tables import read_numbers
from penstock.graph.input_files import open_regular
from penstock.graph.tensors import to_array

# OGB's name, Penstock's name.
NAMES = {"train": "train", "valid": "val", "test": "test"}

Links = Mapping[str, Any]
"""One split of a link set: arrays under OGB's names (`edge`, `source_node`, `head`, ...)."""


def read_splits(
    folder: Path, scheme: str | None, counts: Mapping[str, int]
) -> tuple[dict[str, dict[str, Array]], dict[str, Links]]:
    """Vertex splits by node type, and link splits; the training edges of those are the graph itself."""
    folder = _scheme(folder, scheme)
    vertices: dict[str, dict[str, Array]] = {}
    links: dict[str, Links] = {}
    for stored, rows in _stored(folder, counts).items():
        name = NAMES.get(stored, stored)
        if not isinstance(rows, Mapping):
            rows = {next(iter(counts)): rows}
        if set(rows) <= set(counts):
            for node_type, numbers in rows.items():
                where = f"{folder}, {stored}"
                checked = vertex_numbers(to_array(numbers, where), counts[node_type], where)
                vertices.setdefault(node_type, {})[name] = np.sort(checked.astype(np.int64))
        elif name != "train":
            links[name] = rows
    return vertices, links


def _scheme(folder: Path, scheme: str | None) -> Path:
    """The way of splitting, if the set has several."""
    schemes = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if scheme is None and len(schemes) == 1:
        scheme = schemes[0]
    if not schemes:
        raise PenstockError(f"{folder} holds no split: download the set again.", code="split-missing")
    if scheme is None:
        raise PenstockError(
            f"{folder} holds several splits: choose a scheme ({', '.join(schemes)}).", code="option-missing"
        )
    if scheme not in schemes:
        raise PenstockError(
            f"{folder} has no split {scheme!r}: choose one of {', '.join(schemes)}.", code="unknown-name"
        )
    return folder / scheme


def _stored(folder: Path, counts: Mapping[str, int]) -> dict[str, Any]:
    """What the files say, in whichever of OGB's four ways they say it."""
    if (folder / "split_dict.pt").is_file():
        stored: dict[str, Any] = load_saved(folder / "split_dict.pt")
        return stored
    if (folder / "train.csv.gz").is_file():
        return {name: read_numbers(folder / f"{name}.csv.gz") for name in NAMES}
    if (folder / "test.pt").is_file():
        return {name: load_saved(folder / f"{name}.pt") for name in NAMES if name != "train"}
    typed = [name for name in counts if (folder / name / "train.csv.gz").is_file()]
    if not typed:
        raise PenstockError(
            f"{folder} has no train.csv.gz, train.pt or split_dict.pt: download the set again.", code="split-missing"
        )
    return {
        stored: {node_type: read_numbers(folder / node_type / f"{stored}.csv.gz") for node_type in typed}
        for stored in NAMES
    }


def load_saved(path: Path) -> Any:
    """What `torch.save` wrote: dicts, lists, tensors and NumPy arrays, and nothing else."""
    import torch

    try:
        with torch.serialization.safe_globals(_array_makers()), open_regular(path) as file:
            return torch.load(file, map_location="cpu", weights_only=True)
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
