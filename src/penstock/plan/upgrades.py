"""What one more machine, GPU or a faster link would bring: the plan made again for a cluster that has it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from penstock.hardware.machines import Machines
from penstock.plan.comparison import Comparison, Trial
from penstock.plan.document import Change
from penstock.plan.placement import Budget, Evaluator, place
from penstock.plan.threads import in_threads
from penstock.progress import SILENT, Progress

_LEAST = 0.005
"""A gain below this share is none: the search itself differs by as much."""


def changes_of(
    run: Comparison, best: Trial, budget: Budget, seed: int, progress: Progress, threads: int = 1
) -> list[Change]:
    """Every change by itself, planned for with the same flows; the most useful first."""
    wanted = list(_changed(run.machines, best))
    if budget.simulations is None:
        budget = replace(budget, simulations=run.simulations)
    with progress.step("what if", len(wanted), "changes"):

        def planned(machines: Machines) -> float:
            seconds = _planned(run.on(machines), best, budget, seed)
            progress.advance(1)
            return seconds

        found = in_threads([partial(planned, machines) for _, machines in wanted], threads)
    changes = []
    for (what, _), seconds in zip(wanted, found, strict=True):
        gain = 1 - seconds / best.iteration_s if best.iteration_s else 0.0
        changes.append(Change(what=what, iteration_s=seconds, gain=gain if gain > _LEAST else 0.0))
    return sorted(changes, key=lambda change: -change.gain)


def _planned(run: Comparison, best: Trial, budget: Budget, seed: int) -> float:
    """Seconds an iteration, placed by the same policy; where things were is one of the choices."""
    evaluator = Evaluator(run.problem, best.flows, run.iterations.searched)
    placed = place(evaluator, best.placed.policy, budget, seed)
    return min(
        trial.iteration_s for trial in run.trials([(each, best.flows) for each in (best.placed, placed)], SILENT)
    )


def _changed(machines: Machines, best: Trial) -> Iterator[tuple[str, Machines]]:
    """The busiest link twice as fast, one more of the fastest machine, and one more GPU where there are any."""
    count = len(machines.names)
    use = best.timeline.link_use[: 2 * count].reshape(2, count).max(0) if count > 1 else np.zeros(1)
    busiest, fastest = int(np.argmax(use)), int(np.argmax(machines.rates))
    yield f"a link twice as fast for {machines.names[busiest]}", machines.with_rate(busiest, 2)
    yield f"one more machine like {machines.names[fastest]}", machines.with_copy(fastest)
    gpus = machines.capacities.get("gpus", ())
    if any(gpus):
        yield f"one more GPU in {machines.names[fastest]}", machines.with_more("gpus", fastest, 1)
