"""What a whole step takes beyond its operators, measured on the ladder: they find each other's data in the caches."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn import functional

from penstock.cost.fit import fit_and_compare
from penstock.cost.ladder import is_sampled
from penstock.cost.model import CostModel
from penstock.cost.operators import Rung
from penstock.cost.operators.entry import moved
from penstock.cost.profile import FittedOperator
from penstock.cost.step_prediction import LAYER_CALLS, STEP, StepShape, counted_block, step_work
from penstock.cost.stopwatch import seconds_of_runs, undisturbed
from penstock.nn import ModelOptions, build_model
from penstock.nn.eager import eager
from penstock.nn.options import model_options
from penstock.nn.order_costs import order_costs_of
from penstock.nn.zoo.layer_ends import layer_widths
from penstock.sampling import Block

_HIDDEN = 64
_POINTS = 16
_HELD_OUT = frozenset({1, 4, 6, 9, 11, 14})


def fit_steps(model: CostModel, rungs: Sequence[Rung], device: str) -> FittedOperator:
    """Rates of a step, from measured steps of all kinds of layers on batches of the ladder."""
    kinds, sampled = list(LAYER_CALLS), [rung for rung in rungs if is_sampled(rung)]
    pairs = [(rung, kinds[(place + turn) % len(kinds)]) for turn in range(2) for place, rung in enumerate(sampled)]
    work, seconds = [], []
    for rung, kind in pairs[:_POINTS]:
        widths = step_widths(kind, rung.width, rung.out, len(rung.fanouts))
        run = training_step(model, kind, rung.batch.blocks, rung.width, rung.out, torch.device(device))
        seconds.append(undisturbed(seconds_of_runs(run, torch.device(device))[1]))
        blocks = [counted_block(block) for block in rung.batch.blocks]
        work.append(step_work(model, StepShape(kind, blocks, widths), device))
    held_out = [place in _HELD_OUT for place in range(len(work))]
    fit = fit_and_compare(work, seconds, held_out)
    return FittedOperator(
        name=STEP,
        device=device,
        rates=fit.rates,
        fitted=held_out.count(False),
        held_out=len(fit.errors),
        mean_error=float(np.mean(fit.errors)),
        p95_error=float(np.quantile(fit.errors, 0.95)),
    )


def step_widths(kind: str, features: int, classes: int, layers: int) -> list[tuple[int, int]]:
    """Widths in and out of every layer of the model that is measured."""
    return layer_widths(_options(kind, layers), features, classes)


def training_step(
    model: CostModel, kind: str, blocks: Sequence[Block], features: int, classes: int, device: torch.device
) -> Callable[[], object]:
    """Forward, backward and Adam's step on the same batch again and again, whose blocks are new each time."""
    options = _options(kind, len(blocks))
    options.order_costs = order_costs_of(model.profile.model_dump(mode="json", include={"machine", "fits"}))
    net = build_model(options, features, classes).to(device)
    optimiser = eager(torch.optim.Adam)(net.parameters(), lr=0.003)
    x = torch.ones(blocks[0].num_src, features, device=device)
    labels = torch.zeros(blocks[-1].num_dst, dtype=torch.int64, device=device)
    totals = np.ones(blocks[0].num_src, np.int64)

    def step() -> float:
        # What was derived of a block in one step must not be there in the next.
        fresh = [Block(block.indptr, block.indices, block.num_src, None, totals[: block.num_src]) for block in blocks]
        optimiser.zero_grad(set_to_none=True)
        out = net([moved(block, device) for block in fresh], x)
        loss = functional.cross_entropy(out, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return float(loss.detach())

    return step


def _options(kind: str, layers: int) -> ModelOptions:
    return model_options(model=kind, layers=layers, hidden=_HIDDEN)
