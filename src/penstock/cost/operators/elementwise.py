"""Passes over a matrix: rectifier with dropout and its gradient, sums of two matrices, sums of columns."""

import math

import torch

from penstock.cost.operators.entry import Operator, Run, Rung, rows
from penstock.nn.drop import relu_drop
from penstock.nn.operator_work import CHUNK, Amounts, Processor, Sizes, held_in_caches

_SHARE = 0.5


def _sizes(rung: Rung) -> dict[str, float]:
    return {"rows": rung.block.num_dst, "width": rung.out}


def _matrix(rung: Rung, device: torch.device, gradient: bool = False) -> torch.Tensor:
    return rows(rung.block.num_dst, rung.out, device, gradient)


def _relu_drop(rung: Rung, device: torch.device) -> Run:
    x = _matrix(rung, device)
    return lambda: relu_drop(x, _SHARE)


def _relu_drop_backward(rung: Rung, device: torch.device) -> Run:
    x = _matrix(rung, device, gradient=True)
    result = relu_drop(x * 1.0, _SHARE)
    gradient = torch.ones_like(result)
    return lambda: torch.autograd.grad(result, x, gradient, retain_graph=True)


def _add(rung: Rung, device: torch.device) -> Run:
    left, right = _matrix(rung, device), _matrix(rung, device)
    return lambda: left + right


def _column_sum(rung: Rung, device: torch.device) -> Run:
    x = _matrix(rung, device)
    return lambda: x.sum(0)


def pass_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a pass over [rows, width] by torch: numbers that the last cache holds, and others."""
    numbers = sizes["rows"] * sizes["width"]
    _, held = held_in_caches(12 * numbers, processor)
    work = {"rows": sizes["rows"], "numbers": numbers, "memory": numbers * (1 - held)}
    threads = processor.threads if numbers > _GRAIN else 1.0
    return {"calls": 1.0, **{name: amount / threads for name, amount in work.items()}}


def column_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a sum down the columns, which goes through memory in steps of a row."""
    numbers = sizes["rows"] * sizes["width"]
    _, held = held_in_caches(12 * numbers, processor)
    return {**pass_work(sizes, processor), "by_column": numbers * (1 - held) * sizes["width"]}


def kernel_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a pass over [rows, width] by a kernel of Penstock's: the rows of its busiest thread."""
    rows, width = sizes["rows"], sizes["width"]
    _, held = held_in_caches(12 * rows * width, processor)
    chunk = max(1, CHUNK // max(1, int(width)))
    busiest = min(rows, chunk * math.ceil(math.ceil(rows / chunk) / processor.threads))
    return {"calls": 1.0, "rows": busiest, "numbers": busiest * width, "memory": busiest * width * (1 - held)}


_GRAIN = 32768
"""Numbers from which torch divides a pass among threads."""

RELU_DROP = Operator("relu_drop", _sizes, kernel_work, _relu_drop, divided=True)
RELU_DROP_BACKWARD = Operator(
    "relu_drop_backward", _sizes, kernel_work, _relu_drop_backward, divided=True, backward=True
)
ADD = Operator("add", _sizes, pass_work, _add, divided=True)
COLUMN_SUM = Operator("column_sum", _sizes, column_work, _column_sum, divided=True, backward=True)
