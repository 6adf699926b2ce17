"""The values of a batch by name (PyG's where it has one), each computed when it is first accessed.

A loop reads the same values of every batch, so values that one batch was asked for are computed ahead for later ones,
in the pipeline's threads (`wanted`).
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array, to_tensor
from penstock.graph.data import NodeSet, mask_name, mask_of
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType
from penstock.nn.adapter import merged_edge_rows, merged_edges, merged_relations
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.sampling.block import Block, by_relation, merge_values, new_rows
from penstock.sampling.device.block import host_block
from penstock.train.loading.given_graph import GivenGraph, Place
from penstock.train.loading.options import EdgeList, LoaderJob, bidirectional_edges, induced_edges
from penstock.train.loading.seed_source import GivenVertices
from penstock.train.run_context import device_memory_of
from penstock.train.tasks.task import SeedSource

Make = Callable[[], Any]
_NUMBERS = "e_id"
"""The edge field with each edge's position in the `edge_index` that the user passed."""
_SHARE = 64
"""Fields up to one in this many parts of a device's memory are kept there once a batch on it needs them."""


@dataclass(frozen=True)
class BatchTypes:
    """The types of a batch's graph."""

    typed: bool
    """Whether the graph has several node or edge types."""
    is_hetero: bool
    """Whether the batch is a `HeteroData` in PyG."""
    node_types: tuple[str, ...]
    edge_types: tuple[EdgeType, ...]
    seeds: str | EdgeType | None
    """The type of the examples."""
    edge_fields: frozenset[str] = frozenset()
    """Names that belong to edges rather than vertices, where there is one type of each."""


