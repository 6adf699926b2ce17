"""Any torch module as a model: `forward(x, edge_index)` or `forward(x_dict, edge_index_dict)`, PyG's conventions."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.nn.device.merged import merged_edges, merged_relations
from penstock.sampling.block import Block, TypedBlock


def adapt(
    module: nn.Module, typed: bool = False, num_layers: int | None = None, edge_types: Sequence[EdgeType] = ()
) -> "Adapted":
    """A module as a model on blocks. `edge_types`, if given, are all passed, without edges where a batch has none."""
    return Adapted(module, typed, num_layers, edge_types)


class Adapted(nn.Module):
    """Runs on the merged edges of a batch, as PyG's loaders give them, and keeps the seeds' rows.

    Such a module knows nothing of how drawn edges stand for a neighbourhood: batches whose edges have weights, which it
    would leave out, are refused. In training it gets features of its own, which it may keep or write to.

    Nothing is known of its layers, so it computes all rows in every layer and cannot be run a layer at a time.
    """

    layerwise = False
    needs_totals = False
    needs_all_outputs = False

    def __init__(self, module: nn.Module, typed: bool, num_layers: int | None, edge_types: Sequence[EdgeType]) -> None:
        super().__init__()
        self.module, self.typed, self.num_layers, self.edge_types = module, typed, num_layers, list(edge_types)

    def forward(self, blocks: Sequence[Block] | Sequence[TypedBlock], x: Any) -> Any:
        """[seeds, out], or by node type."""
        if self.num_layers is not None and len(blocks) != self.num_layers:
            raise PenstockError(
                f"A module of {self.num_layers} layers was given {len(blocks)} blocks: give one fan-out per layer.",
                code="shape-mismatch",
            )
        _refuse_weights(blocks)
        if self.typed:
            return self._typed(cast(Sequence[TypedBlock], blocks), {name: _own(rows) for name, rows in x.items()})
        plain = cast(Sequence[Block], blocks)
        result = self.module(_own(x), merged_edges(plain))
        if not isinstance(result, Tensor):
            raise PenstockError(
                f"The module returned a {type(result).__name__}: forward(x, edge_index) must return a tensor.",
                code="user-code-failed",
            )
        return result[: plain[-1].num_dst]

    def _typed(self, blocks: Sequence[TypedBlock], x: dict[str, Tensor]) -> dict[str, Tensor]:
        device = next(iter(x.values())).device if x else None
        edges = {kind: torch.empty(2, 0, dtype=torch.int64, device=device) for kind in self.edge_types}
        edges |= merged_relations(blocks)
        result = self.module(x, edges)
        if not isinstance(result, dict):
            raise PenstockError(
                f"The module returned a {type(result).__name__}: it must return a dict of tensors by node type.",
                code="user-code-failed",
            )
        seeds = blocks[-1].num_dst
        return {name: rows[: seeds[name]] for name, rows in result.items() if seeds.get(name, 0)}


def _own(x: Tensor) -> Tensor:
    """A copy in training, where the batch's buffer is filled anew for a later one; inference reads into fresh ones."""
    return x.clone() if torch.is_grad_enabled() else x


def _refuse_weights(blocks: Sequence[Block] | Sequence[TypedBlock]) -> None:
    for block in blocks:
        for part in block.parts:
            if part.weights is not None:
                raise PenstockError(
                    "The sampled edges have weights, which a module with forward(x, edge_index) would ignore: use"
                    " sampler neighbour without `weight`, or cluster, or a model of the zoo.",
                    code="unsupported-combination",
                )
