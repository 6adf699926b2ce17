"""A batch as a loop of the user's own meets it: PyG's names for what a module takes, and blocks for `ps.nn`."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.nn.adapter import by_relation, merged_edge_rows, merged_edges, merged_relations
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned
from penstock.quantities import counted
from penstock.sampling.block import Block, TypedBlock, merge_values, new_rows
from penstock.sampling.device.block import host_block, on_device


@dataclass(frozen=True)
class BatchKind:
    """What all batches of a loader have in common."""

    typed: bool
    """Whether the graph has several node or edge types."""
    edge_types: tuple[EdgeType, ...]
    node_type: str | None
    """The seeds' type, where seeds are vertices."""
    edge_widths: Mapping[EdgeType, int] = field(default_factory=dict)
    """Numbers of an edge in `edge_attr`, by the relations that have any."""


class GraphBatch:
    """A sampled batch. Rows are the vertices `n_id`; the seeds are the first `batch_size` of them.

    `x`, `edge_index`, `y` and `n_id` are as in PyG, except that `y` has the labels of the seeds alone. A graph with
    several types has `x_dict`, `edge_index_dict` and `n_id_dict` instead. Models of `ps.nn` take `blocks` and `x`. A
    batch may be kept for as long as it is needed.
    """

    def __init__(
        self, planned: Planned, batch: Batch, kind: BatchKind, device: torch.device, merging: threading.Event
    ) -> None:
        """`merging` is set when edges are asked for as one list: later batches then make it ahead."""
        self._planned, self._batch, self._kind, self.device = planned, batch, kind, device
        self._merging = merging
        self._made: dict[str, Any] = {}

    @property
    def epoch(self) -> int:
        """The epoch that the batch is of, from 0."""
        return self._planned.key.epoch

    @property
    def number(self) -> int:
        """The batch's number in its epoch, from 0."""
        return self._planned.key.batch

    @property
    def batch_size(self) -> int:
        """The examples of the batch: seed vertices, or edges of a task on edges."""
        return self._batch.num_seeds if self._batch.links is None else len(self._planned.seeds)

    def __len__(self) -> int:
        return self.batch_size

    @property
    def blocks(self) -> list[Any]:
        """One block for each layer, outermost first, as models of `ps.nn` take them."""
        return list(self._batch.blocks)

    @property
    def x_dict(self) -> dict[str, Tensor]:
        """Features by node type; types without features are left out."""
        return dict(self._batch.features)

    @property
    def x(self) -> Tensor | None:
        """[vertices, width] features; None where the graph has none."""
        return self.x_dict.get(self._only("x"))

    @property
    def n_id_dict(self) -> dict[str, Tensor]:
        """Vertex numbers of the rows, by node type."""
        if "n_id" not in self._made:
            self._made["n_id"] = {name: self._tensor(rows).long() for name, rows in self._batch.vertices.items()}
        found: dict[str, Tensor] = self._made["n_id"]
        return found

    @property
    def n_id(self) -> Tensor:
        """Vertex numbers of the rows."""
        return self.n_id_dict[self._only("n_id")]

    @property
    def num_nodes(self) -> int:
        """Rows of all node types."""
        return sum(map(len, self._batch.vertices.values()))

    @property
    def num_nodes_dict(self) -> dict[str, int]:
        """Rows by node type."""
        return {name: len(rows) for name, rows in self._batch.vertices.items()}

    @property
    def num_edges(self) -> int:
        """Edges of `edge_index`, or of all of `edge_index_dict`."""
        found = self._merged()
        return sum(each.shape[1] for each in (found.values() if isinstance(found, dict) else [found]))

    @property
    def y(self) -> Tensor | None:
        """Labels of the seeds: int64 classes, or float32; None where seeds have none, or are edges."""
        labels = self._batch.labels
        return None if isinstance(labels, dict) else labels

    @property
    def y_dict(self) -> dict[str, Tensor]:
        """`y` under the name of the seeds' type."""
        return {} if self.y is None or self._kind.node_type is None else {self._kind.node_type: self.y}

    @property
    def edge_index(self) -> Tensor:
        """[2, edges] source and destination rows, ascending by destination from the seeds on.

        A vertex has its list once: that of the layer where it is first computed.
        """
        self._only("edge_index")
        found: Tensor = self._merged()
        return found

    @property
    def edge_index_dict(self) -> dict[EdgeType, Tensor]:
        """`edge_index` by edge type, for every edge type of the graph."""
        found = self._merged()
        if not self._kind.typed:
            return dict.fromkeys(self._kind.edge_types, found)
        none = torch.empty(2, 0, dtype=torch.int64, device=self.device)
        return {kind: found.get(kind, none) for kind in self._kind.edge_types}

    @property
    def edge_attr(self) -> Tensor | None:
        """[edges, width] what the edges of `edge_index` carry (`edge_features`); None where nothing is named."""
        self._only("edge_attr")
        return merged_edge_rows(self._batch.blocks, "edge_attr")  # type: ignore[arg-type]

    @property
    def edge_weight(self) -> Tensor | None:
        """[edges] weights of the edges of `edge_index` (`edge_weight`); None where none is named."""
        self._only("edge_weight")
        return merged_edge_rows(self._batch.blocks, "edge_weight")  # type: ignore[arg-type]

    @property
    def edge_attr_dict(self) -> dict[EdgeType, Tensor]:
        """`edge_attr` by edge type, for those that have it."""
        none = {kind: torch.empty(0, width, device=self.device) for kind, width in self._kind.edge_widths.items()}
        return none | self._carried("edge_attr")

    @property
    def edge_weight_dict(self) -> dict[EdgeType, Tensor]:
        """`edge_weight` by edge type, for those that have it and edges in this batch."""
        return self._carried("edge_weight")

    @property
    def edge_norm(self) -> Tensor | None:
        """For each edge of `edge_index`, what it counts for in a sum over a whole list; None where all count alike.

        Samplers that draw unevenly say so here (docs/sampling.md); `ps.nn` reads it in the blocks.
        """
        self._only("edge_norm")
        values = merge_values([host_block(block) for block in self._batch.blocks], "weights")  # type: ignore[arg-type]
        return None if values is None else self._tensor(values)

    @property
    def node_norm(self) -> Tensor | None:
        """What the loss of each seed is multiplied by before all are added up; None: take their mean."""
        weights = self._batch.seed_weights
        return None if weights is None else self._tensor(weights)

    @property
    def num_sampled_nodes(self) -> list[int]:
        """Seeds, and the vertices that each hop adds, as `torch_geometric.utils.trim_to_layer` takes them."""
        blocks: list[Any] = self._batch.blocks
        self._only("num_sampled_nodes")
        return [blocks[-1].num_dst, *(block.num_src - block.num_dst for block in reversed(blocks))]

    @property
    def num_sampled_edges(self) -> list[int]:
        """Edges of `edge_index` that each hop adds."""
        self._only("num_sampled_edges")
        blocks: list[Any] = self._batch.blocks
        return [int(block.indptr[-1]) - int(block.indptr[known]) for block, known in new_rows(blocks)]

    @property
    def edge_label_index(self) -> Tensor:
        """[2, pairs] rows of the pairs to judge: edges, and for link prediction negatives behind them.

        The first row counts rows of the source type and the second of the destination type.
        """
        labels = self._of_edges("edge_label_index")
        return torch.stack([labels["rows"], labels["columns"]])

    @property
    def edge_label(self) -> Tensor:
        """For each of those pairs its class or number; for link prediction 1.0 for an edge, 0.0 for a negative."""
        labels = self._of_edges("edge_label")
        found: Tensor = labels["true"] if "true" in labels else labels["values"]
        return found

    @property
    def links(self) -> Any:
        """Edges, negatives and their masks as they were drawn (`ps.sampling`); None where seeds are vertices."""
        return self._batch.links

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "GraphBatch":
        """The batch on a device; itself if it is there."""
        where = torch.device(device)
        if where.type == self.device.type:
            return self
        if self._merging.is_set():
            # The host makes one list of edges without waiting for a device.
            self._merged()
        batch = self._batch
        moved = {"features": batch.features, "labels": batch.labels, "vertices": batch.vertices}
        moved |= {"seed_weights": batch.seed_weights, "merged": batch.merged}
        changes: dict[str, Any] = {name: _moved(value, where, non_blocking) for name, value in moved.items()}
        move = _on_host if where.type == "cpu" else partial(on_device, device=where)
        changes["blocks"] = [move(block) for block in batch.blocks]
        made = GraphBatch(self._planned, replace(batch, **changes), self._kind, where, self._merging)
        made._made = _moved(self._made, where, non_blocking)
        return made

    def __repr__(self) -> str:
        what = "edges" if self._batch.links is not None else "seeds"
        sizes = f"{self.batch_size:,} {what}, {self.num_nodes:,} vertices, {counted(len(self._batch.blocks), 'layers')}"
        return f"GraphBatch({sizes}, epoch {self.epoch}, batch {self.number})"

    def _only(self, what: str) -> str:
        """The node type, where there is one; `what` was asked for."""
        if self._kind.typed:
            raise PenstockError(
                f"The graph has several types, so a batch has no {what}: use {what}_dict, or its blocks.",
                code="unsupported-combination",
            )
        return next(iter(self._batch.vertices))

    def _of_edges(self, what: str) -> dict[str, Tensor]:
        labels = self._batch.labels
        if not isinstance(labels, dict):
            raise PenstockError(
                f"The batch's seeds are vertices, so it has no {what}: use y, or set task to link-prediction,"
                " edge-classification or edge-regression.",
                code="unsupported-combination",
            )
        return labels

    def _carried(self, name: str) -> dict[EdgeType, Tensor]:
        """What edges carry, by the relations that have edges in the batch."""
        blocks: list[Any] = self._batch.blocks
        parts = by_relation(blocks) if self._kind.typed else {self._kind.edge_types[0]: blocks}
        found = {kind: merged_edge_rows(each, name) for kind, each in parts.items()}
        return {kind: rows for kind, rows in found.items() if rows is not None}

    def _merged(self) -> Any:
        self._merging.set()
        if self._batch.merged is None:
            self._batch.merged = merged(self._batch)
        return self._batch.merged

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values) if isinstance(values, np.ndarray) else values).to(
            self.device
        )


def merged(batch: Batch) -> Any:
    """The edges of all layers as one tensor, or one for each relation that has any."""
    blocks: list[Any] = batch.blocks
    return merged_relations(blocks) if isinstance(blocks[0], TypedBlock) else merged_edges(blocks)


def _moved(value: Any, device: torch.device, non_blocking: bool) -> Any:
    """Arrays and tensors on a device, in mappings too; on the host vertices stay tensors, which all readers take."""
    if isinstance(value, Mapping):
        return {name: _moved(each, device, non_blocking) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    return value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor) else value


def _on_host(block: Block | TypedBlock) -> Any:
    if not isinstance(block, TypedBlock):
        return host_block(block)
    relations = {kind: host_block(part) for kind, part in block.relations.items()}
    return TypedBlock(relations, block.num_src, block.num_dst)
