"""Copies between host and device, and rows that a device reads from pinned memory; measured where there is a GPU."""

import torch

from penstock.cost.operators.entry import Operator, Run, Rung
from penstock.memory import available_mb
from penstock.nn.operator_work import Amounts, Processor, Sizes
from penstock.store.device.pinned_memory import page_locked

_GPU = frozenset({"cuda"})


def _numbers(rung: Rung) -> int:
    return rung.batch.blocks[0].num_src * rung.width


def _up(rung: Rung, device: torch.device) -> Run:
    source = torch.ones(_numbers(rung)).pin_memory()
    target = torch.empty(_numbers(rung), device=device)
    return lambda: target.copy_(source, non_blocking=True)


def _down(rung: Rung, device: torch.device) -> Run:
    source = torch.ones(_numbers(rung), device=device)
    target = torch.empty(_numbers(rung)).pin_memory()
    return lambda: target.copy_(source, non_blocking=True)


def _pinned(rung: Rung, device: torch.device) -> Run:
    from penstock.store.device.tables import PinnedTable

    spread = _spread(rung)
    shape = spread * rung.graph.num_nodes, rung.width
    table = PinnedTable(page_locked(shape, torch.float32, device, lambda rows: rows.fill_(1)), device)
    ids = torch.from_numpy(rung.batch.vertices[rung.batch.node_type]).to(device, torch.int64) * spread
    return lambda: table.gather(ids)


def copy_work(sizes: Sizes, processor: Processor) -> Amounts:
    """A latency for each copy, and its bytes."""
    return {"calls": 1.0, "bytes": sizes["bytes"]}


def pinned_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Bytes over the bus, and those whose addresses are translated, in a table that is larger than what is kept of
    translations."""
    size, table = 4 * sizes["rows"] * sizes["width"], 4 * sizes["table_rows"] * sizes["width"]
    translated = size * max(0.0, 1 - _TRANSLATED / max(table, 1.0))
    return {"calls": 1.0, "rows": sizes["rows"], "bytes": size, "bytes_translated": translated}


_TRANSLATED = 8 << 30
"""Bytes of pinned memory whose addresses a GPU keeps translated, if rows are read in their table's order: an H200 reads
tables of up to 4 GB at the bus's pace, and one of 24 GB at less than half of it."""
_SPREAD, _WIDEST_SPREAD = 16, 64
"""Rows of a pinned table for each vertex of a rung, as a rule, and of the largest table."""
_LARGEST = 400_000
"""Vertices of the rung with the largest table: 26 GB, for which a machine may lack memory."""


def _spread(rung: Rung) -> int:
    """Rows of the pinned table for each vertex: tables of many gigabytes are what is read so."""
    size = 4 * _WIDEST_SPREAD * rung.graph.num_nodes * rung.width
    is_largest = rung.graph.num_nodes == _LARGEST and size >> 20 < available_mb() // 2
    return _WIDEST_SPREAD if is_largest else _SPREAD


COPY_UP = Operator("copy_up", lambda rung: {"bytes": 4 * _numbers(rung)}, copy_work, _up, devices=_GPU, first_use=True)
COPY_DOWN = Operator(
    "copy_down", lambda rung: {"bytes": 4 * _numbers(rung)}, copy_work, _down, devices=_GPU, first_use=True
)
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
