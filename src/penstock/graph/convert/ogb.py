"""OGB's node- and link-property sets, from the raw files of their folders; the `ogb` package is not needed.

`from_ogb` makes the graph. OGB stores its sets in four layouts: `.npz` archives and `.csv.gz` files, each with one type
or with several. Splits are vertices to train and evaluate on, or in link sets edges that are held out.
"""

import codecs
import csv
import gzip
import pickle
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype, to_array
from penstock.graph.convert.edges import Triples, edge_set, pair_array, relation_sets, vertex_numbers
from penstock.graph.convert.npz import Archive
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.files import open_regular
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType, edge_key

# The content of an OGB folder, before it becomes a graph.

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


def tidy(fields: Mapping[str, Array]) -> dict[str, Array]:
    """Fields under Penstock's names; a single column that is not a feature matrix becomes a plain list of values."""
    return {
        _NAMES.get(key, key): values[:, 0]
        if key not in _NAMES and values.ndim == 2 and values.shape[1] == 1
        else values
        for key, values in fields.items()
    }


def class_labels(stored: Array) -> Array:
    """Labels as int64 with -1 for none (NaN or negative); non-integer ones stay float32."""
    labels = stored[:, 0] if stored.ndim == 2 and stored.shape[1] == 1 else stored
    if labels.dtype.kind == "f":
        missing = np.isnan(labels)
        if not np.all(missing | (labels == np.floor(labels))):
            return labels.astype(np.float32, copy=False)
        labels = np.where(missing, -1, labels)
    return np.maximum(labels.astype(np.int64, copy=False), -1)


def only_count(numbers: Array, path: Path) -> int:
    """The single number of a file that has a number for each graph of a set."""
    if numbers.size != 1:
        raise PenstockError(
            f"{path} counts {numbers.size:,} graphs: Penstock trains on one, so this set cannot be used.",
            code="wrong-file",
        )
    return int(numbers.reshape(-1)[0])


# OGB's `.csv.gz` files, read in blocks straight into arrays of their final size.

_BLOCK_BYTES = 16 << 20


def read_table(path: Path, rows: int, dtype: Any = None) -> Array:
    """[rows, columns] of one type; without a `dtype`, int64 if all values are integers, else float32."""
    try:
        return _fill(path, rows, np.dtype(dtype or np.int64))
    except _NotWholeError:
        if dtype is not None:
            raise
        return _fill(path, rows, np.dtype(np.float32))


def read_pairs(path: Path, rows: int, num_sources: int, num_destinations: int) -> tuple[Array, Array]:
    """Sources and destinations of an edge file, checked before they are narrowed to int32."""
    dtype = index_dtype(max(num_sources, num_destinations))
    sources, destinations = np.empty(rows, dtype), np.empty(rows, dtype)
    done = 0
    for block in _checked_blocks(path, rows, np.dtype(np.int64), 2):
        stop = done + len(block[0])
        sources[done:stop] = vertex_numbers(block[0], num_sources, str(path))
        destinations[done:stop] = vertex_numbers(block[1], num_destinations, str(path))
        done = stop
    return sources, destinations


def read_numbers(path: Path) -> Array:
    """The first column of a file of whole numbers, of any length: counts and splits."""
    return np.concatenate([np.empty(0, np.int64), *(block[0] for block in _blocks(path, np.dtype(np.int64)))])


def read_words(path: Path) -> list[list[str]]:
    """A small file as rows of strings."""
    try:
        with open_regular(path) as packed, gzip.open(packed, "rt", newline="") as file:
            return [row for row in csv.reader(file) if row]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise _DamagedError(f"{path} cannot be read ({error})") from None


