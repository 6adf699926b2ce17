"""Graphs kept as plain NumPy archives: one type, typed edges, several types, triples, users and items.

docs/graph-format.md describes the layouts.
"""

import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from fnmatch import filter as matching
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, read_member
from penstock.graph.convert.edges import edge_set, pair_array, relation_sets
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.files import open_regular
from penstock.graph.folder import Graph
from penstock.graph.ids import array_ids
from penstock.graph.schema import EdgeType

# A NumPy archive whose arrays are read on first use, and never unpickled. A sparse matrix in it is four arrays, as
# SciPy stores a CSR matrix: data, indices, indptr and shape.


class Archive(Mapping[str, Array]):
    """The arrays of an `.npz` file by name. Arrays that are not read may be of any kind."""

    def __init__(self, path: Path) -> None:
        self._read: dict[str, Array] = {}
        try:
            self._file = open_regular(path)
        except FileNotFoundError:
            raise PenstockError(f"{path} does not exist: check the path.", code="file-not-found") from None
        except OSError as error:
            raise PenstockError(f"{path} cannot be read ({error}): check the path.", code="wrong-file") from None
        try:
            self._zip = zipfile.ZipFile(self._file)
        except (OSError, ValueError, RuntimeError, LookupError, OverflowError, zipfile.BadZipFile, struct.error):
            self._file.close()
            raise PenstockError(
                f"{path} is not an .npz archive: copy it again, or write one with numpy.savez.", code="wrong-file"
            ) from None
        self._members = {info.filename.removesuffix(".npy"): info for info in self._zip.infolist()}

    def close(self) -> None:
        """Close the file; arrays that were read stay valid."""
        self._zip.close()
        self._file.close()

    def __getitem__(self, key: str) -> Array:
        if key not in self._read:
            try:
                self._read[key] = read_member(self._zip, self._members[key])
            except ValueError as error:
                raise PenstockError(
                    f"it is not a readable .npz archive of plain arrays ({error}): make it again.", code="damaged-file"
                ) from None
        return self._read[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def strings(self, key: str) -> list[str] | None:
        """An array of strings, or None where it is missing or holds Python objects, which would be unpickled."""
        try:
            found = self.get(key)
        except PenstockError:
            return None
        return found.tolist() if found is not None and found.dtype.kind == "U" and found.ndim == 1 else None


class Entries(NamedTuple):
    """The stored entries of a matrix, checked."""

    rows: Array
    columns: Array
    values: Array
    shape: tuple[int, int]


def csr_entries(archive: Mapping[str, Array], prefix: str, what: str) -> Entries:
    """The matrix kept under `<prefix>data`, `<prefix>indices`, `<prefix>indptr` and `<prefix>shape`."""
    values, columns, indptr, shape = (archive[prefix + name] for name in ("data", "indices", "indptr", "shape"))
    for name, array in (("indices", columns), ("indptr", indptr), ("shape", shape)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise _misfit(what, f"{prefix}{name} is {array.dtype} of shape {array.shape}, not a list of integers")
    if len(shape) != 2 or shape.min() < 0:
        raise _misfit(what, f"{prefix}shape is {shape.tolist()}, not the two sizes of a matrix")
    if values.shape != columns.shape or values.dtype.kind not in "biuf":
        raise _misfit(what, f"{prefix}data is {values.dtype} of shape {values.shape} for {len(columns):,} indices")
    height, width = int(shape[0]), int(shape[1])
    indptr = indptr.astype(np.int64, copy=False)
    lengths = np.diff(indptr)
    if len(indptr) != height + 1 or indptr[0] != 0 or indptr[-1] != len(columns) or np.any(lengths < 0):
        raise _misfit(what, f"{prefix}indptr does not lead through {len(columns):,} entries in {height:,} rows")
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < width:
        raise _misfit(what, f"{prefix}indices has numbers outside 0 to {width - 1:,}")
    return Entries(np.repeat(np.arange(height), lengths), columns, values, (height, width))


def dense_rows(entries: Entries) -> Array:
    """The matrix with all of its zeros, float32; entries of one place are summed, as SciPy does."""
    dense = np.zeros(entries.shape, np.float32)
    np.add.at(dense, (entries.rows, entries.columns), entries.values.astype(np.float32, copy=False))
    return dense


def _misfit(what: str, why: str) -> PenstockError:
    return _misshapen(f"The {what} do not fit together ({why})")


def _misshapen(what: str) -> PenstockError:
    return PenstockError(f"{what}: make the archive again.", code="shape-mismatch")


_Archive = Mapping[str, Array]
_Pieces = tuple[dict[str, NodeSet], dict[EdgeType, EdgeSet]]


def from_npz(path: str | Path, split: int = 0) -> Graph:
    """A graph from an archive, named after it; its keys tell which kind it is.

    Where an archive has several splits, `split` is the number of the one to use.
    """
    path = Path(path)
    with closing(Archive(path)) as archive:
        return _built(path, archive, split)


def _built(path: Path, archive: Archive, split: int) -> Graph:
    for key, build in _KINDS.items():
        if matching(archive, key):
            try:
                nodes, edges = build(archive, split)
            except KeyError as error:
                raise PenstockError(
                    f"{path} has no array {error.args[0]!r}: it is incomplete, make it again.", code="field-missing"
                ) from None
            except PenstockError as error:
                raise PenstockError(f"{path}: {error}", code=error.code) from None
            except (TypeError, ValueError, IndexError) as error:
                raise PenstockError(
                    f"{path}: its arrays do not fit together ({error}): make it again.", code="shape-mismatch"
                ) from None
            chosen = {"split": split} if _has_several_splits(archive) else {}
            return Graph(nodes, edges, path.stem, origin={"from": "npz", "file": path.name, **chosen})
    raise PenstockError(
        f"{path} is not a graph that Penstock can load: it needs indptr and indices, adj_data and adj_indices,"
        " edge_index and edge_type, <type>__num_nodes, or train with num_entities or num_users (docs/graph-format.md).",
        code="wrong-file",
    )


def _one_type(archive: _Archive, split: int) -> _Pieces:
    """One node type and one edge type, with symmetric neighbour lists."""
    count = _size(archive, "num_nodes")
    indptr, indices = archive["indptr"], archive["indices"]
    if indptr.ndim != 1 or indptr.dtype.kind not in "iu":
        raise PenstockError(
            f"indptr is {indptr.dtype} of shape {indptr.shape}, but offsets are a list of integers: convert it.",
            code="wrong-type",
        )
    indptr = indptr.astype(np.int64, copy=False)
    if len(indptr) != count + 1 or int(indptr[-1]) != len(indices) or np.any(np.diff(indptr) < 0):
        raise _misshapen("indptr does not fit num_nodes and indices")
    nodes = _nodes(archive, count, split)
    if "original_id" in archive:
        nodes = replace(nodes, ids=array_ids(archive["original_id"], "original_id"))
    if "class_names" in archive:
        nodes.categories["y"] = archive["class_names"].tolist()
    rows = np.repeat(np.arange(count), np.diff(indptr))
    return {"node": nodes}, {("node", "to", "node"): edge_set(indices, rows, count, count, "indices")}


def _typed_edges(archive: _Archive, split: int) -> _Pieces:
    """One kind of vertex, edges (subject, object) with a relation number each."""
    nodes = {"entity": _nodes(archive, _size(archive, "num_nodes"), split)}
    subjects, objects = _ends(archive, "edge_index")
    triples = subjects, archive["edge_type"], objects
    return nodes, relation_sets("entity", nodes["entity"].count, _size(archive, "num_relations"), triples, {})


def _triples(archive: _Archive, split: int) -> _Pieces:
    """(head, relation, tail) rows; the validation and test rows are held out."""
    nodes = {"entity": NodeSet(_size(archive, "num_entities"))}
    held_out = {"val": _columns(archive, "valid"), "test": _columns(archive, "test")}
    relations = _size(archive, "num_relations")
    return nodes, relation_sets("entity", nodes["entity"].count, relations, _columns(archive, "train"), held_out)


def _users_and_items(archive: _Archive, split: int) -> _Pieces:
    """(user, item) pairs, both ways so that both have neighbours; test pairs are held out of `rates`."""
    users, items = _size(archive, "num_users"), _size(archive, "num_items")
    user, item = _ends(archive, "train")
    held_out = {"test": pair_array(*_ends(archive, "test"), users, items, "test")}
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
        own = {key.removeprefix(f"{name}__"): archive[key] for key in archive if key.startswith(f"{name}__")}
        nodes[name] = _nodes(own, _size(own, "num_nodes"), split)
    edges = {}
    for key in archive:
        if key.count("__") == 2:
            source, relation, destination = key.split("__")
            sizes = _size(archive, f"{source}__num_nodes"), _size(archive, f"{destination}__num_nodes")
            edges[source, relation, destination] = edge_set(*_ends(archive, key), *sizes, key)
    return nodes, edges


def _adjacency(archive: _Archive, split: int) -> _Pieces:
    """Adjacency, attributes and labels as SciPy keeps them: the layout of the GNN benchmark of Shchur et al.

    As PyG and DGL do, the graph is taken as undirected: every stored entry is an edge both ways, once.
    """
    adjacency, attributes = ("adj_", "attr_") if "adj_indptr" in archive else ("adj_matrix.", "attr_matrix.")
    entries = csr_entries(archive, adjacency, "adjacency arrays")
    count = entries.shape[0]
    if entries.shape[1] != count:
        raise PenstockError(
            f"{adjacency}shape is {entries.shape}, but an adjacency matrix is square: convert it.",
            code="shape-mismatch",
        )
    own = {key: archive[key] for key in archive if _MASK.fullmatch(key)}
    if f"{attributes}indptr" in archive:
        own["features"] = dense_rows(csr_entries(archive, attributes, "sparse attributes"))
    elif "attr_matrix" in archive:
        own["features"] = archive["attr_matrix"]
    sparse = next((prefix for prefix in ("labels_", "labels.") if f"{prefix}indptr" in archive), None)
    if sparse is not None:
        own["multilabels"] = dense_rows(csr_entries(archive, sparse, "sparse labels"))
    elif "labels" in archive:
        own["labels"] = archive["labels"]
    nodes = _nodes(own, count, split)
    if isinstance(archive, Archive):
        # Most of these archives store names as Python objects. They are not read, as that would unpickle.
        if (names := archive.strings("node_names")) is not None and len(names) == count:
            nodes = replace(nodes, ids=array_ids(np.array(names), "node_names"))
        if (words := archive.strings("class_names")) is not None:
            nodes.categories["y"] = words
    return {"node": nodes}, {("node", "to", "node"): _both_ways(entries)}


def _both_ways(entries: Entries) -> EdgeSet:
    """Every entry as an edge in both directions, without repetition; of two weights the larger one counts."""
    count = entries.shape[0]
    rows, columns = entries.rows.astype(np.int64), entries.columns.astype(np.int64)
    places = np.concatenate([rows * count + columns, columns * count + rows])
    places, order = np.unique(places, return_inverse=True)
    fields = {}
    if not np.all(entries.values == 1):
        weights = np.full(len(places), -np.inf, np.float32)
        np.maximum.at(weights, order, np.tile(entries.values.astype(np.float32), 2))
        fields["weight"] = weights
    return edge_set(places // max(count, 1), places % max(count, 1), count, count, "adj_indices", fields)


_MASK = re.compile(r"(\w+?)_mask(?:_(\d+))?")
# Distinguished by a key that only they have.
_KINDS = {
    "adj_indptr": _adjacency,
    "adj_matrix.indptr": _adjacency,
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
        fields["x"] = dense_rows(csr_entries(archive, "feat_", "sparse features"))
    if "labels" in archive:
        fields["y"] = archive["labels"]
    elif "multilabels" in archive:
        fields["y"] = archive["multilabels"]
    for key, values in fields.items():
        if values.ndim == 0 or values.dtype.kind not in "biuf":
            raise PenstockError(
                f"Field {key!r} is {values.dtype} of shape {values.shape}, not one row per vertex: convert it.",
                code="wrong-type",
            )
    return NodeSet(count, fields, _splits(archive, count, split))


def _size(archive: _Archive, key: str) -> int:
    """A count, which NumPy keeps as an array without dimensions."""
    value = archive[key]
    if value.ndim != 0 or value.dtype.kind not in "iu" or value < 0:
        raise PenstockError(
            f"{key} is {value.tolist()!r:.40}, not a count: store one integer from 0 up.", code="invalid-value"
        )
    return int(value)


def _ends(archive: _Archive, key: str) -> tuple[Array, Array]:
    """The two rows of an array of pairs."""
    pairs = archive[key]
    if pairs.ndim != 2 or len(pairs) != 2:
        raise _misshapen(f"{key} has shape {pairs.shape} where [2, edges] is needed")
    return pairs[0], pairs[1]


def _columns(archive: _Archive, key: str) -> tuple[Array, ...]:
    """The three columns of an array of triples."""
    triples = archive[key]
    if triples.ndim != 2 or triples.shape[1] != 3:
        raise _misshapen(f"{key} has shape {triples.shape} where [triples, 3] is needed")
    return tuple(triples.T)


def _splits(archive: _Archive, count: int, split: int) -> dict[str, Array]:
    """From `train_mask` [n] or [k, n], or from `train_mask_20`, `train_mask_40`, ... in ascending order."""
    masks: dict[str, list[tuple[int, Array]]] = {}
    for key in archive:
        if found := _MASK.fullmatch(key):
            mask = archive[key]
            if mask.ndim not in (1, 2) or mask.shape[-1] != count or mask.dtype.kind not in "biuf":
                needed = f"a boolean [{count}] or [splits, {count}] is needed"
                raise _misshapen(f"{key} is {mask.dtype} of shape {mask.shape} where {needed}")
            several = enumerate(mask) if mask.ndim == 2 else [(int(found[2] or 0), mask)]
            masks.setdefault(found[1], []).extend(several)
    splits = {}
    for name, choices in masks.items():
        if len(choices) == 1:
            splits[name] = np.flatnonzero(choices[0][1])
            continue
        if not 0 <= split < len(choices):
            raise PenstockError(
                f"There are {len(choices)} splits, so {split} does not exist: choose 0 to {len(choices) - 1}.",
                code="value-out-of-range",
            )
        splits[name] = np.flatnonzero(sorted(choices, key=lambda choice: choice[0])[split][1])
    return splits


def _has_several_splits(archive: Archive) -> bool:
    return any(
        (found := _MASK.search(key)) and found[1].endswith("train") and (found[2] or archive[key].ndim == 2)
        for key in archive
    )
