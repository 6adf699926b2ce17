"""What brings a batch: drawing it from neighbour lists, by one thread of the host or by a GPU, and rows of features:
gathered by host or device, copied, or read from pinned memory.
"""

from functools import lru_cache

import numpy as np
import torch

from penstock.cost.operators.entry import Operator, Run, Rung, rows, work_of
from penstock.memory import available_mb
from penstock.nn.operator_costs import Amounts, Processor, Sizes, held_in_caches, rows_in_no_order
from penstock.nn.table_aggregation import TableLists, readable, shared_aggregation
from penstock.processes import default_threads
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.sampling.neighbours import ALL
from penstock.store.device.copies import page_locked
from penstock.store.device.host_paths import HostThreads
from penstock.store.rows import gather_rows, shared_gather

# Copying a batch's rows out of a table of features, by one thread of the host or by a device.


def _sizes(rung: Rung) -> dict[str, float]:
    return {"rows": rung.batch.blocks[0].num_src, "width": rung.width, "table_rows": rung.graph.num_nodes}


def _gather(rung: Rung, device: torch.device) -> Run:
    ids = rung.batch.vertices[rung.batch.node_type]
    if device.type == "cpu":
        table = np.ones((rung.graph.num_nodes, rung.width), np.float32)
        out = np.empty((len(ids), rung.width), np.float32)
        return lambda: gather_rows(table, ids, out)
    on_device = rows(rung.graph.num_nodes, rung.width, device)
    places = torch.from_numpy(ids.astype(np.int64)).to(device)
    return lambda: on_device.index_select(0, places)


def gather_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Rows of a table in random order: caches hold their parts of the table, memory the rest."""
    count, width, table = sizes["rows"], sizes["width"], sizes["table_rows"]
    written, _ = held_in_caches(4 * count * width, processor)
    made = {"calls": 1.0, "written_far": count * width * (1 - written)}
    if count >= table:
        # All rows, in the table's order.
        _, held = held_in_caches(4 * table * width, processor)
        return {**made, "rows": count, "streamed": count * width, "streamed_memory": count * width * (1 - held)}
    return {**made, **rows_in_no_order(count, count, width, table, processor)}


GATHER = Operator("gather", _sizes, gather_work, _gather, cores=1.0)


# What all threads of the host do for a GPU: rows of a large table, gathered or summed for a copy. Both are measured
# where there is a GPU, and in tables that exceed all caches: smaller ones are kept on the GPU itself.

_GPU = frozenset({"cuda"})
_BYTES = 2 << 30
"""Bytes of the table: more than any cache, and larger ones are read at the same pace."""
_FEWEST = 1 << 17
"""The least number of rows, or edges, that are read at once; small rungs are repeated. Batches for a GPU are large; a
small one's time would mostly be that of waking threads.
"""
_ROWS, _LISTS = 256, 64
"""Rows, and lists, that a thread takes at a time."""


@lru_cache(maxsize=1)
def _ones(size: int) -> np.ndarray:
    return np.ones(size // 4, np.float32)


def _table(rung: Rung) -> np.ndarray:
    """Rows of a rung's width, in memory that all rungs share."""
    rows = _BYTES // (4 * rung.width)
    return _ones(_BYTES)[: rows * rung.width].reshape(rows, rung.width)