class _DamagedError(PenstockError):
    """A file of the set does not hold what it should."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: download the set again.", code="damaged-file")


class _NotWholeError(_DamagedError):
    """A file that was read as whole numbers holds something else."""


def _fill(path: Path, rows: int, dtype: np.dtype[Any]) -> Array:
    table, done = np.empty((rows, _num_columns(path)), dtype), 0
    for block in _checked_blocks(path, rows, dtype, table.shape[1]):
        stop = done + len(block[0])
        for column, values in enumerate(block):
            table[done:stop, column] = values
        done = stop
    return table


def _checked_blocks(path: Path, rows: int, dtype: np.dtype[Any], columns: int) -> Iterator[list[Array]]:
    """Blocks that together have exactly the rows and columns expected."""
    done = 0
    for block in _blocks(path, dtype):
        if len(block) != columns:
            raise _DamagedError(f"{path} has {len(block)} columns where {columns} are needed")
        done += len(block[0])
        if done <= rows:
            yield block
    if done != rows:
        raise _DamagedError(f"{path} has {done:,} rows where the set says {rows:,}")


def _blocks(path: Path, dtype: np.dtype[Any]) -> Iterator[list[Array]]:
    """Columns of block after block."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    columns = _num_columns(path)
    if columns == 0:
        return
    types = {f"f{i}": pa.from_numpy_dtype(dtype) for i in range(columns)}
    try:
        reader = arrow_csv.open_csv(
            path,
            read_options=arrow_csv.ReadOptions(autogenerate_column_names=True, block_size=_BLOCK_BYTES),
            convert_options=arrow_csv.ConvertOptions(column_types=types),
        )
        for batch in reader:
            if dtype.kind == "i" and any(column.null_count for column in batch.columns):
                raise _NotWholeError(f"{path} has an empty value where an integer is needed")
            yield [column.to_numpy(zero_copy_only=False) for column in batch.columns]
    except pa.ArrowInvalid as error:
        kind = _NotWholeError if dtype.kind == "i" else _DamagedError
        raise kind(f"{path} cannot be read ({error})") from None
    except (OSError, EOFError) as error:
        raise _DamagedError(f"{path} cannot be read ({error})") from None


def _num_columns(path: Path) -> int:
    """Columns of the first row; 0 for an empty file."""
    try:
        with open_regular(path) as packed, gzip.open(packed, "rb") as file:
            first = file.readline()
    except (OSError, EOFError, zlib.error) as error:
        raise _DamagedError(f"{path} cannot be read ({error})") from None
    return first.count(b",") + 1 if first.strip() else 0


# OGB's two layouts, `.npz` archives and `.csv.gz` files, each of one type and of several.
#
# An archive's member is read whole, so a set such as ogbn-papers100M needs memory for its features and edges; nothing
# is copied beyond that until the lists are built.

_COUNTS = ("num_nodes_dict.npz", "num_edges_dict.npz", "edge_index_dict.npz")


def read_binary(raw: Path) -> RawGraph:
    """A graph of one type: `data.npz` and `node-label.npz`."""
    path = raw / "data.npz"
    arrays = _arrays(path)
    for key in ("num_nodes_list", "edge_index"):
        if key not in arrays:
            raise _DamagedError(f"{path} has no array {key!r}")
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
        raise _DamagedError(f"{path} cannot be read ({str(error).removesuffix('.')})") from None


def _of(stored: dict[str, dict[str, Array]], name: str, path: Path) -> dict[str, Array]:
    if name not in stored:
        raise _DamagedError(f"{path} names node type {name!r}, which num_nodes_dict.npz does not")
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
    edges = _csv_edges(raw, count, count)
    fields = {**_fields(raw, "node", count), **_labels(raw, count)}
    return RawGraph({NODE_TYPE: count}, {NODE_TYPE: fields}, {EDGE_TYPE: edges})


def read_typed_text(raw: Path) -> RawGraph:
    """A graph of several types: folders `relations/`, `node-feat/` and `node-label/`."""
    names, numbers, *more = read_words(raw / "num-node-dict.csv.gz")
    if more:
        raise PenstockError(f"{raw} holds {1 + len(more)} graphs: Penstock trains on one.", code="wrong-file")
    counts = {name: int(number) for name, number in zip(names, numbers, strict=True)}
    edges = {}
    fields = {
        name: _fields(raw / "node-feat" / name, "node", count) | _labels(raw / "node-label" / name, count)
        for name, count in counts.items()
    }
    for source, relation, destination in read_words(raw / "triplet-type-list.csv.gz"):
        folder = raw / "relations" / "___".join((source, relation, destination))
        for end in (source, destination):
            if end not in counts:
                raise PenstockError(
                    f"{folder} joins {end!r}, which num-node-dict.csv.gz does not name: download it again.",
                    code="damaged-file",
                )
        edges[source, relation, destination] = _csv_edges(folder, counts[source], counts[destination])
    return RawGraph(counts, fields, edges)


def _csv_edges(folder: Path, num_sources: int, num_destinations: int) -> RawEdges:
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


