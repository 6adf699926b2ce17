"""Dense work of a step: products with weights, passes over a matrix, the loss and the optimiser's step."""

import math

import torch
from torch.nn import functional

from penstock.cost.operators.entry import Operator, Run, Rung, rows, work_of
from penstock.nn.drop import relu_drop
from penstock.nn.eager import eager
from penstock.nn.operator_costs import CHUNK, Amounts, Processor, Sizes, dense_gradient_work, dense_work, held_in_caches

# Dense products of a layer: rows times weights, and the gradients of both.


def _product_sizes(rung: Rung) -> dict[str, float]:
    return {"rows": rung.block.num_dst, "in": rung.width, "out": rung.out}


def _forward(rung: Rung, device: torch.device) -> Run:
    x, weight = rows(rung.block.num_dst, rung.width, device), rows(rung.out, rung.width, device)
    return lambda: functional.linear(x, weight)


def _weight_gradient(rung: Rung, device: torch.device) -> Run:
    x, gradient = rows(rung.block.num_dst, rung.width, device), rows(rung.block.num_dst, rung.out, device)
    return lambda: gradient.t() @ x


def _input_gradient(rung: Rung, device: torch.device) -> Run:
    gradient, weight = rows(rung.block.num_dst, rung.out, device), rows(rung.out, rung.width, device)
    return lambda: gradient @ weight


DENSE = Operator("dense", _product_sizes, dense_work, _forward)
DENSE_WEIGHT_GRADIENT = Operator(
    "dense_weight_gradient", _product_sizes, dense_gradient_work, _weight_gradient, backward=True
)
DENSE_INPUT_GRADIENT = Operator(
    "dense_input_gradient", _product_sizes, dense_gradient_work, _input_gradient, backward=True
)


# Passes over a matrix: rectifier with dropout and its gradient, sums of two matrices, sums of columns.

_SHARE = 0.5


def _matrix_sizes(rung: Rung) -> dict[str, float]:
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
    """The work of a pass over [rows, width] by torch: values in the last cache, and others."""
    numbers = sizes["rows"] * sizes["width"]
    _, held = held_in_caches(12 * numbers, processor)
    work = {"rows": sizes["rows"], "numbers": numbers, "memory": numbers * (1 - held)}
    threads = processor.threads if numbers > _GRAIN else 1.0
    return {"calls": 1.0, **{name: amount / threads for name, amount in work.items()}}


def column_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a sum over rows, which reads memory with the stride of a row."""
    numbers = sizes["rows"] * sizes["width"]
    _, held = held_in_caches(12 * numbers, processor)
    return {**pass_work(sizes, processor), "by_column": numbers * (1 - held) * sizes["width"]}


def kernel_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a pass over [rows, width] by a kernel of Penstock's: the rows of its busiest thread."""
    rows, width = sizes["rows"], sizes["width"]
    _, held = held_in_caches(12 * rows * width, processor)
    chunk = max(1, CHUNK // max(1, int(width)))
    busiest = min(rows, chunk * math.ceil(math.ceil(rows / chunk) / processor.threads))
    return {"calls": 1.0, "rows": busiest, "numbers": busiest * width, "memory": busiest * width * (1 - held)}


_GRAIN = 32768
"""The number of values from which torch divides a pass among threads."""

RELU_DROP = Operator("relu_drop", _matrix_sizes, kernel_work, _relu_drop, divided=True)
RELU_DROP_BACKWARD = Operator(
    "relu_drop_backward", _matrix_sizes, kernel_work, _relu_drop_backward, divided=True, backward=True
)
ADD = Operator("add", _matrix_sizes, pass_work, _add, divided=True)
COLUMN_SUM = Operator("column_sum", _matrix_sizes, column_work, _column_sum, divided=True, backward=True)


# The end of a step: the loss with its gradient, and the optimiser's step.


def _loss(rung: Rung, device: torch.device) -> Run:
    x = rows(len(rung.seeds), rung.out, device, gradient=True)
    labels = torch.zeros(len(rung.seeds), dtype=torch.int64, device=device)
    return lambda: functional.cross_entropy(x, labels).backward()  # type: ignore[no-untyped-call]


def _optimiser(rung: Rung, device: torch.device) -> Run:
    weights = [rows(rung.out, rung.width, device, gradient=True) for _ in range(_tensors(rung))]
    for each in weights:
        each.grad = torch.full_like(each, 1e-3)
    optimiser = eager(torch.optim.Adam)(weights, lr=0.003)
    return lambda: optimiser.step()


def _tensors(rung: Rung) -> int:
    return 1 + 2 * len(rung.fanouts)


def loss_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Some passes over the outputs."""
    return {"calls": 1.0, "rows": sizes["rows"], "numbers": sizes["rows"] * sizes["classes"]}


LOSS = Operator("loss", lambda rung: {"rows": len(rung.seeds), "classes": rung.out}, loss_work, _loss)
OPTIMISER = Operator(
    "optimiser",
    lambda rung: {"tensors": _tensors(rung), "numbers": _tensors(rung) * rung.width * rung.out},
    # Every weight with its two moments, and some calls for each tensor.
    work_of("tensors", "numbers"),
    _optimiser,
)
