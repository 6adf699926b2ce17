"""What an OGB folder holds, before it is a graph."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType

NODE_TYPE = "node"
EDGE_TYPE = (NODE_TYPE, "to", NODE_TYPE)

# OGB's names for what Penstock calls otherwise; every other array keeps its name.
_NAMES = {"node_feat": "x", "edge_feat": "edge_attr"}


@dataclass
class RawEdges:
    """Edges of one type, in stored order."""

    sources: Array
    destinations: Array
    fields: dict[str, Array] = field(default_factory=dict)


@dataclass
class RawGraph:
    """Vertex counts and fields by node type, edges by edge type. Labels are the field `y`."""

    counts: dict[str, int]
    fields: dict[str, dict[str, Array]]
    edges: dict[EdgeType, RawEdges]


def field_name(stored: str) -> str:
    """The field an OGB array becomes."""
    return _NAMES.get(stored, stored)


def tidy(fields: Mapping[str, Array]) -> dict[str, Array]:
    """Fields under their names; a lone column that is no feature matrix is a plain list of values."""
    return {
        field_name(key): values[:, 0] if key not in _NAMES and values.ndim == 2 and values.shape[1] == 1 else values
        for key, values in fields.items()
    }


def class_labels(stored: Array) -> Array:
    """Labels as int64 with -1 for none (NaN or negative); numbers that are no classes stay float32."""
    labels = stored[:, 0] if stored.ndim == 2 and stored.shape[1] == 1 else stored
    if labels.dtype.kind == "f":
        missing = np.isnan(labels)
        if not np.all(missing | (labels == np.floor(labels))):
            return labels.astype(np.float32, copy=False)
        labels = np.where(missing, -1, labels)
    return np.maximum(labels.astype(np.int64, copy=False), -1)


def only_count(numbers: Array, path: Path) -> int:
    """The one number of a file that has a number for each graph of a set."""
    if numbers.size != 1:
        raise PenstockError(
            f"{path} counts {numbers.size:,} graphs: Penstock trains on one, so this set cannot be used.",
            code="wrong-file",
        )
    return int(numbers.reshape(-1)[0])