def _copies(count: int) -> int:
    return -(-_FEWEST // max(1, count))


def _anywhere(table: np.ndarray, count: int) -> np.ndarray:
    """Rows of a table, which lie anywhere."""
    return np.random.default_rng(0).integers(0, len(table), count)


def _gather_on_host(rung: Rung, device: torch.device) -> Run:
    table, threads = _table(rung), HostThreads(default_threads())
    # A device that lists the rows of a batch sorts them by number.
    ids = np.sort(_anywhere(table, int(_gather_sizes(rung)["rows"])))
    out = np.ones((len(ids), rung.width), np.float32)
    return lambda: threads.start([shared_gather(table, ids, out, _ROWS)], -(-len(ids) // _ROWS)).wait()


def _aggregate(rung: Rung, device: torch.device) -> Run:
    block, copies = rung.block, _copies(rung.block.num_edges)
    table, threads = _table(rung), HostThreads(default_threads())
    bounds = [block.indptr[:-1] + copy * block.num_edges for copy in range(copies)]
    indptr = np.concatenate([*bounds, [copies * block.num_edges]])
    names = _anywhere(table, copies * block.num_src).astype(np.int32)
    # The lists that a device has drawn hold vertex numbers.
    lists = TableLists(indptr, np.concatenate([names[block.indices + copy * block.num_src] for copy in range(copies)]))
    rows, count = readable(table), copies * block.num_dst
    out = np.ones((count, rung.width), np.float32)

    def run() -> object:
        sums = shared_aggregation(lists, "mean", rows, out, 0, count, _LISTS)
        return threads.start([sums], -(-count // _LISTS)).wait()

    return run


def _gather_sizes(rung: Rung) -> dict[str, float]:
    count = rung.batch.blocks[0].num_src
    return {"rows": _copies(count) * count, "width": rung.width}


def _aggregate_sizes(rung: Rung) -> dict[str, float]:
    block, copies = rung.block, _copies(rung.block.num_edges)
    sizes = {"src": block.num_src, "edges": block.num_edges, "dst": block.num_dst}
    return {**{name: copies * size for name, size in sizes.items()}, "width": rung.width}


def host_gather_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Rows that are looked up, and their numbers, which are read and written."""
    return {"calls": 1.0, "rows": sizes["rows"], "numbers": sizes["rows"] * sizes["width"]}


def host_aggregate_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Rows come from memory once, and are then read from a cache and added. A row is written for each list."""
    width, first = sizes["width"], min(sizes["src"], sizes["edges"])
    return {
        "calls": 1.0,
        "rows": first,
        "numbers": first * width,
        "rows_again": sizes["edges"] - first,
        "again": (sizes["edges"] - first) * width,
        "written": sizes["dst"] * width,
    }


HOST_GATHER = Operator("host_gather", _gather_sizes, host_gather_work, _gather_on_host, devices=_GPU)
HOST_AGGREGATE = Operator("host_aggregate", _aggregate_sizes, host_aggregate_work, _aggregate, devices=_GPU)


# Copies between host and device, and rows that a device reads from pinned memory; measured where there is a GPU.


def _copied_numbers(rung: Rung) -> int:
    return rung.batch.blocks[0].num_src * rung.width


def _copied_bytes(rung: Rung) -> dict[str, float]:
    return {"bytes": 4 * _copied_numbers(rung)}


def _up(rung: Rung, device: torch.device) -> Run:
    source = torch.ones(_copied_numbers(rung)).pin_memory()
    target = torch.empty(_copied_numbers(rung), device=device)
    return lambda: target.copy_(source, non_blocking=True)


def _down(rung: Rung, device: torch.device) -> Run:
    source = torch.ones(_copied_numbers(rung), device=device)
    target = torch.empty(_copied_numbers(rung)).pin_memory()
    return lambda: target.copy_(source, non_blocking=True)


def _pinned(rung: Rung, device: torch.device) -> Run:
    from penstock.store.device.tables import PinnedTable

    spread = _spread(rung)
    shape = spread * rung.graph.num_nodes, rung.width
    table = PinnedTable(page_locked(shape, torch.float32, device, lambda rows: rows.fill_(1)), device)
    ids = torch.from_numpy(rung.batch.vertices[rung.batch.node_type]).to(device, torch.int64) * spread
    return lambda: table.gather(ids)


def pinned_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Bytes over the bus, and those that need address translation, in a table that is larger than the cached
    translations.
    """
    size, table = 4 * sizes["rows"] * sizes["width"], 4 * sizes["table_rows"] * sizes["width"]
    translated = size * max(0.0, 1 - _TRANSLATED / max(table, 1.0))
    return {"calls": 1.0, "rows": sizes["rows"], "bytes": size, "bytes_translated": translated}


_TRANSLATED = 8 << 30
"""Bytes of pinned memory whose address translations a GPU caches, if rows are read in their table's order: an H200
reads tables of up to 4 GB at the bus's pace, and one of 24 GB at less than half of it.
"""
_SPREAD, _WIDEST_SPREAD = 16, 64
"""Rows of a pinned table for each vertex of a rung, usually and for the largest table."""
_LARGEST = 400_000
"""Vertices of the rung with the largest table: 26 GB, for which a machine may lack memory."""


def _spread(rung: Rung) -> int:
    """Rows of the pinned table for each vertex: tables of many gigabytes are what is read so."""
    size = 4 * _WIDEST_SPREAD * rung.graph.num_nodes * rung.width
    is_largest = rung.graph.num_nodes == _LARGEST and size >> 20 < available_mb() // 2
    return _WIDEST_SPREAD if is_largest else _SPREAD


COPY_UP = Operator("copy_up", _copied_bytes, work_of("bytes"), _up, devices=_GPU, first_use=True)
COPY_DOWN = Operator("copy_down", _copied_bytes, work_of("bytes"), _down, devices=_GPU, first_use=True)
PINNED_READ = Operator(
    "pinned_read",
    lambda rung: {
        "rows": rung.batch.blocks[0].num_src,
        "width": rung.width,
        "table_rows": _spread(rung) * rung.graph.num_nodes,
    },
    pinned_work,
    _pinned,
    devices=_GPU,
)


def _list_sizes(rung: Rung) -> dict[str, float]:
    blocks, whole = rung.batch.blocks, _whole(rung)
    pairs = list(zip(blocks, rung.fanouts[::-1], strict=True))
    return {
        "hops": len(blocks),
        "rows": sum(block.num_dst for block, fanout in pairs if fanout != ALL),
        "rows_in_order": sum(block.num_dst for block, fanout in pairs if fanout == ALL),
        "drawn": sum(block.num_edges for block in blocks) - whole,
        "whole": whole,
        "vertices": blocks[0].num_src,
        "graph_nodes": rung.graph.num_nodes,
        "graph_edges": rung.graph.num_edges,
    }


def _whole(rung: Rung) -> int:
    """Edges of lists no longer than the fan-out: they are copied, not drawn."""
    (edges,) = rung.graph.edges.values()
    vertices = rung.batch.vertices[rung.batch.node_type]
    found = 0
    for block in rung.batch.blocks:
        taken, lists = np.diff(block.indptr), vertices[: block.num_dst]
        found += int(taken[taken == edges.indptr[lists + 1] - edges.indptr[lists]].sum())
    return found


def _draw(rung: Rung, device: torch.device) -> Run:
    if device.type == "cuda":
        return _draw_on_device(rung, device)
    sampler = NeighbourSampler(rung.graph, list(rung.fanouts))
    return lambda: sampler.sample(rung.seeds, BatchKey(0, 0, 0))


def _draw_on_device(rung: Rung, device: torch.device) -> Run:
    # Triton is imported where there is a device for it.
    from penstock.sampling.device.hops import Topology
    from penstock.sampling.device.program import DeviceProgram, neighbour_rules
    from penstock.sampling.device.sampler import DeviceSampler

    (edges,) = rung.graph.edges.values()
    indptr, indices = (
        torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in (edges.indptr, edges.indices)
    )
    lists = Topology(indptr, indices)
    sampler = DeviceSampler(lists, DeviceProgram(neighbour_rules(rung.fanouts)), device)
    return lambda: sampler.sample(rung.seeds, BatchKey(0, 0, 0))


def _measured_on(rung: Rung, device: str) -> bool:
    """Whether it is measured here: a GPU does not copy whole lists of any length."""
    return device == "cpu" or ALL not in rung.fanouts


def sample_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Lists are looked up by row, neighbours by edge, and each vertex's row by its number: all randomly."""

    def missed(table_bytes: float) -> float:
        return max(0.0, 1 - processor.own_cache / max(table_bytes, 1.0))

    lists, table = 4 * sizes["graph_edges"] + 8 * sizes["graph_nodes"], 4 * sizes["graph_nodes"]
    edges = sizes["drawn"] + sizes["whole"]
    return {
        "hops": sizes["hops"],
        "rows": sizes["rows"],
        "rows_in_order": sizes["rows_in_order"],
        "drawn": sizes["drawn"],
        "whole": sizes["whole"],
        "rows_missed": sizes["rows"] * missed(lists),
        "edges_missed": edges * missed(table),
    }


SAMPLE = Operator("sample", _list_sizes, sample_work, _draw, measured_on=_measured_on, cores=1.0)
