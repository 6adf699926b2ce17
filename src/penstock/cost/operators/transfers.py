"""Copies between host and device, and rows that a device reads from pinned memory; measured where there is a GPU."""

import torch

from penstock.cost.operators.entry import Operator, Run, Rung
from penstock.nn.operator_work import Amounts, Processor, Sizes

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

    table = PinnedTable(torch.ones(_SPREAD * rung.graph.num_nodes, rung.width).pin_memory(), device)
    ids = torch.from_numpy(rung.batch.vertices[rung.batch.node_type]).to(device, torch.int64) * _SPREAD
    return lambda: table.gather(ids)


def copy_work(sizes: Sizes, processor: Processor) -> Amounts:
    """A latency for each copy, and its bytes."""
    return {"calls": 1.0, "bytes": sizes["bytes"]}


def pinned_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Bytes over the bus, and an address translation for rows of a table that is larger than what is kept of those."""
    rows, table = sizes["rows"], 4 * sizes["table_rows"] * sizes["width"]
    translated = rows * max(0.0, 1 - _TRANSLATED / max(table, 1.0))
    return {"calls": 1.0, "rows": rows, "bytes": 4 * rows * sizes["width"], "rows_translated": translated}


_TRANSLATED = 1 << 30
"""Bytes of pinned memory whose addresses a GPU keeps translated."""
_SPREAD = 16
"""Rows of a pinned table for each vertex of a rung: tables of many gigabytes are what is read so."""

COPY_UP = Operator("copy_up", lambda rung: {"bytes": 4 * _numbers(rung)}, copy_work, _up, devices=_GPU, first_use=True)
COPY_DOWN = Operator(
    "copy_down", lambda rung: {"bytes": 4 * _numbers(rung)}, copy_work, _down, devices=_GPU, first_use=True
)
PINNED_READ = Operator(
    "pinned_read",
    lambda rung: {
        "rows": rung.batch.blocks[0].num_src,
        "width": rung.width,
        "table_rows": _SPREAD * rung.graph.num_nodes,
    },
    pinned_work,
    _pinned,
    devices=_GPU,
)
