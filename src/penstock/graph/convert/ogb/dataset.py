"""From an OGB folder to a graph."""

from collections.abc import Mapping
from pathlib import Path

from penstock.errors import PenstockError
from penstock.graph.convert.edges import edge_set
from penstock.graph.convert.ogb.layouts import read_binary, read_text, read_typed_binary, read_typed_text
from penstock.graph.convert.ogb.links import held_out_pairs, is_knowledge_graph, knowledge_edges
from penstock.graph.convert.ogb.raw import RawGraph
from penstock.graph.convert.ogb.splits import Links, read_splits
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key

# The file that tells a layout from the others.
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

    `inverse` adds the opposite of every edge; by default it is done for the sets OGB does it for, known by
    the folder's name. `scheme` chooses a split where there are several. Of a link set the training edges are
    the graph, and the validation and test edges lie in `held_out`.
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
        # Taken out, so that the raw edges of one type are freed before the lists of the next are built.
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
