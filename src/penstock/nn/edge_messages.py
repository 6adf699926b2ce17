"""Rows of edges: read from their ends, and added up at their destinations; each a gather over lists, differentiable.

Layers whose messages depend on what an edge carries are made of these. They take one row for each edge, as PyG does,
and every row is written by one thread in one order.
"""

from torch import Tensor

from penstock.errors import PenstockError
from penstock.nn.aggregation import aggregate, gather
from penstock.nn.derived import destination_reads, edge_lists, source_reads
from penstock.sampling.block import Block


def of_sources(block: Block, x: Tensor) -> Tensor:
    """[edges, width]: for each edge the row of its source."""
    return gather(source_reads(block), x)


def of_destinations(block: Block, x: Tensor) -> Tensor:
    """[edges, width]: for each edge the row of its destination; x may have further rows."""
    return gather(destination_reads(block), x)


def sum_of_edges(block: Block, rows: Tensor) -> Tensor:
    """[num_dst, width]: what the sum over each whole list's edges would give, estimated from the block's."""
    return aggregate(edge_lists(block), rows, "sum")


def edge_features(block: Block, width: int) -> Tensor:
    """What the block's edges carry, [edges, width]; refused where they carry something else."""
    rows = block.edge_attr
    if rows is None or tuple(rows.shape) != (block.num_edges, width):
        has = "none" if rows is None else f"of shape {tuple(rows.shape)}"
        raise PenstockError(
            f"The layer reads {width} numbers of each of {block.num_edges:,} edges, and the block has edge_attr {has}:"
            " name the fields of the edges with edge_features.",
            code="shape-mismatch",
        )
    found: Tensor = rows
    return found
