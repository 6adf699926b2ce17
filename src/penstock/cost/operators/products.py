"""Dense products of a layer: rows times weights, and the gradients of both."""

import torch
from torch.nn import functional

from penstock.cost.operators.entry import Operator, Run, Rung, rows
from penstock.nn.operator_work import dense_gradient_work, dense_work


def _sizes(rung: Rung) -> dict[str, float]:
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


DENSE = Operator("dense", _sizes, dense_work, _forward)
DENSE_WEIGHT_GRADIENT = Operator("dense_weight_gradient", _sizes, dense_gradient_work, _weight_gradient, backward=True)
DENSE_INPUT_GRADIENT = Operator("dense_input_gradient", _sizes, dense_gradient_work, _input_gradient, backward=True)