# OGB's splits: vertices to train and evaluate on, or edges held out of the graph.

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
    """The folder of the split scheme; an error that lists them if the set has several."""
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
    """The split files' content, in whichever of OGB's four layouts."""
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
    """Load what `torch.save` wrote: dicts, lists, tensors and NumPy arrays, and nothing else."""
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
        raise _DamagedError(f"{path} cannot be read ({str(error).splitlines()[0]})") from None


def _array_makers() -> list[Any]:
    """Functions that rebuild a NumPy array, under their names in old and new NumPy, all of them harmless."""
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


# The edges of OGB's link sets: the training edges as lists, the others held out with their edge type.

HeldOut = dict[EdgeType, dict[str, Array]]

# The field that numbers the relation of an edge in knowledge graphs.
_RELATION = "edge_reltype"


def is_knowledge_graph(raw: RawGraph, links: Mapping[str, Links]) -> bool:
    """Whether there is one edge type whose edges have relation numbers, as in ogbl-wikikg2."""
    triples = any("relation" in arrays for arrays in links.values())
    return triples and EDGE_TYPE in raw.edges and _RELATION in raw.edges[EDGE_TYPE].fields


def knowledge_edges(raw: RawGraph, links: Mapping[str, Links], folder: Path) -> dict[EdgeType, EdgeSet]:
    """One edge type per relation. The given negatives are left out, see `held_out_pairs`."""
    stored = raw.edges[EDGE_TYPE]
    held_out = {name: _triples(arrays, f"{folder}, {name}") for name, arrays in links.items()}
    numbers = [stored.fields[_RELATION], *(triples[1] for triples in held_out.values())]
    num_relations = 1 + max((int(each.max()) for each in numbers if len(each)), default=-1)
    train = (stored.sources, stored.fields[_RELATION], stored.destinations)
    return relation_sets(NODE_TYPE, raw.counts[NODE_TYPE], num_relations, train, held_out)


def held_out_pairs(raw: RawGraph, links: Mapping[str, Links], folder: Path) -> HeldOut:
    """Positives as `val` and `test`, given negatives as `val_negative` and `test_negative`, by edge type.

    The negatives of knowledge graphs are left out: hundreds for each triple, drawn at random, they would
    outweigh the graph.
    """
    held_out: HeldOut = {edge_type: {} for edge_type in raw.edges}
    for name, arrays in links.items():
        where = f"{folder}, {name}"
        if "relation" in arrays:
            for edge_type, pairs in _by_edge_type(raw, _triples(arrays, where), where).items():
                held_out[edge_type][name] = pairs
            continue
        if len(raw.edges) != 1:
            raise PenstockError(
                f"{where} does not say which edge type its edges are of: this layout is not known.", code="wrong-file"
            )
        (edge_type,) = raw.edges
        ends = raw.counts[edge_type[0]], raw.counts[edge_type[2]]
        for key, (sources, destinations) in _pairs(arrays, where).items():
            held_out[edge_type][f"{name}{key}"] = pair_array(sources, destinations, *ends, where)
    return held_out


def _pairs(arrays: Links, where: str) -> dict[str, tuple[Array, Array]]:
    """The ends of the positives (under "") and of the negatives."""
    if "edge" in arrays:
        keys = {"": "edge", "_negative": "edge_neg"}
        return {suffix: _columns(_array(arrays, key, where), where) for suffix, key in keys.items() if key in arrays}
    if "source_node" not in arrays:
        has = ", ".join(arrays)
        raise PenstockError(
            f"{where} has {has} where edge, source_node or head is needed: this layout is not known.", code="wrong-file"
        )
    sources = _array(arrays, "source_node", where)
    found = {"": (sources, _array(arrays, "target_node", where))}
    if "target_node_neg" in arrays:
        negatives = _array(arrays, "target_node_neg", where).reshape(len(sources), -1)
        found["_negative"] = (np.repeat(sources, negatives.shape[1]), negatives.reshape(-1))
    return found


def _by_edge_type(raw: RawGraph, triples: Triples, where: str) -> dict[EdgeType, Array]:
    """Pairs of each edge type; its training edges tell which relation number it has."""
    heads, relations, tails = triples
    found, placed = {}, 0
    for edge_type, edges in raw.edges.items():
        numbers = edges.fields.get(_RELATION)
        if numbers is None or len(numbers) == 0:
            raise PenstockError(
                f"{where} has triples, but {edge_key(edge_type)} has no {_RELATION}: download it again.",
                code="damaged-file",
            )
        rows = relations == numbers[0]
        ends = raw.counts[edge_type[0]], raw.counts[edge_type[2]]
        found[edge_type] = pair_array(heads[rows], tails[rows], *ends, where)
        placed += len(found[edge_type])
    if placed != len(relations):
        raise PenstockError(
            f"{where} has {len(relations) - placed:,} triples of relations that the graph does not have.",
            code="damaged-file",
        )
    return found


