"""Blocks whose arrays are tensors on a device."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.sampling.block import Block
from penstock.traced import is_gpu, is_traced, placed

HOST_LISTS = "host lists"
"""The key, among values derived from a traced block, of its `indptr` with values, on the host."""
MERGED = "edges of all layers"
"""The key, among values derived from a batch's outermost block, of the edges of all its blocks as one list of pairs."""
PADDED = "edges of all layers, padded"
"""The key of the same with fixed room: unused pairs join `PADDING` rows behind those of the batch."""
PADDING = 256
"""Rows that unused pairs join. Sums into one row would wait for each other."""
CHUNK = 32
"""Edges of a chunk: lists longer than two chunks are summed chunk by chunk; for shorter ones that does not pay."""


def bounds_key(known: int) -> str:
    """The key, among values derived from a block, of the bounds of its edges from row `known` on: two numbers."""
    return f"bounds from row {known}"


@dataclass(eq=False)
class SourceLists:
    """A block's transposed lists: row j is read by destinations `indices[indptr[j]:indptr[j + 1]]`, ascending.

    `edges` are those edges' positions in the block. All arrays are int32; entries past `indptr[-1]` are undefined.
    """

    indptr: Tensor
    indices: Tensor
    edges: Tensor


@dataclass(eq=False)
class DeviceBlock(Block):
    """One layer of one batch on a device: tensors, `indptr` and `indices` int32, `weights` and `totals` float32.

    A block may have more room than its batch needs, so that its shape does not change from batch to batch: rows behind
    the batch's own have empty lists, and `indices` behind `indptr[-1]` mean nothing.
    """

    derived: dict[str, Any] = field(default_factory=dict)

    @property
    def on_device(self) -> bool:
        """Always: the lists are tensors."""
        return True

    @property
    def device(self) -> torch.device:
        """The device that holds the arrays."""
        return self.lists.device

    @property
    def lists(self) -> Tensor:
        """`indptr`, typed as a tensor."""
        tensor: Any = self.indptr
        assert isinstance(tensor, Tensor)
        return tensor


def device_block(block: Block, device: torch.device, non_blocking: bool = False) -> DeviceBlock:
    """A copy of a host block on a device."""

    def moved(array: Any, dtype: torch.dtype) -> Any:
        if array is None:
            return None
        return placed(array, device, dtype, non_blocking)

    def rows_moved(rows: Any) -> Any:
        return None if rows is None else rows.to(device, non_blocking=non_blocking)

    return DeviceBlock(
        moved(block.indptr, torch.int32),
        moved(block.indices, torch.int32),
        block.num_src,
        moved(block.weights, torch.float32),
        moved(block.totals, torch.float32),
        moved(block.edges, torch.int64),
        edge_attr=rows_moved(block.edge_attr),
        edge_weight=rows_moved(block.edge_weight),
        ages=moved(block.ages, torch.float32),
        derived={HOST_LISTS: block.indptr} if is_traced() else {},
    )


def host_block(block: Block) -> Block:
    """The block on the host; one that is there already is returned unchanged. Waits for the device."""
    return block.changed(lambda part: _copied_back(part) if part.on_device else part)


def _copied_back(block: Block) -> Block:
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


def on_device(block: Block, device: torch.device) -> Block:
    """A copy on a device of a host block; one that is on a device is returned unchanged."""
    return block.changed(lambda part: part if part.on_device else device_block(part, device))


def block_on(block: Block, device: torch.device) -> Block:
    """A block where a device computes, which may be the host; one that is there already is returned unchanged."""
    return on_device(block, device) if is_gpu(device) else host_block(block)


class DrawnRows(NamedTuple):
    """The vertices of one type in a batch at fixed addresses, and how many of them are the batch's own."""

    vertices: Tensor
    known: Tensor


# The room of a batch on the device: upper bounds fixed before sampling, so that nothing waits for sizes.

_ROUND = 64
_SLACK = 0.004
_SPREADS = 5.0


@dataclass(frozen=True)
class Room:
    """Upper bounds of a batch: `rows[h]` before hop h, `rows[-1]` after the last; `edges[h]` drawn in hop h.

    In a graph of several types a hop is a draw along one relation after the other: `rows[0]` are the seeds, `rows[k +
    1]` the rows of the k-th draw's source type after it, and `types` the types of these rows.
    """

    rows: tuple[int, ...]
    edges: tuple[int, ...]
    types: tuple[str, ...] = ()

    def holds(self, other: "Room") -> bool:
        """Whether a batch of these sizes fits."""
        return self.holds_sizes(other.sizes)

    def holds_sizes(self, needed: Sequence[int]) -> bool:
        """Whether a batch that needs these sizes, in the order of `sizes`, fits."""
        return all(need <= held for need, held in zip(needed, self.sizes, strict=True))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Edges and rows after each hop, hop by hop: the order in which the device counts them."""
        pairs = zip(self.edges, self.rows[1:], strict=True)
        return tuple(size for pair in pairs for size in pair)

    def enlarged(self, needed: Sequence[int], largest: "Room") -> "Room":
        """Room for the sizes that a batch `needed`, in the order of `sizes`, with a margin: hops after one that was cut
        short may need still more.
        """
        grown = [max(size, _rounded(1.25 * need)) for size, need in zip(self.sizes, needed, strict=True)]
        return _of_sizes(self.rows[0], grown, largest)


def room_for(samples: Sequence[Sequence[int]], batch_size: int, largest: Room) -> Room:
    """Room for batches like some that were drawn (each in the order of `sizes`).

    Sizes are sums over many vertices and so nearly normal: the room is the mean plus five standard deviations, and a
    little more as the deviation is itself estimated from few batches.
    """
    sizes = []
    for values in zip(*samples, strict=True):
        mean = sum(values) / len(values)
        spread = (sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5
        sizes.append(_rounded(max(max(values), mean + _SPREADS * spread) * (1 + _SLACK)))
    return _of_sizes(batch_size, sizes, largest)


def _of_sizes(batch_size: int, sizes: Sequence[int], largest: Room) -> Room:
    held = [min(size, most) for size, most in zip(sizes, largest.sizes, strict=True)]
    types = largest.types or ("",) * len(largest.rows)
    rows, known = [batch_size], {types[0]: batch_size}
    for name, size in zip(types[1:], held[1::2], strict=True):
        known[name] = max(known.get(name, 0), size)
        rows.append(known[name])
    return Room(tuple(rows), tuple(held[0::2]), largest.types)


def _rounded(size: float) -> int:
    return max(_ROUND, -(-int(size + 1) // _ROUND) * _ROUND)
