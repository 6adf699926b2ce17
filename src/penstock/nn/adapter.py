"""Any torch module as a model: `forward(x, edge_index)` or `forward(x_dict, edge_index_dict)`, PyG's conventions.

For such a module a batch's blocks are merged into one list of pairs.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.sampling.block import Block, by_relation, merge_edge_rows, merge_edges, new_rows
from penstock.sampling.device.block import HOST_LISTS, MERGED, PADDED, PADDING, DeviceBlock, bounds_key
from penstock.traced import is_traced

# Edge masks in modules that know nothing of blocks: through PyG's own layers, or an argument `edge_weight`.


def call_masked(
    module: nn.Module,
    x: Any,
    edges: Any,
    masks: Tensor | dict[EdgeType, Tensor] | None,
    carried: Mapping[str, Any] | None = None,
) -> Any:
    """The module's output for x and edges, whose messages are multiplied by their masks if there are any.

    `carried` are further arguments by name: the edge fields.
    """
    more = dict(carried or {})
    if masks is None:
        return module(x, edges, **more)
    if layers := _message_passing(module):
        with _without_masks(layers):
            return _in_pyg_layers(module, x, edges, masks, more)
    if not isinstance(masks, dict) and "edge_weight" in inspect.signature(module.forward).parameters:
        return module(x, edges, **{**more, "edge_weight": masks * more.get("edge_weight", 1)})
    raise PenstockError(
        f"Edges of the module {type(module).__name__} cannot be masked, because it has no layer of PyG and its forward"
        " takes no `edge_weight`: build it of PyG's MessagePassing layers, or let forward(x, edge_index,"
        " edge_weight=None) multiply messages by their weights.",
        code="unsupported-combination",
    )


def _message_passing(module: nn.Module) -> list[Any]:
    """The module's PyG layers. A module that has any has imported PyG."""
    pyg = sys.modules.get("torch_geometric.nn")
    return [] if pyg is None else [part for part in module.modules() if isinstance(part, pyg.MessagePassing)]


@contextmanager
def _without_masks(layers: list[Any]) -> Iterator[None]:
    """Within the context, PyG's layers have no state of another explainer; it is restored afterwards.

    PyG's Explainer leaves the mask's name among a layer's parameters. PyG then copies any mask into a new parameter,
    which breaks its gradient.
    """
    if all(layer.explain is False for layer in layers):
        raise PenstockError(
            "No edge can be masked, because `explain` of every PyG layer is False: set it to None.",
            code="unsupported-combination",
        )
    kept = []
    for layer in layers:
        told = layer.explain
        values = {name: vars(layer).pop(name) for name in _STATE if name in vars(layer)}
        parameters = {name: layer._parameters.pop(name) for name in _STATE if name in layer._parameters}
        kept.append((layer, told, values, parameters))
        layer.explain = False if told is False else None
    try:
        yield
    finally:
        for layer, told, values, parameters in kept:
            for name in _STATE:
                vars(layer).pop(name, None)
            vars(layer).update(values)
            layer._parameters.update(parameters)
            layer.explain = told


_STATE = ("_edge_mask", "_loop_mask", "_apply_sigmoid")
"""PyG's explanation state in its layers, beside `explain`."""


def _in_pyg_layers(
    module: nn.Module, x: Any, edges: Any, masks: Tensor | dict[EdgeType, Tensor], more: dict[str, Any]
) -> Any:
    from torch_geometric.explain.algorithm.utils import clear_masks, set_hetero_masks, set_masks

    try:
        if isinstance(masks, dict):
            set_hetero_masks(module, masks, edges, apply_sigmoid=False)
        else:
            set_masks(module, masks, edges, apply_sigmoid=False)
        return module(x, edges, **more)
    finally:
        clear_masks(module)


def adapt(
    module: nn.Module,
    typed: bool = False,
    num_layers: int | None = None,
    edge_types: Sequence[EdgeType] = (),
    edge_widths: Mapping[EdgeType, int] | None = None,
) -> "Adapted":
    """A module as a model on blocks. `edge_types`, if given, are all passed, without edges where a batch has none.

    `edge_widths`: the width of the edge features by relation.
    """
    return Adapted(module, typed, num_layers, edge_types, edge_widths)