def _triples(arrays: Links, where: str) -> Triples:
    return tuple(_array(arrays, key, where) for key in ("head", "relation", "tail"))


def _columns(pairs: Array, where: str) -> tuple[Array, Array]:
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise _DamagedError(f"{where} has edges of shape {pairs.shape} where [m, 2] is needed")
    return pairs[:, 0], pairs[:, 1]


def _array(arrays: Links, key: str, where: str) -> Array:
    if key not in arrays:
        raise _DamagedError(f"{where} has no {key!r}")
    return to_array(arrays[key], f"{where}, {key!r}")


# From an OGB folder to a graph.

# The file that identifies each layout.
_LAYOUTS = {
    "edge.csv.gz": read_text,
    "triplet-type-list.csv.gz": read_typed_text,
    "data.npz": read_binary,
    "edge_index_dict.npz": read_typed_binary,
}

# Undirected sets that store each edge once (add_inverse_edge in OGB's list); ppassoc is the download of ppa.
_INVERSE = {"products", "proteins", "ppa", "ppassoc", "collab", "ddi"}


def from_ogb(folder: str | Path, inverse: bool | None = None, scheme: str | None = None) -> Graph:
    """A graph from the folder of an OGB node- or link-property set, as downloaded and unpacked.

    `inverse` adds the opposite of every edge; by default it is done for the sets OGB does it for, recognised by the
    folder's name. `scheme` chooses a split where there are several. In a link set the training edges are the graph, and
    the validation and test edges are in `held_out`.
    """
    folder = Path(folder)
    raw = _read_raw(folder)
    inverse = _set_name(folder) in _INVERSE if inverse is None else inverse
    if inverse and len(raw.counts) > 1:
        raise PenstockError(
            f"{folder} has several node types, so inverse edges would need relations: leave inverse off.",
            code="unsupported-combination",
        )
    splits, links = read_splits(folder / "split", scheme, raw.counts)
    nodes = {name: NodeSet(count, raw.fields.get(name, {}), splits.get(name, {})) for name, count in raw.counts.items()}
    edges = _edges(raw, links, folder, inverse)
    return Graph(nodes, edges, folder.name.replace("_", "-"), origin={"from": "OGB", "inverse": inverse})


def is_ogb_folder(folder: Path) -> bool:
    """Whether a folder has the raw files of an OGB set."""
    return any((folder / "raw" / name).is_file() for name in _LAYOUTS)


def _read_raw(folder: Path) -> RawGraph:
    for name, read in _LAYOUTS.items():
        if (folder / "raw" / name).is_file():
            return read(folder / "raw")
    raise PenstockError(
        f"{folder} is not an OGB folder: raw/ has none of {', '.join(_LAYOUTS)}; give the folder that holds raw/ and"
        " split/.",
        code="wrong-file",
    )


def _set_name(folder: Path) -> str:
    """`products` for ogbn_products, ogbn-products and ogbn_products_pyg."""
    name = folder.resolve().name.lower().replace("-", "_")
    for suffix in ("_pyg", "_dgl"):
        name = name.removesuffix(suffix)
    return name.removeprefix("ogbn_").removeprefix("ogbl_")


def _edges(raw: RawGraph, links: Mapping[str, Links], folder: Path, inverse: bool) -> dict[EdgeType, EdgeSet]:
    if is_knowledge_graph(raw, links):
        return knowledge_edges(raw, links, folder)
    held_out = held_out_pairs(raw, links, folder)
    edges = {}
    for edge_type in list(raw.edges):
        # Removed from the dictionary, so that the raw edges of one type are freed before the lists of the next are
        # built.
        stored = raw.edges.pop(edge_type)
        ends = raw.counts[edge_type[0]], raw.counts[edge_type[2]]
        edges[edge_type] = edge_set(
            stored.sources,
            stored.destinations,
            *ends,
            f"{folder}, {edge_key(edge_type)}",
            stored.fields,
            held_out[edge_type],
            inverse,
        )
    return edges
