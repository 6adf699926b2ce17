"""What all threads of the host do for a GPU: rows of a large table, gathered or added up where a copy begins.

Both are measured where there is a GPU, and in tables that no cache holds: smaller ones are kept by the GPU itself.
"""

from functools import lru_cache

import numpy as np
import torch

from penstock.cost.operators.entry import Operator, Run, Rung
from penstock.graph.blocks import default_threads
from penstock.nn.operator_work import Amounts, Processor, Sizes
from penstock.nn.stored_numbers import readable
from penstock.nn.table_aggregation import TableLists, shared_aggregation
from penstock.store.device.host_threads import HostThreads
from penstock.store.rows import shared_gather

_GPU = frozenset({"cuda"})
_BYTES = 2 << 30
"""Of the table: no cache holds it, and a larger one is read at the same pace."""
_FEWEST = 1 << 17
"""Rows, or edges, that are read at once: small rungs are repeated. Batches for a GPU are large; most of a small one's
time would be that of waking threads."""
_ROWS, _LISTS = 256, 64
"""Rows, and lists, that a thread takes at a time."""


@lru_cache(maxsize=1)
def _numbers(size: int) -> np.ndarray:
    return np.ones(size // 4, np.float32)


def _table(rung: Rung) -> np.ndarray:
    """Rows of a rung's width, in memory that all rungs share."""
    rows = _BYTES // (4 * rung.width)
    return _numbers(_BYTES)[: rows * rung.width].reshape(rows, rung.width)


def _copies(count: int) -> int:
    return -(-_FEWEST // max(1, count))


def _anywhere(table: np.ndarray, count: int) -> np.ndarray:
    """Rows of a table, which lie anywhere."""
    return np.random.default_rng(0).integers(0, len(table), count)


def _gather(rung: Rung, device: torch.device) -> Run:
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
    # The lists that a device has drawn name vertices.
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
    """Rows come from memory once, and are then looked up and added from a cache. A row is written for each list."""
    width, first = sizes["width"], min(sizes["src"], sizes["edges"])
    return {
        "calls": 1.0,
        "rows": first,
        "numbers": first * width,
        "rows_again": sizes["edges"] - first,
        "again": (sizes["edges"] - first) * width,
        "written": sizes["dst"] * width,
    }


HOST_GATHER = Operator("host_gather", _gather_sizes, host_gather_work, _gather, devices=_GPU)
HOST_AGGREGATE = Operator("host_aggregate", _aggregate_sizes, host_aggregate_work, _aggregate, devices=_GPU)
