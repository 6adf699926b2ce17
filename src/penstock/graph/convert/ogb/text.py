"""OGB's `.csv.gz` layout, of one type and of several."""

from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.ogb.raw import EDGE_TYPE, NODE_TYPE, RawEdges, RawGraph, class_labels, tidy
from penstock.graph.convert.ogb.tables import read_numbers, read_pairs, read_table, read_words

_SUFFIX = ".csv.gz"


def read_text(raw: Path) -> RawGraph:
    """A graph of one type: every file lies in `raw/`."""
    count = _only(raw / "num-node-list.csv.gz")
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
    count = _only(folder / "num-edge-list.csv.gz")
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


def _only(path: Path) -> int:
    numbers = read_numbers(path)
    if len(numbers) != 1:
        raise PenstockError(
            f"{path} counts {len(numbers):,} graphs: Penstock trains on one, so this set cannot be used.",
            code="wrong-file",
        )
    return int(numbers[0])
