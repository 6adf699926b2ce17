"""Blocks whose arrays are tensors on a device."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock.sampling.block import Block, TypedBlock
from penstock.traced import is_traced

HOST_LISTS = "host lists"
"""What is derived from a traced block: its `indptr` on the host, with the numbers that the traced one lacks."""
CHUNK = 32
"""Edges of a chunk: lists longer than two are summed chunk by chunk. Short ones are done before that pays."""


def bounds_key(known: int) -> str:
    """The name among what is derived from a block of the bounds of its edges from row `known` on: two numbers."""
    return f"bounds from row {known}"


@dataclass(eq=False)
class SourceLists:
    """A block read from its sources: row j is read by destinations `indices[indptr[j]:indptr[j + 1]]`, ascending.

    `edges` are those edges' places in the block. All int32; behind `indptr[-1]` there is nothing to read.
    """

    indptr: Tensor
    indices: Tensor
    edges: Tensor


@dataclass(eq=False)
class DeviceBlock(Block):
    """One layer of one batch on a device: tensors, `indptr` and `indices` int32, `weights` and `totals` float32.

    A block may have more room than its batch needs, so that its shape does not change from batch to batch: rows behind
    the batch's own have empty lists, and `indices` behind `indptr[-1]` mean nothing. What is derived from a block is
    kept in it.
    """

    derived: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The device that holds the arrays."""
        return self.lists.device

    @property
    def lists(self) -> Tensor:
        """`indptr`, as what it is here."""
        tensor: Any = self.indptr
        assert isinstance(tensor, Tensor)
        return tensor


def device_block(block: Block, device: torch.device, non_blocking: bool = False) -> DeviceBlock:
    """A block of the host's, copied."""

    def moved(array: Any, dtype: torch.dtype) -> Any:
        if array is None:
            return None
        return torch.from_numpy(array).to(dtype).to(device, non_blocking=non_blocking)

    def placed(rows: Any) -> Any:
        return None if rows is None else rows.to(device, non_blocking=non_blocking)

    return DeviceBlock(
        moved(block.indptr, torch.int32),
        moved(block.indices, torch.int32),
        block.num_src,
        moved(block.weights, torch.float32),
        moved(block.totals, torch.float32),
        moved(block.edges, torch.int64),
        edge_attr=placed(block.edge_attr),
        edge_weight=placed(block.edge_weight),
        ages=moved(block.ages, torch.float32),
        derived={HOST_LISTS: block.indptr} if is_traced() else {},
    )


def host_block(block: Block) -> Block:
    """A block where the host reads it; one that is there already as it is. Waits for the device."""
    if not isinstance(block, DeviceBlock):
        return block

    def moved(tensor: Any) -> Any:
        return None if tensor is None else tensor.cpu().numpy()

    return Block(
        moved(block.indptr),
        moved(block.indices),
        block.num_src,
        moved(block.weights),
        moved(block.totals),
        moved(block.edges),
        *(None if rows is None else rows.cpu() for rows in (block.edge_attr, block.edge_weight)),
    )


def on_device(block: Block | TypedBlock, device: torch.device) -> Any:
    """A block of the host's, of one type or several, copied; one that is on a device already as it is."""
    if isinstance(block, TypedBlock):
        parts: dict[Any, Block] = {kind: on_device(part, device) for kind, part in block.relations.items()}
        return TypedBlock(parts, block.num_src, block.num_dst)
    return block if isinstance(block, DeviceBlock) else device_block(block, device)