class BatchFields:
    """Computes the values of the batches of one loader."""

    def __init__(self, graph: Graph, job: LoaderJob, source: SeedSource, given: GivenGraph) -> None:
        """`graph` has the lists that batches are drawn from, and the fields of their vertices and edges."""
        self._graph, self._job, self._source = graph, job, source
        self.typed, self.edge_types = not graph.is_homogeneous, graph.edge_types
        self.node_type: str | None = getattr(source, "node_type", None)
        self.edge_type: EdgeType | None = getattr(source, "edge_type", None)
        self.attributes = given.attributes if given.from_pyg else {}
        self.wanted, self._asked = set[tuple[Place, str]](), threading.Event()
        # A device can merge only edges that it has drawn itself, not those of other kinds of subgraphs.
        self.merging = self._asked if job.subgraph_type == "directional" else threading.Event()
        """Set once a batch is asked for its edges as one list: later batches then compute it ahead."""
        own = given.from_pyg
        self._nodes = {name: self._fields_of_nodes(nodes, own) for name, nodes in graph.nodes.items()}
        self._edges = {kind: self._fields_of_edges(kind) for kind in graph.edges}
        names = {"edge_attr", "edge_weight", "edge_norm"}.union(*self._edges.values()).difference(*self._nodes.values())
        kinds = tuple(graph.node_types), tuple(graph.edge_types), self.edge_type or self.node_type
        self.types = BatchTypes(self.typed, given.is_hetero or self.typed, *kinds, frozenset(names))

    def makers(self, batch: Batch, planned: Planned, place: Place) -> dict[str, Make]:
        """For one place (a type, or the whole graph), the functions that compute each value, by name."""
        if self.typed:
            if place is None:
                return self._of_triples(batch)
            if isinstance(place, str):
                return self._of_nodes(batch, planned, place)
            return self._of_edges(batch, planned, place)
        (name,), (kind,) = self._nodes, self._edges
        found = {**self._of_nodes(batch, planned, name), **self._of_triples(batch)}
        for key, make in self._of_edges(batch, planned, kind).items():
            found[f"edge_{key}" if key in found and "edge" not in key and key != "input_id" else key] = make
        return found

    def make_ahead(self, batch: Batch) -> None:
        """Compute the values that earlier batches were asked for."""
        if self._asked.is_set() and batch.merged is None:
            batch.merged = self.merged(batch)
        if not self.wanted:
            return
        made: dict[tuple[Place, str], Any] = {}
        for place, name in tuple(self.wanted):
            make = self._rows_of(batch, place).get(name)
            if make is not None:
                made[place, name] = make()
        batch.made = made

    def can_make_ahead(self, place: Place, name: str) -> bool:
        """Whether a value consists of rows of a field, which depend only on the batch's vertices and edges."""
        return name in self._names_of_rows(place)

    def merged(self, batch: Batch) -> Any:
        """The edges of all layers as one tensor, or one for each relation that has any; else as `EdgeList`s."""
        if self._job.subgraph_type == "induced":
            return induced_edges(self._graph, batch, self.edge_types)
        if self._job.subgraph_type == "bidirectional":
            return bidirectional_edges(batch, self.edge_types)
        return merged_relations(batch.blocks) if self.typed or not batch.blocks else merged_edges(batch.blocks)

    def _names_of_rows(self, place: Place) -> set[str]:
        nodes = self._nodes.values() if place is None else [self._nodes[place]] if isinstance(place, str) else []
        edges = self._edges.values() if place is None else [self._edges[place]] if isinstance(place, tuple) else []
        return {name for each in (*nodes, *edges) for name in each}

    def _rows_of(self, batch: Batch, place: Place) -> dict[str, Make]:
        found: dict[str, Make] = {}
        for name, fields in self._nodes.items():
            if place in (None, name):
                found |= self._node_rows(batch, name, fields)
        for kind, lists in self._edges.items():
            if place in (None, kind):
                found = {**self._edge_rows(batch, kind, lists), **found}
        return found

    def _of_nodes(self, batch: Batch, planned: Planned, name: str) -> dict[str, Make]:
        ids, found = batch.vertices[name], dict[str, Make]()
        if name in batch.features:
            found["x"] = partial(batch.features.__getitem__, name)
        found |= self._node_rows(batch, name, self._nodes[name])
        found.setdefault("n_id", lambda: _tensor(ids).long())
        if self._job.subgraph_type == "directional" and batch.blocks:
            found["num_sampled_nodes"] = partial(self._sampled_nodes, batch, name)
        if batch.trees is not None:
            found["batch"] = lambda: _tensor(_examples_of(batch, name))
        if batch.links is None and name == (self.node_type or name):
            found["input_id"] = lambda: _tensor(self._input_vertices(batch.seeds[name]))
            found["batch_size"] = lambda: batch.num_seeds
            if batch.seed_weights is not None:
                found["node_norm"] = lambda: _tensor(batch.seed_weights)
        return found

    def _of_edges(self, batch: Batch, planned: Planned, kind: EdgeType) -> dict[str, Make]:
        found: dict[str, Make] = {"edge_index": partial(self._edge_index, batch, kind)}
        found |= self._edge_rows(batch, kind, self._edges[kind])
        if self._has_numbers(kind):
            found.setdefault(_NUMBERS, lambda: _tensor(self._positions(batch, kind)).long())
        if self._job.subgraph_type == "directional":
            found["num_sampled_edges"] = partial(self._sampled_edges, batch, kind)
            found |= self._carried(batch, kind)
        if isinstance(batch.labels, dict) and "columns" in batch.labels and kind == self.edge_type:
            labels = batch.labels
            found["edge_label_index"] = lambda: torch.stack([_tensor(labels["rows"]), _tensor(labels["columns"])])
            found["edge_label"] = lambda: _tensor(labels["true"] if "true" in labels else labels["values"])
            found["input_id"] = lambda: _tensor(self._input_edges(planned.seeds, kind))
        return found

    def _of_triples(self, batch: Batch) -> dict[str, Make]:
        """The triples under PyG's names, as vertex numbers."""
        triples = getattr(batch.links, "triples", None)
        if triples is None:
            return {}
        values = {"head_index": triples.head, "rel_type": triples.relation, "tail_index": triples.tail}
        return {name: partial(_tensor, array) for name, array in values.items()}

    def _node_rows(self, batch: Batch, name: str, fields: Mapping[str, "RowField"]) -> dict[str, Make]:
        ids = batch.vertices[name]
        return {key: partial(field.at, ids) for key, field in fields.items()}

    def _edge_rows(self, batch: Batch, kind: EdgeType, fields: Mapping[str, "RowField"]) -> dict[str, Make]:
        if not self._has_numbers(kind):
            return {}
        return {key: partial(self._rows_at, batch, kind, field) for key, field in fields.items()}

    def _rows_at(self, batch: Batch, kind: EdgeType, field: "RowField") -> Tensor:
        return field.at(self._positions(batch, kind))

    def _has_numbers(self, kind: EdgeType) -> bool:
        """Whether the positions of a relation's edges are known; those of reversed relations among several are not."""
        return self._job.subgraph_type != "bidirectional" or not self.typed

    def _edge_index(self, batch: Batch, kind: EdgeType) -> Tensor:
        found = self._merged(batch)
        pairs: Tensor | EdgeList | None = found.get(kind) if isinstance(found, dict) else found
        if isinstance(pairs, EdgeList):
            return torch.from_numpy(pairs.pairs)
        return torch.empty(2, 0, dtype=torch.int64, device=_device_of(batch)) if pairs is None else pairs

    def _positions(self, batch: Batch, kind: EdgeType) -> Any:
        """The positions of the edges of `edge_index` in the graph's lists, in its order."""
        if self._job.subgraph_type != "directional":
            return self._merged(batch)[kind].positions
        blocks, known = self._blocks(batch, kind)
        if not blocks:
            return np.empty(0, np.int64)
        if blocks[0].on_device:
            return merged_edge_rows(blocks, "edges", known)
        return merge_values(blocks, "edges", known)

    def _merged(self, batch: Batch) -> Any:
        self._asked.set()
        if batch.merged is None:
            batch.merged = self.merged(batch)
        return batch.merged

    def _blocks(self, batch: Batch, kind: EdgeType) -> tuple[list[Block], list[int]]:
        return by_relation(self._hops(batch)).get(kind, ([], []))

    def _hops(self, batch: Batch) -> list[Block]:
        """The batch's blocks by relation, outermost first."""
        return [block.named(self.edge_types) for block in batch.blocks]

    def _sampled_nodes(self, batch: Batch, name: str) -> list[int]:
        """The number of seeds, then of vertices that each hop adds."""
        hops = self._hops(batch)[::-1]
        return [hops[0].dst_counts[name], *(block.src_counts[name] - block.dst_counts[name] for block in hops)]

    def _sampled_edges(self, batch: Batch, kind: EdgeType) -> list[int]:
        """The number of edges of `edge_index` that each hop adds."""
        blocks, known = self._blocks(batch, kind)
        counts = (int(block.indptr[-1]) - int(block.indptr[first]) for block, first in new_rows(blocks, known))
        return [next(counts) if kind in hop.relations else 0 for hop in reversed(self._hops(batch))]

    def _carried(self, batch: Batch, kind: EdgeType) -> dict[str, Make]:
        """The values that samplers and the pipeline have put into the blocks."""
        blocks, known = self._blocks(batch, kind)
        found: dict[str, Make] = {}
        for name, named in (("edge_attr", self._job.edge_features), ("edge_weight", self._job.edge_weight)):
            if named and any(getattr(block, name) is not None for block in blocks):
                found[name] = partial(merged_edge_rows, blocks, name, known)
            elif named and name == "edge_attr" and (width := self._width(kind)):
                found[name] = partial(torch.empty, 0, width)
        if blocks and all(block.weights is not None for block in blocks):
            found["edge_norm"] = lambda: _tensor(merge_values([host_block(b) for b in blocks], "weights", known))
        return found

    def _width(self, kind: EdgeType) -> int:
        fields = self._graph.edges[kind].fields
        named = [fields[name] for name in self._job.edge_features if name in fields]
        return sum(int(np.prod(array.shape[1:])) for array in named)

    def _input_vertices(self, seeds: Array) -> Array:
        """`input_id` of seeds: positions in the list that was passed, or the vertex numbers of a mask."""
        source = self._source
        return source.input_id(seeds) if isinstance(source, GivenVertices) else seeds

    def _input_edges(self, items: Array, kind: EdgeType) -> Array:
        """`input_id` of edges: positions in `edge_label_index`, or in `edge_index`."""
        numbers = self._graph.edges[kind].fields.get(_NUMBERS)
        in_lists = getattr(self._source, "goes_through_lists", False)
        return np.asarray(numbers)[items] if in_lists and numbers is not None else items

    def _fields_of_nodes(self, nodes: NodeSet, from_pyg: bool) -> dict[str, "RowField"]:
        job, found = self._job, dict[str, RowField]()
        for name, array in nodes.fields.items():
            # The pipeline gathers features as float32, but PyG's scripts also use integer features as indices.
            if name == "x" == job.features and not (from_pyg and array.dtype == np.int64):
                continue
            found[name] = RowField(array)
        if job.label in nodes.fields:
            found["y"] = RowField(nodes.fields[job.label], as_label)
        for split, rows in nodes.splits.items():
            found[mask_name(split)] = RowField(partial(mask_of, rows, nodes.count))
        if from_pyg and isinstance(nodes.ids, np.ndarray):
            found["n_id"] = RowField(nodes.ids)
        return {name: field for name, field in found.items() if field.is_numeric}

    def _fields_of_edges(self, kind: EdgeType) -> dict[str, "RowField"]:
        named = {"edge_attr": bool(self._job.edge_features), "edge_weight": self._job.edge_weight is not None}
        fields = self._graph.edges[kind].fields
        found = {name: RowField(array) for name, array in fields.items() if not named.get(name)}
        return {name: field for name, field in found.items() if field.is_numeric}


