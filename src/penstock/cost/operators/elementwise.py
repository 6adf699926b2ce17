"""Passes over a matrix: rectifier with dropout and its gradient, sums of two matrices, sums of columns."""

import torch

from penstock.cost.operators.entry import Operator, Run, Rung, rows
from penstock.nn.drop import relu_drop
from penstock.nn.operator_work import Amounts, Processor, Sizes, in_chunks

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
    """Of a pass over [rows, width] by torch: numbers that the last cache holds, and others, read in order or not."""
    numbers = sizes["rows"] * sizes["width"]
    held = min(1.0, processor.last_cache / max(12 * numbers, 1.0))
    work = {"rows": sizes["rows"], "numbers": numbers, "memory": numbers * (1 - held)}
    threads = processor.threads if numbers > _GRAIN else 1.0
    by_column = numbers * (1 - held) * sizes["width"]
    shared = {name: amount / threads for name, amount in work.items()}
    return {"calls": 1.0, "calls_of_threads": float(numbers > _GRAIN), **shared, "by_column": by_column}


def kernel_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Of a pass over [rows, width] by a kernel of Penstock's."""
    numbers = sizes["rows"] * sizes["width"]
    held = min(1.0, processor.last_cache / max(12 * numbers, 1.0))
    work = {"rows": sizes["rows"], "numbers": numbers, "memory": numbers * (1 - held)}
    return in_chunks(work, numbers, processor)


_GRAIN = 32768
"""Numbers from which torch divides a pass among threads."""

RELU_DROP = Operator("relu_drop", _sizes, kernel_work, _relu_drop)
RELU_DROP_BACKWARD = Operator("relu_drop_backward", _sizes, kernel_work, _relu_drop_backward)
ADD = Operator("add", _sizes, pass_work, _add)
COLUMN_SUM = Operator("column_sum", _sizes, pass_work, _column_sum)
