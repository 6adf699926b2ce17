"""The end of a step: the loss with its gradient, and the optimiser's step."""

import torch
from torch.nn import functional

from penstock.cost.operators.entry import Operator, Run, Rung, rows
from penstock.nn.eager import eager
from penstock.nn.operator_work import Amounts, Processor, Sizes


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


def optimiser_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Every weight with its two averages, and some calls for each tensor."""
    return {"calls": 1.0, "tensors": sizes["tensors"], "numbers": sizes["numbers"]}


LOSS = Operator("loss", lambda rung: {"rows": len(rung.seeds), "classes": rung.out}, loss_work, _loss)
OPTIMISER = Operator(
    "optimiser",
    lambda rung: {"tensors": _tensors(rung), "numbers": _tensors(rung) * rung.width * rung.out},
    optimiser_work,
    _optimiser,
)
