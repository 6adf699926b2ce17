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
    gather: float | None = None
    """Seconds for each row that the host gathers, where that is known."""


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


def predicted_rates(
    model: CostModel, block: BlockSizes, width: int, table_rows: int, number_bytes: int = 4
) -> DivisionRates | None:
    """By the cost model, for a table of numbers of so many bytes; None where it does not know both sides."""
    if not model.knows("pinned_read", "cuda") or not block.edges:
        return None
    stored = {"width": width * number_bytes / 4, "rows": float(block.src)}
    device = model.seconds("pinned_read", {**stored, "table_rows": float(table_rows)}, "cuda") / block.src
    known = {name: float(size) for name, size in block._asdict().items() if size is not None}
    if model.knows("host_gather", "cuda") and model.knows("host_aggregate", "cuda"):
        gather = model.seconds("host_gather", stored, "cuda") / block.src
        return DivisionRates(model.seconds("host_aggregate", {**known, **stored}, "cuda") / block.edges, device, gather)
    if not model.knows("aggregate_table"):
        return None
    sizes = {**known, "width": float(width), "table_rows": float(table_rows)}
    return DivisionRates(model.seconds("aggregate_table", sizes) / block.edges, device)