class Adapted(nn.Module):
    """Runs on the merged edges of a batch, as PyG's loaders give them, and keeps the seeds' rows.

    Such a module does not know the estimator weights of drawn edges: batches whose edges have weights, which it would
    ignore, are refused. Edge fields are passed by name, as `edge_attr` and `edge_weight`; to a module for several types
    as dictionaries, `edge_attr_dict` and `edge_weight_dict` where it has arguments of these names. In training it gets
    a copy of the features, which it may keep or write to.

    Its layers are unknown, so it computes all rows in every layer and cannot be run a layer at a time.
    """

    layerwise = False
    needs_totals = False
    needs_all_outputs = False

    def __init__(
        self,
        module: nn.Module,
        typed: bool,
        num_layers: int | None,
        edge_types: Sequence[EdgeType],
        edge_widths: Mapping[EdgeType, int] | None = None,
    ) -> None:
        super().__init__()
        self._edge_widths = dict(edge_widths or {})
        self.module, self.typed, self.num_layers, self.edge_types = module, typed, num_layers, list(edge_types)

    def forward(self, blocks: Sequence[Block], x: Any) -> Any:
        """[seeds, out], or by node type."""
        if self.num_layers is not None and len(blocks) != self.num_layers:
            raise PenstockError(
                f"A module of {self.num_layers} layers was given {len(blocks)} blocks: give one fan-out per layer.",
                code="shape-mismatch",
            )
        _refuse_weights(blocks)
        if self.typed:
            return self._typed(blocks, {name: _own(rows) for name, rows in x.items()})
        padded = blocks[0].derived.get(PADDED) if blocks[0].on_device else None
        if padded is not None:
            # A copy with rows that only unused pairs read.
            result = self.module(torch.cat([x, x.new_zeros(PADDING, x.shape[1])]), padded)
        else:
            carried = {name: rows for name in CARRIED if (rows := merged_edge_rows(blocks, name)) is not None}
            result = call_masked(self.module, _own(x), merged_edges(blocks), merged_mask(blocks), carried)
        if not isinstance(result, Tensor):
            raise PenstockError(
                f"The module returned a {type(result).__name__}: forward(x, edge_index) must return a tensor.",
                code="user-code-failed",
            )
        return result[: blocks[-1].num_dst]

    def _typed(self, blocks: Sequence[Block], x: dict[str, Tensor]) -> dict[str, Tensor]:
        device = next(iter(x.values())).device if x else None
        edges = {kind: torch.empty(2, 0, dtype=torch.int64, device=device) for kind in self.edge_types}
        edges |= merged_relations(blocks)
        result = call_masked(self.module, x, edges, merged_masks(blocks), self._carried(blocks, device))
        if not isinstance(result, dict):
            raise PenstockError(
                f"The module returned a {type(result).__name__}: it must return a dict of tensors by node type.",
                code="user-code-failed",
            )
        seeds = blocks[-1].dst_counts
        return {name: rows[: seeds[name]] for name, rows in result.items() if seeds.get(name, 0)}

    def _carried(self, blocks: Sequence[Block], device: torch.device | None) -> dict[str, dict[EdgeType, Tensor]]:
        """Edge fields by relation; empty tensors for a relation without edges in this batch."""
        taken, found = inspect.signature(self.module.forward).parameters, {}
        for name in CARRIED:
            rows = {
                kind: merged
                for kind, parts in by_relation(blocks).items()
                if (merged := merged_edge_rows(parts[0], name, parts[1])) is not None
            }
            if name == "edge_attr":
                rows = {kind: torch.empty(0, width, device=device) for kind, width in self._edge_widths.items()} | rows
            if rows:
                found[f"{name}_dict" if f"{name}_dict" in taken else name] = rows
        return found


CARRIED = ("edge_attr", "edge_weight")
"""Arguments of a module's forward that receive edge fields."""


def _own(x: Tensor) -> Tensor:
    """A copy in training, where the batch's buffer is reused for a later one; inference reads into new ones."""
    return x.clone() if torch.is_grad_enabled() else x


