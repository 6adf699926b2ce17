"""Sums over neighbour lists, their gradients, and the lists of readers that gradients go along."""

import torch

from penstock.cost.operators.entry import Operator, Run, Rung, block_sizes, moved, rows
from penstock.nn.aggregation import aggregate
from penstock.nn.derived import transposed
from penstock.nn.operator_work import aggregate_backward_work, aggregate_work, transpose_work
from penstock.sampling import Block


def _sizes(rung: Rung) -> dict[str, float]:
    return {**block_sizes(rung.block), "width": rung.width}


def _forward(rung: Rung, device: torch.device) -> Run:
    block, x = moved(rung.block, device), rows(rung.block.num_src, rung.width, device)
    return lambda: aggregate(block, x, "mean")


def _backward(rung: Rung, device: torch.device) -> Run:
    block, x = moved(rung.block, device), rows(rung.block.num_src, rung.width, device, gradient=True)
    result = aggregate(block, x, "mean")
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, x, gradient, retain_graph=True)


def _transpose(rung: Rung, device: torch.device) -> Run:
    block = rung.block
    # A block keeps its lists of readers: each run gets a new one.
    return lambda: transposed(Block(block.indptr, block.indices, block.num_src), block.num_src)


AGGREGATE = Operator("aggregate", _sizes, aggregate_work, _forward)
AGGREGATE_BACKWARD = Operator("aggregate_backward", _sizes, aggregate_backward_work, _backward)
TRANSPOSE = Operator(
    "transpose",
    lambda rung: block_sizes(rung.block),
    transpose_work,
    _transpose,
    devices=frozenset({"cpu"}),
    cores=1.0,
)
