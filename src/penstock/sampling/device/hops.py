"""Launches a batch's passes one after the other on a stream, without waiting for the device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.hashing import keys_of
from penstock.sampling.block import BATCH
from penstock.sampling.device.block import CHUNK, DeviceBlock, Room, SourceLists
from penstock.traced import is_traced, launches

_EDGES = 1024
_FEWEST = 32
_CELLS = 1024
_ORDERED = 256
"""Edges, rows and draws that a program handles, and lists that it orders."""


class Topology:
    """In-neighbour lists that kernels read: on the device, or in page-locked memory of the host."""

    def __init__(self, indptr: Tensor, indices: Tensor) -> None:
        self.indptr, self.indices = indptr, indices

    @property
    def count(self) -> int:
        """The number of vertices."""
        return len(self.indptr) - 1


class DeviceEpoch:
    """The inputs of an epoch's draws: the `order` of the items and, for each batch, the keys of its draws.

    Batch k has `counts[k]` items, from position k * `batch_size` of the order on. All have fixed addresses, so that
    captured launches find the next epoch's values there; `cursor` is the number of the next batch, and `failed_at` that
    of the first that lacked room.
    """

    def __init__(self, items: int, batch_size: int, keys: int, device: torch.device) -> None:
        self.items, self.batch_size = items, batch_size
        self.batches = -(-items // batch_size)
        self.order = torch.zeros(items, dtype=torch.int32, device=device)
        self.keys = torch.zeros((self.batches, keys), dtype=torch.int64, device=device)
        self.counts = torch.full((max(1, self.batches),), batch_size, dtype=torch.int32, device=device)
        self.counts[-1:].fill_(items - batch_size * max(0, self.batches - 1))
        self.cursor = torch.zeros(1, dtype=torch.int32, device=device)
        self.failed_at = torch.full((1,), NEVER, dtype=torch.int32, device=device)


NEVER = 0x7FFFFFFF


class Slot:
    """Memory of one batch: its vertices, its blocks and what is needed while they are drawn."""

    kept_lists: tuple[str, ...] = ("longest", "sources", "source_chunks")
    """Values derived from a block that the sampler provides, so that the step need not compute them."""
    is_drawn_by_host = False

    def __init__(
        self,
        topology: Topology,
        fanouts: Sequence[int],
        room: Room,
        device: torch.device,
        keys: int,
        replace: bool = False,
        totals: bool = False,
        edges: bool = False,
        place: Tensor | None = None,
        numbers_last: bool = True,
        turns: bool = False,
    ) -> None:
        """`place` may be shared by slots that are filled one after the other on one stream.

        Without `numbers_last` the last hop's neighbours get no rows: `indices` of its block are vertices, for a layer
        that reads their features in place. With `turns` the other blocks come with their transposed lists, along which
        gradients flow.
        """
        self._topology, self._fanouts, self.room, self._replace = topology, list(fanouts), room, replace
        self.numbers_last = numbers_last

        def empty(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(max(1, size), dtype=dtype, device=device)

        hops = len(self._fanouts)
        self.place = fresh_place(topology.count, device) if place is None else place
        self.vertices, self.known = empty(room.rows[-1]), empty(hops + 1)
        self.keys, self.number = empty(keys, torch.int64), empty(1)
        self.needed, self.skip = empty(2 * hops), empty(1, torch.float32)
        self._rooms = torch.tensor(room.sizes, dtype=torch.int32, device=device)
        self.edge_counts = empty(hops)
        self._indptrs = [empty(rows + 1) for rows in room.rows[:-1]]
        self._indices = [empty(size) for size in room.edges]
        self._positions = [empty(size, torch.int64) if edges else empty(1, torch.int64) for size in room.edges]
        # Two, as one hop's are still looked up while the next one's are drawn.
        self._sources = [empty(max(room.edges[place::2], default=1)) for place in (0, 1)]
        self._row_sums = [empty(_blocks(rows, _rows_of(f))) for rows, f in zip(room.rows, self._fanouts, strict=False)]
        self._edge_sums = empty(max(_blocks(size, _EDGES) for size in room.edges))
        self._is_new = empty(max(room.edges), torch.int8)
        self._turned = [
            Turned(rows, size, device) if turns else None
            for rows, size in zip(room.rows[1:-1], room.edges[:-1], strict=True)
        ]
        self.totals = empty(room.rows[-1], torch.float32) if totals else None
        self._keeps_positions = edges

    def draw(self, epoch: DeviceEpoch) -> None:
        """Draw the epoch's next batch into this slot."""
        if is_traced():
            # A few kernels for each hop, of which one reads lists.
            for indptr, indices in zip(self._indptrs, self._indices, strict=True):
                launches(indptr, indices, rows=len(indices), of=indices[:, None])
            return
        kernels, room, hops = _kernels(), self.room, len(self._fanouts)
        size = min(1024, _power(epoch.batch_size))
        kernels.start[(_blocks(epoch.batch_size, size),)](
            epoch.order, epoch.cursor, epoch.counts, epoch.batch_size, self.vertices, self.known, self.place,
            self.keys, epoch.keys, KEYS=epoch.keys.shape[1], B=size,
        )  # fmt: skip
        for hop in range(hops):
            self._count(hop)
            self._draw(hop)
            if self._is_numbered(hop):
                self._number(hop)
        if self.numbers_last:
            self._count(hops)
        for hop, turned in enumerate(self._turned):
            if turned is not None:
                turned.fill(self._indices[hop], self.edge_counts[hop:])
        last = hops if self.numbers_last else hops - 1
        if self.totals is not None:
            kernels.list_lengths[(_blocks(room.rows[-1], _EDGES),)](
                self._topology.indptr, self.vertices, self.known[last:], self.totals, room.rows[-1], B=_EDGES
            )
        kernels.finish[(_blocks(room.rows[-1], _EDGES),)](
            self.vertices, self.known[last:], self.place, self.needed, self._rooms, epoch.cursor, self.number,
            epoch.failed_at, self.skip, SIZES=2 * hops, B=_EDGES,
        )  # fmt: skip

    def blocks(self) -> list[DeviceBlock]:
        """The batch's blocks with all their room, outermost first. The next draw overwrites them."""
        rows, edges = list(self.room.rows), self.room.edges
        if not self.numbers_last:
            rows[-1] = rows[-2]
        hops = reversed(range(len(self._fanouts)))
        return [self._block(hop, rows[hop], rows[hop + 1], edges[hop], False) for hop in hops]

    def on_host(self) -> dict[str, Tensor]:
        """The first layer's lists, where the host has drawn them."""
        raise NotImplementedError("the device has drawn the batch")

    def copied_blocks(self, seeds: int, sizes: Sequence[int]) -> list[DeviceBlock]:
        """Copies of the batch's blocks, cut to their sizes. `sizes` are the device's counts (`needed`)."""
        known = [seeds, *sizes[1::2]]
        return [
            self._block(hop, known[hop], known[hop + 1], sizes[2 * hop], True)
            for hop in reversed(range(len(self._fanouts)))
        ]

    def merge(self, merged: Tensor, counts: Tensor) -> None:
        """Write the edges of all hops as pairs, each vertex's list once (`nn.adapter.merged_edges`), into `merged`,
        int64 [2, room of all edges]. `counts` has one entry more than there are hops: 0, and the number of pairs after
        each hop.
        """
        if is_traced():
            return
        for hop, fanout in enumerate(self._fanouts):
            rows = _rows_of(fanout)
            _kernels().merge_lists[(_blocks(self.room.rows[hop], rows),)](
                self._indptrs[hop], self._indices[hop], self.known[max(0, hop - 1) :], self.known[hop:], counts[hop:],
                counts[hop + 1 :], merged, merged.shape[1], FIRST=hop == 0, COLUMNS=_power(fanout), ROWS=rows,
            )  # fmt: skip

    def new_list_starts(self) -> list[Tensor]:
        """For every hop but the first, where in its block the lists begin of vertices for which the hop before has not
        drawn; int32 on the device.
        """
        return [self._indptrs[hop].index_select(0, self.known[hop - 1 : hop]) for hop in range(1, len(self._fanouts))]

    def _block(self, hop: int, num_dst: int, num_src: int, edges: int, copy: bool) -> DeviceBlock:
        def cut(tensor: Tensor, size: int) -> Any:
            return tensor[:size].clone() if copy else tensor[:size]

        return DeviceBlock(
            cut(self._indptrs[hop], num_dst + 1),
            cut(self._indices[hop], edges),
            num_src,
            None,
            None if self.totals is None else cut(self.totals, num_src),
            cut(self._positions[hop], edges) if self._keeps_positions else None,
            derived=self._derived(hop),
        )

    def _derived(self, hop: int) -> dict[str, Any]:
        """The values derived from a block that the sampler provides."""
        known: dict[str, Any] = {"longest": self._fanouts[hop]}
        turned = self._turned[hop] if hop < len(self._turned) else None
        if turned is not None:
            known |= {"sources": turned.lists, "source_chunks": turned.chunks}
        return known

    def _is_numbered(self, hop: int) -> bool:
        return self.numbers_last or hop < len(self._fanouts) - 1

    def _count(self, hop: int) -> None:
        """Count this hop's edges, and look up the rows of the last hop's."""
        counts, looks_up = hop < len(self._fanouts), hop > 0
        fanout = self._fanouts[hop] if counts else 1
        rows = _rows_of(fanout)
        count_programs = _blocks(self.room.rows[hop], rows) if counts else 0
        look_programs = _blocks(self.room.edges[hop - 1], _EDGES) if looks_up else 0
        last = max(hop - 1, 0)
        turned = self._turned[last] if looks_up and last < len(self._turned) else None
        _kernels().count_and_look_up[(count_programs + look_programs,)](
            self._topology.indptr, self.vertices, self.known[hop:], self._row_sums[hop if counts else 0],
            self._sources[last % 2], self.edge_counts[last:], self.place, self._indices[last],
            None if turned is None else turned.readers, None if turned is None else turned.slots,
            self.room.rows[hop], count_programs, FANOUT=fanout, REPLACE=self._replace,
            COUNTS=counts, LOOKS_UP=looks_up, TURNS=turned is not None, ROWS=rows, B=_EDGES,
        )  # fmt: skip

    def _draw(self, hop: int) -> None:
        fanout, rows_room = self._fanouts[hop], self.room.rows[hop]
        rows = _rows_of(fanout)
        programs = _blocks(rows_room, rows)
        turned = self._turned[hop] if hop < len(self._turned) else None
        drawn = self._sources[hop % 2] if self._is_numbered(hop) else self._indices[hop]
        _kernels().draw[(programs,)](
            self._topology.indptr, self._topology.indices, self.vertices, self.known[hop:], self._row_sums[hop],
            self.keys[hop:], self._indptrs[hop], drawn, self.edge_counts[hop:], self._positions[hop],
            None if turned is None else turned.targets, self.place, self.needed[2 * hop :], rows_room,
            self.room.edges[hop], FANOUT=fanout, COLUMNS=_power(fanout), REPLACE=self._replace,
            KEEPS_POSITIONS=self._keeps_positions, KEEPS_TARGETS=turned is not None, NUMBERS=self._is_numbered(hop),
            BLOCKS=_power(programs), ROWS=rows,
        )  # fmt: skip

    def _number(self, hop: int) -> None:
        programs = _blocks(self.room.edges[hop], _EDGES)
        read = self._sources[hop % 2], self.edge_counts[hop:], self.place, self._edge_sums, self._is_new
        kernels = _kernels()
        kernels.count_new[(programs,)](*read, B=_EDGES)
        kernels.number_new[(programs,)](
            *read, self.vertices, self.known[hop:], self.known[hop + 1 :], self.needed[2 * hop + 1 :],
            self.room.rows[hop + 1], BLOCKS=_power(programs), B=_EDGES,
        )  # fmt: skip


