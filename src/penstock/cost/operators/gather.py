"""Copying a batch's rows out of a table of features, by one thread of the host or by a device."""

import numpy as np
import torch

from penstock.cost.operators.entry import Operator, Run, Rung, rows
from penstock.nn.operator_work import Amounts, Processor, Sizes, held_in_caches, rows_in_no_order
from penstock.store import gather_rows


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
    """Rows of a table in no order: caches hold their parts of the table, memory the rest."""
    count, width, table = sizes["rows"], sizes["width"], sizes["table_rows"]
    written, _ = held_in_caches(4 * count * width, processor)
    made = {"calls": 1.0, "written_far": count * width * (1 - written)}
    if count >= table:
        # All rows, which come in the table's order.
        _, held = held_in_caches(4 * table * width, processor)
        return {**made, "rows": count, "streamed": count * width, "streamed_memory": count * width * (1 - held)}
    return {**made, **rows_in_no_order(count, count, width, table, processor)}


GATHER = Operator("gather", _sizes, gather_work, _gather, cores=1.0)
