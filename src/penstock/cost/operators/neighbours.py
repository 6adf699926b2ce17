"""Sums and attention over neighbour lists, their gradients, and the lists that are made for them."""

import numpy as np
import torch

from penstock.cost.operators.entry import Operator, Run, Rung, block_sizes, pass_work, rows, work_of
from penstock.nn.aggregation import aggregate, transposed
from penstock.nn.attention import attend
from penstock.nn.derived import with_self_loops
from penstock.nn.operator_costs import (
    Amounts,
    Processor,
    Sizes,
    aggregate_backward_work,
    aggregate_table_work,
    aggregate_work,
    in_chunks,
    transpose_work,
)
from penstock.nn.table_aggregation import aggregate_table
from penstock.sampling import Block
from penstock.sampling.device.block import block_on

# Sums over neighbour lists, their gradients, and the transposed lists for these.


def _aggregation_sizes(rung: Rung) -> dict[str, float]:
    return {**block_sizes(rung.block), "width": rung.width}


def _forward(rung: Rung, device: torch.device) -> Run:
    block, x = block_on(rung.block, device), rows(rung.block.num_src, rung.width, device)
    return lambda: aggregate(block, x, "mean")


def _table_sizes(rung: Rung) -> dict[str, float]:
    return {**_aggregation_sizes(rung), "table_rows": rung.graph.num_nodes}


def _from_table(rung: Rung, device: torch.device) -> Run:
    block, ids = rung.block, rung.batch.vertices[rung.batch.node_type]
    table = np.ones((rung.graph.num_nodes, rung.width), np.float32)
    out = np.empty((block.num_dst, rung.width), np.float32)
    return lambda: aggregate_table(block, "mean", table, ids, out)


def _backward(rung: Rung, device: torch.device) -> Run:
    block, x = block_on(rung.block, device), rows(rung.block.num_src, rung.width, device, gradient=True)
    result = aggregate(block, x, "mean")
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, x, gradient, retain_graph=True)


def _transpose(rung: Rung, device: torch.device) -> Run:
    block = rung.block
    # A block caches its transposed lists, so each run gets a new one.
    return lambda: transposed(Block(block.indptr, block.indices, block.num_src), block.num_src)


AGGREGATE = Operator("aggregate", _aggregation_sizes, aggregate_work, _forward, divided=True)
AGGREGATE_TABLE = Operator(
    "aggregate_table", _table_sizes, aggregate_table_work, _from_table, devices=frozenset({"cpu"}), divided=True
)
AGGREGATE_BACKWARD = Operator(
    "aggregate_backward", _aggregation_sizes, aggregate_backward_work, _backward, divided=True, backward=True
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


# Attention over neighbour lists, its gradient, the scores that it takes, and the lists with self loops it reads.


def _attention_sizes(rung: Rung) -> dict[str, float]:
    return {**block_sizes(rung.block), "width": _width(rung), "heads": rung.heads}


def _width(rung: Rung) -> int:
    """The width of all heads together."""
    return -(-rung.out // rung.heads) * rung.heads


def _given(rung: Rung, device: torch.device, gradient: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores of sources and destinations, and the values."""
    block, width, heads = rung.block, _width(rung), rung.heads
    scores = rows(block.num_src, heads, device, gradient), rows(block.num_dst, heads, device, gradient)
    return *scores, rows(block.num_src, width, device, gradient)


def _attend(rung: Rung, device: torch.device) -> Run:
    block, given = block_on(rung.block, device), _given(rung, device, gradient=False)
    return lambda: attend(block, *given)


def _attend_backward(rung: Rung, device: torch.device) -> Run:
    block, given = block_on(rung.block, device), _given(rung, device, gradient=True)
    result = attend(block, *given)
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, given, gradient, retain_graph=True)


def _scores(rung: Rung, device: torch.device) -> Run:
    heads, width = rung.heads, _width(rung)
    values = rows(rung.block.num_dst, width, device, gradient=True)
    direction = rows(heads, width // heads, device, gradient=True)
    gradient = rows(rung.block.num_dst, heads, device)

    def run() -> object:
        found = torch.einsum("rhc,hc->rh", values.view(-1, heads, width // heads), direction)
        return torch.autograd.grad(found, [values, direction], gradient)

    return run


def _loops(rung: Rung, device: torch.device) -> Run:
    block = rung.block
    return lambda: with_self_loops(Block(block.indptr, block.indices, block.num_src))


def attend_work(sizes: Sizes, processor: Processor) -> Amounts:
    """A sum over lists, and a score for each edge and head."""
    return {**aggregate_work(sizes, processor), **_score_work(sizes, sizes["dst"], processor)}


def attend_backward_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The rows are read once more by destination, for the gradients of the scores, and once by source."""
    forward, backward = aggregate_work(sizes, processor), aggregate_backward_work(sizes, processor)
    both = {name: backward.get(name, 0.0) + forward[name] for name in forward if name != "calls"}
    return {"calls": 1.0, **both, **_score_work(sizes, sizes["src"], processor)}


def _score_work(sizes: Sizes, written: float, processor: Processor) -> Amounts:
    numbers = (sizes["edges"] + written) * sizes["width"]
    return in_chunks({"scores": sizes["edges"] * sizes["heads"]}, numbers, processor)


ATTEND = Operator("attend", _attention_sizes, attend_work, _attend, divided=True)
ATTEND_BACKWARD = Operator(
    "attend_backward", _attention_sizes, attend_backward_work, _attend_backward, divided=True, backward=True
)
SCORES = Operator(
    "scores", lambda rung: {"rows": rung.block.num_dst, "width": _width(rung)}, pass_work, _scores, divided=True
)
SELF_LOOPS = Operator(
    "self_loops",
    lambda rung: {name: size for name, size in _attention_sizes(rung).items() if name in ("dst", "edges")},
    # Several passes over the edges.
    work_of("dst", "edges"),
    _loops,
    devices=frozenset({"cpu"}),
    cores=1.0,
)
