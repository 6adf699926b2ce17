"""OGB's `.npz` layout, of one type and of several.

NumPy reads an archive's member whole, so a set such as ogbn-papers100M needs memory for its features and
edges; nothing is copied beyond that until the lists are built.
"""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.ogb.raw import EDGE_TYPE, NODE_TYPE, RawEdges, RawGraph, class_labels, tidy
from penstock.graph.schema import EdgeType

_COUNTS = ("num_nodes_dict.npz", "num_edges_dict.npz", "edge_index_dict.npz")


def read_binary(raw: Path) -> RawGraph:
    """A graph of one type: `data.npz` and `node-label.npz`."""
    path = raw / "data.npz"
    arrays = _arrays(path)
    for key in ("num_nodes_list", "edge_index"):
        if key not in arrays:
            raise PenstockError(f"{path} has no array {key!r}: download the set again.", code="damaged-file")
    count = _only(arrays["num_nodes_list"], path)
    sources, destinations = arrays["edge_index"]
    fields = tidy({key: values for key, values in arrays.items() if key.startswith("node_")})
    edge_fields = {key: values for key, values in arrays.items() if key.startswith("edge_") and key != "edge_index"}
    labels = raw / "node-label.npz"
    if labels.is_file():
        fields["y"] = class_labels(next(iter(_arrays(labels).values())))
    edges = RawEdges(sources, destinations, tidy(edge_fields))
    return RawGraph({NODE_TYPE: count}, {NODE_TYPE: fields}, {EDGE_TYPE: edges})


def read_typed_binary(raw: Path) -> RawGraph:
    """A graph of several types: one archive per array, with a member per type."""
    counts = {name: _only(numbers, raw) for name, numbers in _arrays(raw / "num_nodes_dict.npz").items()}
    stored: dict[str, dict[str, Array]] = {name: {} for name in counts}
    edge_fields: dict[EdgeType, dict[str, Array]] = {}
    for path in sorted(raw.glob("*.npz")):
        name = path.stem.removesuffix("_dict")
        if path.name in _COUNTS:
            continue
        for key, values in _arrays(path).items():
            if path.name == "node-label.npz":
                _of(stored, key, path)["y"] = class_labels(values)
            elif name.startswith("node_"):
                _of(stored, key, path)[name] = values
            elif name.startswith("edge_"):
                edge_fields.setdefault(_edge_type(key, path), {})[name] = values
    edges = {}
    path = raw / "edge_index_dict.npz"
    for key, (sources, destinations) in _arrays(path).items():
        edge_type = _edge_type(key, path)
        for end in (edge_type[0], edge_type[2]):
            _of(stored, end, path)
        edges[edge_type] = RawEdges(sources, destinations, tidy(edge_fields.get(edge_type, {})))
    return RawGraph(counts, {name: tidy(fields) for name, fields in stored.items()}, edges)


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise PenstockError(f"{path} cannot be read ({error}): download the set again.", code="damaged-file") from None


def _of(stored: dict[str, dict[str, Array]], name: str, path: Path) -> dict[str, Array]:
    if name not in stored:
        raise PenstockError(
            f"{path} names node type {name!r}, which num_nodes_dict.npz does not: download the set again.",
            code="damaged-file",
        )
    return stored[name]


def _edge_type(key: str, path: Path) -> EdgeType:
    parts = key.split("___")
    if len(parts) != 3:
        raise PenstockError(
            f"{path} has a member {key!r} where <source>___<relation>___<destination> is needed.", code="damaged-file"
        )
    return parts[0], parts[1], parts[2]


def _only(numbers: Array, path: Path) -> int:
    if numbers.size != 1:
        raise PenstockError(
            f"{path} counts {numbers.size:,} graphs: Penstock trains on one, so this set cannot be used.",
            code="wrong-file",
        )
    return int(numbers.reshape(-1)[0])
