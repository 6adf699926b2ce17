"""Graphs kept as plain NumPy archives: one type, typed edges, several types, triples, users and items."""

import re
import zipfile
import zlib
from collections.abc import Mapping
from fnmatch import filter as matching
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.edges import edge_set, pair_array
from penstock.graph.convert.relations import relation_sets
from penstock.graph.graph import EdgeSet, Graph, NodeSet
from penstock.graph.schema import EdgeType

_Archive = Mapping[str, Array]
_Pieces = tuple[dict[str, NodeSet], dict[EdgeType, EdgeSet]]


def from_npz(path: str | Path, split: int = 0) -> Graph:
    """A graph from an archive, named after it; its keys tell which kind it is.

    Of archives with several splits, number `split` counts.
    """
    path = Path(path)
    archive = _read(path)
    for key, build in _KINDS.items():
        if matching(archive, key):
            try:
                nodes, edges = build(archive, split)
            except KeyError as error:
                raise PenstockError(
                    f"{path} has no array {error.args[0]!r}: it is incomplete, make it again."
                ) from None
            except PenstockError as error:
                raise PenstockError(f"{path}: {error}") from None
            return Graph(nodes, edges, path.stem, origin={"from": "npz", "file": path.name})
    raise PenstockError(
        f"{path} is no graph Penstock knows: it needs indptr and indices, edge_index and edge_type,"
        " <type>__num_nodes, or train with num_entities or num_users."
    )


def _read(path: Path) -> _Archive:
    if not path.is_file():
        raise PenstockError(f"{path} does not exist: check the path.")
    if not zipfile.is_zipfile(path):
        raise PenstockError(f"{path} is no .npz archive: copy it again, or write one with numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise PenstockError(
            f"{path} is not a readable .npz archive of plain arrays ({error}): make it again."
        ) from None


def _one_type(archive: _Archive, split: int) -> _Pieces:
    """Symmetric lists of neighbours."""
    count = int(archive["num_nodes"])
    indptr, indices = archive["indptr"], archive["indices"]
    if len(indptr) != count + 1 or int(indptr[-1]) != len(indices) or np.any(np.diff(indptr) < 0):
        raise PenstockError("indptr does not fit num_nodes and indices: make the archive again.")
    nodes = _nodes(archive, count, split)
    nodes.ids = archive.get("original_id")
    if "class_names" in archive:
        nodes.categories["y"] = archive["class_names"].tolist()
    rows = np.repeat(np.arange(count), np.diff(indptr))
    return {"node": nodes}, {("node", "to", "node"): edge_set(indices, rows, count, count, "indices")}


def _typed_edges(archive: _Archive, split: int) -> _Pieces:
    """One kind of vertex, edges (subject, object) with a relation number each."""
    nodes = {"entity": _nodes(archive, int(archive["num_nodes"]), split)}
    triples = (archive["edge_index"][0], archive["edge_type"], archive["edge_index"][1])
    return nodes, relation_sets("entity", nodes["entity"].count, int(archive["num_relations"]), triples, {})


def _triples(archive: _Archive, split: int) -> _Pieces:
    """(head, relation, tail) rows; the validation and test rows are held out."""
    nodes = {"entity": NodeSet(int(archive["num_entities"]))}
    held_out = {"val": tuple(archive["valid"].T), "test": tuple(archive["test"].T)}
    train = tuple(archive["train"].T)
    return nodes, relation_sets("entity", nodes["entity"].count, int(archive["num_relations"]), train, held_out)


def _users_and_items(archive: _Archive, split: int) -> _Pieces:
    """(user, item) pairs, both ways so that both have neighbours; test pairs are held out of `rates`."""
    users, items = int(archive["num_users"]), int(archive["num_items"])
    user, item = archive["train"]
    held_out = {"test": pair_array(archive["test"][0], archive["test"][1], users, items, "test")}
    edges = {
        ("user", "rates", "item"): edge_set(user, item, users, items, "train", held_out=held_out),
        ("item", "rated-by", "user"): edge_set(item, user, items, users, "train"),
    }
    return {"user": NodeSet(users), "item": NodeSet(items)}, edges


def _several_types(archive: _Archive, split: int) -> _Pieces:
    """`<type>__<array>` for vertices, `<type>__<relation>__<type>` for edges."""
    names = [key.removesuffix("__num_nodes") for key in archive if key.endswith("__num_nodes")]
    nodes = {}
    for name in names:
        own = {key.removeprefix(f"{name}__"): values for key, values in archive.items() if key.startswith(f"{name}__")}
        nodes[name] = _nodes(own, int(own["num_nodes"]), split)
    edges = {}
    for key, values in archive.items():
        if key.count("__") == 2:
            source, relation, destination = key.split("__")
            sizes = int(archive[f"{source}__num_nodes"]), int(archive[f"{destination}__num_nodes"])
            edges[source, relation, destination] = edge_set(values[0], values[1], *sizes, key)
    return nodes, edges


# Told apart by the key only they have.
_KINDS = {
    "indptr": _one_type,
    "edge_type": _typed_edges,
    "*__num_nodes": _several_types,
    "num_entities": _triples,
    "num_users": _users_and_items,
}


def _nodes(archive: _Archive, count: int, split: int) -> NodeSet:
    fields = {}
    if "features" in archive:
        fields["x"] = archive["features"]
    elif "feat_indptr" in archive:
        fields["x"] = _dense(archive)
    if "labels" in archive:
        fields["y"] = archive["labels"]
    elif "multilabels" in archive:
        fields["y"] = archive["multilabels"]
    return NodeSet(count, fields, _splits(archive, split))


def _dense(archive: _Archive) -> Array:
    from scipy.sparse import csr_array

    parts = archive["feat_data"], archive["feat_indices"], archive["feat_indptr"]
    try:
        matrix = csr_array(parts, shape=tuple(archive["feat_shape"]), dtype=np.float32)
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise PenstockError(f"The sparse features do not fit together ({error}): make the archive again.") from None
    dense: Array = matrix.toarray()
    return dense


def _splits(archive: _Archive, split: int) -> dict[str, Array]:
    """From `train_mask` [n] or [k, n], or from `train_mask_20`, `train_mask_40`, ... in ascending order."""
    masks: dict[str, list[tuple[int, Array]]] = {}
    for key, mask in archive.items():
        if found := re.fullmatch(r"(\w+?)_mask(?:_(\d+))?", key):
            several = enumerate(mask) if mask.ndim == 2 else [(int(found[2] or 0), mask)]
            masks.setdefault(found[1], []).extend(several)
    splits = {}
    for name, choices in masks.items():
        if len(choices) == 1:
            splits[name] = np.flatnonzero(choices[0][1])
            continue
        if not 0 <= split < len(choices):
            raise PenstockError(
                f"There are {len(choices)} splits, so {split} does not exist: choose 0 to {len(choices) - 1}."
            )
        splits[name] = np.flatnonzero(sorted(choices, key=lambda choice: choice[0])[split][1])
    return splits