def _refuse_weights(blocks: Sequence[Block]) -> None:
    for block in blocks:
        for part in block.parts:
            if part.weights is not None:
                raise PenstockError(
                    "The sampled edges have weights, which a module with forward(x, edge_index) would ignore: use"
                    " sampler neighbour without `weight`, or cluster, or a model of the zoo.",
                    code="unsupported-combination",
                )


def merged_edges(blocks: Sequence[Block], known: Sequence[int] | None = None) -> Tensor:
    """[2, edges] int64 of blocks that are outermost first, on the blocks' device; each vertex's list once.

    `known` as for `sampling.block.new_rows`.

    On a device this waits for the lists' lengths. Blocks with spare room are not supported.
    """
    if not blocks[0].on_device:
        if is_traced():
            edges = sum(block.num_edges - int(block.indptr[first]) for block, first in new_rows(blocks, known))
            return torch.empty(2, edges, dtype=torch.int64, device="meta")
        return torch.from_numpy(merge_edges(blocks, known))
    known_pairs: Tensor | None = blocks[0].derived.get(MERGED)
    if known_pairs is not None:
        return known_pairs
    sources, targets = list[Tensor](), list[Tensor]()
    for block, (start, stop) in _with_bounds(blocks, known):
        indices: Any = block.indices
        rows = torch.arange(block.num_dst, device=block.device)
        sources.append(indices[start:stop].long())
        targets.append(rows.repeat_interleave(block.lists.diff().long(), output_size=stop)[start:])
    return torch.stack([torch.cat(sources), torch.cat(targets)])


def merged_mask(blocks: Sequence[Block], known: Sequence[int] | None = None) -> Tensor | None:
    """The mask of the merged edges, in their order; None where blocks have none."""
    if any(block.mask is None for block in blocks):
        return None
    return torch.cat([block.mask[int(block.indptr[first]) :] for block, first in new_rows(blocks, known)])


def _with_bounds(blocks: Sequence[Block], known: Sequence[int] | None) -> list[tuple[DeviceBlock, tuple[int, int]]]:
    """Blocks from the seeds outwards, each with the bounds of the lists that no earlier one has.

    It waits for the device once, and not for blocks whose bounds are cached; those of a traced block are known on the
    host.
    """
    found = list[tuple[DeviceBlock, int, str]]()
    for block, first in cast(list[tuple[DeviceBlock, int]], new_rows(blocks, known)):
        # One block may serve several layers.
        found.append((block, first, bounds_key(first)))
    if is_traced():
        for block, first, key in found:
            lists = block.derived[HOST_LISTS]
            block.derived[key] = int(lists[first]), int(lists[-1])
    elif any(key not in block.derived for block, _, key in found):
        ends = torch.stack([block.lists[place] for block, first, _ in found for place in (first, -1)]).tolist()
        for (block, _, key), start, stop in zip(found, ends[::2], ends[1::2], strict=True):
            block.derived[key] = start, stop
    return [(block, block.derived[key]) for block, _, key in found]


def merged_relations(blocks: Sequence[Block]) -> dict[EdgeType, Tensor]:
    """`merged_edges` of every relation that has any in some layer."""
    return {kind: merged_edges(*parts) for kind, parts in by_relation(blocks).items()}


def merged_edge_rows(blocks: Sequence[Block], name: str, known: Sequence[int] | None = None) -> Tensor | None:
    """`edge_attr` or `edge_weight` of the edges of `merged_edges`, in its order; None where there are none."""
    if not blocks[0].on_device:
        found: Tensor | None = merge_edge_rows(blocks, name, known)
        return found
    if any(getattr(block, name) is None for block in blocks):
        return None
    return torch.cat([getattr(block, name)[slice(*bounds)] for block, bounds in _with_bounds(blocks, known)])


def merged_masks(blocks: Sequence[Block]) -> dict[EdgeType, Tensor] | None:
    """`merged_mask` of every relation that has edges in some layer."""
    found = {kind: merged_mask(*parts) for kind, parts in by_relation(blocks).items()}
    return {kind: mask for kind, mask in found.items() if mask is not None} or None
