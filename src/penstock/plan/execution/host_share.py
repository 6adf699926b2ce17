"""The share of a batch's edges that the host aggregates, so that host and device end together (`first_layer: divided`).

The device has the first destinations and reads the rows of their neighbours, and all destinations' own rows; the host
aggregates the lists of the others.
"""

from typing import NamedTuple

from penstock.cost.model import CostModel
from penstock.cost.step_prediction import BlockSizes


class DivisionRates(NamedTuple):
    """What both sides take."""

    host: float
    """Seconds for each edge whose row the host adds up."""
    device: float
    """Seconds for each row that the device reads."""


def balanced_share(block: BlockSizes, rates: DivisionRates) -> float:
    """The share of the edges that takes the host as long as the rest takes the device, from 0 to 1.

    With share s the host adds up s * edges rows, and the device reads dst + (1 - s) * (src - dst): rows of a sampled
    block are numbered as its edges meet them.
    """
    met = max(0, block.src - block.dst)
    slower = block.edges * rates.host + met * rates.device
    return min(1.0, (block.dst + met) * rates.device / slower) if slower else 0.0


def rows_read(block: BlockSizes, share: float) -> float:
    """Rows that a device reads where the host has a share of the edges."""
    return block.dst + (1 - share) * max(0, block.src - block.dst)


def predicted_rates(model: CostModel, block: BlockSizes, width: int, table_rows: int) -> DivisionRates | None:
    """By the cost model; None where it does not know both sides."""
    if not model.knows("aggregate_table") or not model.knows("pinned_read", "cuda") or not block.edges:
        return None
    sizes = {"width": float(width), "table_rows": float(table_rows)}
    known = {name: float(size) for name, size in block._asdict().items() if size is not None}
    host = model.seconds("aggregate_table", {**known, **sizes})
    device = model.seconds("pinned_read", {**sizes, "rows": float(block.src)}, "cuda")
    return DivisionRates(host / block.edges, device / block.src)
