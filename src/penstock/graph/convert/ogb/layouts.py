"""OGB's two layouts, `.npz` archives and `.csv.gz` files, each of one type and of several.

An archive's member is read whole, so a set such as ogbn-papers100M needs memory for its features and edges; nothing
is copied beyond that until the lists are built.
"""

from contextlib import closing
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.archive import Archive
from penstock.graph.convert.ogb.raw import EDGE_TYPE, NODE_TYPE, RawEdges, RawGraph, class_labels, only_count, tidy
from penstock.graph.convert.ogb.tables import read_numbers, read_pairs, read_table, read_words
from penstock.graph.schema import EdgeType

_COUNTS = ("num_nodes_dict.npz", "num_edges_dict.npz", "edge_index_dict.npz")


def read_binary(raw: Path) -> RawGraph:
    """A graph of one type: `data.npz` and `node-label.npz`."""
    path = raw / "data.npz"
    arrays = _arrays(path)
    for key in ("num_nodes_list", "edge_index"):
        if key not in arrays:
            raise PenstockError(f"{path} has no array {key!r}: download the set again.", code="damaged-file")
    count = only_count(arrays["num_nodes_list"], path)
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
    counts = {name: only_count(numbers, raw) for name, numbers in _arrays(raw / "num_nodes_dict.npz").items()}
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
        with closing(Archive(path)) as archive:
            return dict(archive)
    except PenstockError as error:
        raise PenstockError(
            f"{path} cannot be read ({str(error).removesuffix('.')}): download the set again.", code="damaged-file"
        ) from None


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


_SUFFIX = ".csv.gz"


def read_text(raw: Path) -> RawGraph:
    """A graph of one type: every file lies in `raw/`."""
    count = _count_in(raw / "num-node-list.csv.gz")
    edges = _edges(raw, count, count)
    fields = {**_fields(raw, "node", count), **_labels(raw, count)}
    return RawGraph({NODE_TYPE: count}, {NODE_TYPE: fields}, {EDGE_TYPE: edges})


def read_typed_text(raw: Path) -> RawGraph:
    """A graph of several types: folders `relations/`, `node-feat/` and `node-label/`."""
    names, numbers, *more = read_words(raw / "num-node-dict.csv.gz")
    if more:
        raise PenstockError(f"{raw} holds {1 + len(more)} graphs: Penstock trains on one.", code="wrong-file")
    counts = {name: int(number) for name, number in zip(names, numbers, strict=True)}
    fields, edges = {}, {}
    for name, count in counts.items():
        fields[name] = {
            **_fields(raw / "node-feat" / name, "node", count),
            **_labels(raw / "node-label" / name, count),
        }
    for source, relation, destination in read_words(raw / "triplet-type-list.csv.gz"):
        folder = raw / "relations" / "___".join((source, relation, destination))
        for end in (source, destination):
            if end not in counts:
                raise PenstockError(
                    f"{folder} joins {end!r}, which num-node-dict.csv.gz does not name: download it again.",
                    code="damaged-file",
                )
        edges[source, relation, destination] = _edges(folder, counts[source], counts[destination])
    return RawGraph(counts, fields, edges)


def _edges(folder: Path, num_sources: int, num_destinations: int) -> RawEdges:
    count = _count_in(folder / "num-edge-list.csv.gz")
    sources, destinations = read_pairs(folder / "edge.csv.gz", count, num_sources, num_destinations)
    return RawEdges(sources, destinations, _fields(folder, "edge", count))


def _fields(folder: Path, level: str, rows: int) -> dict[str, Array]:
    """Features as float32, as models take them; the other `node_*` or `edge_*` files as they are."""
    found = {}
    features = folder / f"{level}-feat{_SUFFIX}"
    if features.is_file():
        found[f"{level}_feat"] = read_table(features, rows, np.float32)
    for path in sorted(folder.glob(f"{level}_*{_SUFFIX}")):
        found[path.name.removesuffix(_SUFFIX)] = read_table(path, rows)
    # Older downloads of ogbn-proteins lack the prefix.
    species = folder / f"species{_SUFFIX}"
    if level == "node" and species.is_file():
        found["node_species"] = read_table(species, rows)
    return tidy(found)


def _labels(folder: Path, rows: int) -> dict[str, Array]:
    path = folder / "node-label.csv.gz"
    return {"y": class_labels(read_table(path, rows))} if path.is_file() else {}


def _count_in(path: Path) -> int:
    return only_count(read_numbers(path), path)
