"""What all threads of the host do for a GPU: rows of a large table, gathered or added up where a copy begins.

Both are measured where there is a GPU, and in tables that no cache holds: smaller ones are kept by the GPU itself.
"""

import numpy as np
import torch

from penstock.cost.operators.entry import Operator, Run, Rung
from penstock.graph.blocks import default_threads
from penstock.nn.operator_work import Amounts, Processor, Sizes
from penstock.nn.stored_numbers import readable
from penstock.nn.table_aggregation import shared_aggregation, table_lists
from penstock.store.device.host_threads import HostThreads
from penstock.store.rows import shared_gather

_GPU = frozenset({"cuda"})
_SPREAD = 16
"""Rows of the table for each vertex of a rung."""
_ROWS, _LISTS = 256, 64
"""Rows, and lists, that a thread takes at a time."""


def _table(rung: Rung) -> np.ndarray:
    return np.ones((_SPREAD * rung.graph.num_nodes, rung.width), np.float32)


def _gather(rung: Rung, device: torch.device) -> Run:
    table, threads = _table(rung), HostThreads(default_threads())
    ids = rung.batch.vertices[rung.batch.node_type].astype(np.int64) * _SPREAD
    out = np.ones((len(ids), rung.width), np.float32)
    return lambda: threads.start([shared_gather(table, ids, out, _ROWS)], -(-len(ids) // _ROWS)).wait()


def _aggregate(rung: Rung, device: torch.device) -> Run:
    table, block, threads = readable(_table(rung)), rung.block, HostThreads(default_threads())
    ids = (rung.batch.vertices[rung.batch.node_type].astype(np.int64) * _SPREAD).astype(np.int32)
    lists, count = table_lists(block, "mean", ids), block.num_dst
    out = np.ones((count, rung.width), np.float32)

    def run() -> object:
        sums = shared_aggregation(lists, "mean", table, out, 0, count, _LISTS)
        return threads.start([sums], -(-count // _LISTS)).wait()

    return run


def _gather_sizes(rung: Rung) -> dict[str, float]:
    return {"rows": rung.batch.blocks[0].num_src, "width": rung.width}


def _aggregate_sizes(rung: Rung) -> dict[str, float]:
    return {"src": rung.block.num_src, "edges": rung.block.num_edges, "dst": rung.block.num_dst, "width": rung.width}


def host_gather_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Rows that are looked up, and their numbers, which are read and written."""
    return {"calls": 1.0, "rows": sizes["rows"], "numbers": sizes["rows"] * sizes["width"]}


def host_aggregate_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Rows come from memory once; read again they are added from a cache. A row is written for each list."""
    width, first = sizes["width"], min(sizes["src"], sizes["edges"])
    return {
        "calls": 1.0,
        "rows": first,
        "numbers": first * width,
        "again": (sizes["edges"] - first) * width,
        "written": sizes["dst"] * width,
    }


HOST_GATHER = Operator("host_gather", _gather_sizes, host_gather_work, _gather, devices=_GPU)
HOST_AGGREGATE = Operator("host_aggregate", _aggregate_sizes, host_aggregate_work, _aggregate, devices=_GPU)