class Turned:
    """A block's transposed lists, made without a sort: counted, placed, and each ordered."""

    def __init__(self, rows: int, edges: int, device: torch.device) -> None:
        def empty(size: int) -> Tensor:
            return torch.zeros(max(1, size), dtype=torch.int32, device=device)

        self._rows, self._edges = rows, edges
        self.readers, self.slots, self.targets = empty(rows), empty(edges), empty(edges)
        self._unordered, self._sums = empty(edges), empty(_blocks(rows, _EDGES))
        self.lists = SourceLists(empty(rows + 1), empty(edges), empty(edges))
        self.chunks = empty(edges // CHUNK) if edges > 2 * CHUNK else None
        self._chunks = empty(1) if self.chunks is None else self.chunks

    def fill(self, indices: Tensor, edges: Tensor) -> None:
        """Fill the reversed lists from edges whose positions are known."""
        kernels, rows, lists = _kernels(), self._rows, self.lists
        programs = _blocks(rows, _EDGES)
        kernels.count_readers[(programs,)](self.readers, self._sums, rows, B=_EDGES)
        if self.chunks is not None:
            self.chunks.fill_(-1)
        kernels.bound_readers[(programs,)](
            self.readers, self._sums, lists.indptr, self._chunks, rows, CHUNK=CHUNK, BLOCKS=_power(programs), B=_EDGES
        )
        kernels.place_readers[(_blocks(self._edges, _EDGES),)](
            indices, self.slots, lists.indptr, edges, self._unordered, B=_EDGES
        )
        kernels.order_readers[(_blocks(rows, _ORDERED),)](
            lists.indptr, self._unordered, self.targets, lists.edges, lists.indices, rows, LONG=CHUNK, B=_ORDERED, E=4
        )
        kernels.order_long_lists[(_blocks(self._edges, _ORDERED),)](
            lists.indptr, indices, self._unordered, self.targets, edges, lists.edges, lists.indices,
            LONG=CHUNK, B=_ORDERED,
        )  # fmt: skip


def fresh_place(vertices: int, device: torch.device) -> Tensor:
    """The table of all vertices' rows, with no vertex in a batch."""
    return torch.full((vertices,), NEVER, dtype=torch.int32, device=device)


def _rows_of(fanout: int) -> int:
    """Rows that a program draws for."""
    return max(_FEWEST, _CELLS // _power(fanout))


def _blocks(size: int, block: int) -> int:
    return max(1, -(-size // block))


def _power(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def _kernels() -> Any:
    """Import Triton at the first launch: where memory is only predicted it may not be installed."""
    from penstock.sampling.device import kernels

    return kernels


# An epoch prepared on the device: its items in the hash's order, and the keys of its batches' draws.

_BLOCK = 1024


def shuffled(names: Tensor, key: np.uint64) -> Tensor:
    """Positions of `names` (int64) in the order of their hashes under a key, as `pipeline.Schedule` orders an epoch."""
    draws = torch.empty_like(names)
    signed = int(np.uint64(key).astype(np.int64)) if key else 0
    stream = torch.tensor([signed], device=names.device)
    if not is_traced():
        from penstock.sampling.device.kernels import hash_names

        hash_names[(-(-len(names) // _BLOCK),)](names, draws, stream, len(names), B=_BLOCK)
    return torch.sort(draws, stable=True).indices


def batch_keys(seed: int, epoch: int, batches: int, purposes: list[str]) -> Array:
    """[batches, purposes] int64 bits of `BatchKey(seed, epoch, batch).purpose(...)`."""
    columns = [keys_of(seed, BATCH, epoch, batches, purpose) for purpose in purposes]
    return np.stack(columns, axis=1).view(np.int64)