class RowField:
    """A field of vertices or edges, read as tensors of its own dtype."""

    def __init__(self, array: Array | Callable[[], Array], typed: Callable[[Array], Array] | None = None) -> None:
        self._array, self._typed = array, typed
        self._copies: dict[torch.device, Tensor | None] = {}

    @property
    def is_numeric(self) -> bool:
        """Whether it can be a tensor; masks can."""
        return callable(self._array) or self._array.dtype.kind in "biuf"

    @property
    def array(self) -> Array:
        """All rows; a mask is made when it is first used."""
        if callable(self._array):
            self._array = self._array()
        return self._array

    def at(self, ids: Any) -> Tensor:
        """The rows of some vertices or edges, on the device where the ids are."""
        if isinstance(ids, Tensor) and ids.device.type != "cpu":
            if (copy := self._copy_on(ids.device)) is not None:
                return copy[ids.long()]
            return self.at(ids.cpu().numpy()).to(ids.device)
        rows = self.array[ids.numpy() if isinstance(ids, Tensor) else ids]
        found: Tensor = to_tensor(rows if self._typed is None else self._typed(rows), "A field")
        return found

    def _copy_on(self, device: torch.device) -> Tensor | None:
        if device not in self._copies:
            fits = self.array.nbytes <= device_memory_of(device)[1] // _SHARE
            array = self.array if self._typed is None or not fits else self._typed(self.array)
            self._copies[device] = to_tensor(array, "A field").to(device) if fits else None
        return self._copies[device]


def as_label(labels: Array) -> Array:
    """Labels as losses take them: classes int64, numbers and multi-labels float32; Booleans stay."""
    if labels.dtype.kind == "b" and labels.ndim == 1:
        return labels
    several = labels.ndim == 2 and labels.shape[1] > 1
    return labels.astype(np.float32 if labels.dtype.kind == "f" or several else np.int64, copy=False)


def _examples_of(batch: Batch, name: str) -> Array:
    """For each row, the example whose neighbourhood it belongs to: a seed, or an edge of a task on edges."""
    assert batch.trees is not None
    trees, examples = batch.trees[name], getattr(batch.links, "examples", None)
    return trees if examples is None else np.concatenate(list(examples.values()))[trees]


def _device_of(batch: Batch) -> torch.device:
    ids: Any = next(iter(batch.vertices.values()))
    return ids.device if isinstance(ids, Tensor) else torch.device("cpu")


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values)
