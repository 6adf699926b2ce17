"""Rates fitted to measured seconds: of repeated operators, and of what a step takes beyond them."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import nnls
from torch.nn import functional

from penstock.cost.model import STEP, CostModel, StepShape, counted_block, predicted_layers, step_work
from penstock.cost.operators import Rung
from penstock.cost.operators.entry import Run, is_sampled
from penstock.cost.profile import FittedOperator
from penstock.nn import ModelOptions, build_model
from penstock.nn.eager import eager
from penstock.nn.layer_table import model_options
from penstock.nn.operator_costs import Amounts, order_costs_of, seconds_of
from penstock.nn.zoo.model import layer_widths
from penstock.sampling import Block
from penstock.sampling.device.block import block_on
from penstock.sampling.device.streams import rest

# Rates fitted to measured seconds, and how far predictions are from measurements that were held out.


def fit_rates(work: Sequence[Amounts], seconds: Sequence[float]) -> dict[str, float]:
    """Non-negative rates with the least squares of relative errors."""
    names = list(dict.fromkeys(name for each in work for name in each))
    amounts = np.array([[each.get(name, 0.0) for name in names] for each in work], np.float64)
    relative = amounts / np.asarray(seconds)[:, None]
    # Columns are scaled to similar lengths: a unit of work may be a call or a flop.
    lengths = np.maximum(np.linalg.norm(relative, axis=0), 1e-300)
    found, _ = nnls(relative / lengths, np.ones(len(seconds)))
    return {name: float(rate) for name, rate in zip(names, found / lengths, strict=True) if rate > 0}


def fit_and_compare(
    name: str, device: str, work: Sequence[Amounts], seconds: Sequence[float], held_out: Sequence[bool]
) -> FittedOperator:
    """An operator's rates from the measurements that are not held out, compared with those that are."""
    kept = [place for place, out in enumerate(held_out) if not out]
    rates = fit_rates([work[place] for place in kept], [seconds[place] for place in kept])
    errors = [
        abs(seconds_of(rates, amounts) / spent - 1)
        for amounts, spent, out in zip(work, seconds, held_out, strict=True)
        if out
    ]
    return FittedOperator(
        name=name,
        device=device,
        rates=rates,
        fitted=len(kept),
        held_out=len(errors),
        mean_error=float(np.mean(errors)) if errors else 0.0,
        p95_error=float(np.quantile(errors, 0.95)) if errors else 0.0,
    )


# Seconds of an operator, from repeated runs.

_WARM_UP = 2
_LEAST, _MOST = 5, 200
"""The least and the most runs that are timed."""
_SECONDS = 0.06
"""Seconds for which runs of a short operator are timed."""


def seconds_of_runs(run: Run, device: torch.device) -> tuple[float, list[float]]:
    """The seconds of the very first run, and those of some later ones."""
    first = _timed(run, device)
    for _ in range(_WARM_UP):
        run()
    times, end = list[float](), time.perf_counter() + _SECONDS
    while len(times) < _LEAST or (time.perf_counter() < end and len(times) < _MOST):
        times.append(_timed(run, device))
    return first, times


def undisturbed(times: list[float]) -> float:
    """Seconds of an undisturbed run: the mean of the shortest quarter."""
    shortest = sorted(times)[: max(1, len(times) // 4)]
    return sum(shortest) / len(shortest)


def _timed(run: Run, device: torch.device) -> float:
    rest(device)
    start = time.perf_counter()
    run()
    rest(device)
    return time.perf_counter() - start


# What a whole step takes beyond its operators, measured on the ladder: they share caches.

_HIDDEN = 64
_POINTS = 16
_HELD_OUT = frozenset({1, 4, 6, 9, 11, 14})


def fit_steps(model: CostModel, rungs: Sequence[Rung], device: str) -> FittedOperator:
    """Rates of a step, from measured steps of all kinds of layers on batches of the ladder."""
    kinds, sampled = predicted_layers(), [rung for rung in rungs if is_sampled(rung)]
    pairs = [(rung, kinds[(place + turn) % len(kinds)]) for turn in range(2) for place, rung in enumerate(sampled)]
    work, seconds = [], []
    for rung, kind in pairs[:_POINTS]:
        widths = step_widths(kind, rung.width, rung.out, len(rung.fanouts))
        run = training_step(model, kind, rung.batch.blocks, rung.width, rung.out, torch.device(device))
        seconds.append(undisturbed(seconds_of_runs(run, torch.device(device))[1]))
        blocks = [counted_block(block) for block in rung.batch.blocks]
        work.append(step_work(model, StepShape(kind, blocks, widths), device))
    return fit_and_compare(STEP, device, work, seconds, [place in _HELD_OUT for place in range(len(work))])


def step_widths(kind: str, features: int, classes: int, layers: int) -> list[tuple[int, int]]:
    """Widths in and out of every layer of the model that is measured."""
    return layer_widths(_options(kind, layers), features, classes)


def training_step(
    model: CostModel, kind: str, blocks: Sequence[Block], features: int, classes: int, device: torch.device
) -> Callable[[], object]:
    """Forward, backward and Adam's step on the same batch repeatedly, with new blocks each time."""
    options = _options(kind, len(blocks))
    options.order_costs = order_costs_of(model.profile.model_dump(mode="json", include={"machine", "fits"}))
    net = build_model(options, features, classes).to(device)
    optimiser = eager(torch.optim.Adam)(net.parameters(), lr=0.003)
    x = torch.ones(blocks[0].num_src, features, device=device)
    labels = torch.zeros(blocks[-1].num_dst, dtype=torch.int64, device=device)
    totals = np.ones(blocks[0].num_src, np.int64)

    def step() -> float:
        # What was derived from a block in one step must not be cached in the next.
        fresh = [Block(block.indptr, block.indices, block.num_src, None, totals[: block.num_src]) for block in blocks]
        optimiser.zero_grad(set_to_none=True)
        out = net([block_on(block, device) for block in fresh], x)
        loss = functional.cross_entropy(out, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return float(loss.detach())

    return step


def _options(kind: str, layers: int) -> ModelOptions:
    return model_options(model=kind, layers=layers, hidden=_HIDDEN)
