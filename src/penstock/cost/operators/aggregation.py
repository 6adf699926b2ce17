"""Sums over neighbour lists, their gradients, and the lists of readers that gradients go along."""

import numpy as np
import torch

from penstock.cost.operators.entry import Operator, Run, Rung, block_sizes, moved, rows
from penstock.nn.aggregation import aggregate
from penstock.nn.derived import transposed
from penstock.nn.operator_work import aggregate_backward_work, aggregate_table_work, aggregate_work, transpose_work
from penstock.nn.table_aggregation import aggregate_table
from penstock.sampling import Block


def _sizes(rung: Rung) -> dict[str, float]:
    return {**block_sizes(rung.block), "width": rung.width}


def _forward(rung: Rung, device: torch.device) -> Run:
    block, x = moved(rung.block, device), rows(rung.block.num_src, rung.width, device)
    return lambda: aggregate(block, x, "mean")


def _table_sizes(rung: Rung) -> dict[str, float]:
    return {**_sizes(rung), "table_rows": rung.graph.num_nodes}


def _from_table(rung: Rung, device: torch.device) -> Run:
    block, ids = rung.block, rung.batch.vertices[rung.batch.node_type]
    table = np.ones((rung.graph.num_nodes, rung.width), np.float32)
    out = np.empty((block.num_dst, rung.width), np.float32)
    return lambda: aggregate_table(block, "mean", table, ids, out)


def _backward(rung: Rung, device: torch.device) -> Run:
    block, x = moved(rung.block, device), rows(rung.block.num_src, rung.width, device, gradient=True)
    result = aggregate(block, x, "mean")
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, x, gradient, retain_graph=True)


def _transpose(rung: Rung, device: torch.device) -> Run:
    block = rung.block
    # A block keeps its lists of readers: each run gets a new one.
    return lambda: transposed(Block(block.indptr, block.indices, block.num_src), block.num_src)


AGGREGATE = Operator("aggregate", _sizes, aggregate_work, _forward, divided=True)
AGGREGATE_TABLE = Operator(
    "aggregate_table", _table_sizes, aggregate_table_work, _from_table, devices=frozenset({"cpu"}), divided=True
)
AGGREGATE_BACKWARD = Operator(
    "aggregate_backward", _sizes, aggregate_backward_work, _backward, divided=True, backward=True
)
TRANSPOSE = Operator(
    "transpose",
    lambda rung: block_sizes(rung.block),
    transpose_work,
    _transpose,
    devices=frozenset({"cpu"}),
    cores=1.0,
    backward=True,
)
