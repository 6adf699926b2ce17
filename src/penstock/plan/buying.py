"""What one more machine, GPU or a faster link would bring: the plan made again for a cluster that has it."""

from collections.abc import Iterator

import numpy as np

from penstock.plan.comparing import Comparison, Trial
from penstock.plan.document import Change
from penstock.plan.machines import Machines
from penstock.plan.placement import Budget, Evaluator, place
from penstock.progress import Progress

_LEAST = 0.005
"""A gain below this share is none: the search itself differs by as much."""


def changes_of(run: Comparison, best: Trial, budget: Budget, seed: int, progress: Progress) -> list[Change]:
    """Every change by itself, planned for with the same flows; the most useful first."""
    wanted = list(_changed(run.machines, best))
    found = []
    with progress.step("what if", len(wanted), "changes"):
        for what, machines in wanted:
            seconds = _planned(run.on(machines), best, budget, seed)
            gain = 1 - seconds / best.iteration_s if best.iteration_s else 0.0
            found.append(Change(what=what, iteration_s=seconds, gain=gain if gain > _LEAST else 0.0))
            progress.advance(1)
    return sorted(found, key=lambda change: -change.gain)


def _planned(run: Comparison, best: Trial, budget: Budget, seed: int) -> float:
    """Seconds an iteration, placed by the same policy; where things were is one of the choices."""
    evaluator = Evaluator(run.problem, best.flows, run.iterations.searched)
    placed = place(evaluator, best.placed.policy, budget, seed)
    return min(run.trial(each, best.flows).iteration_s for each in (best.placed, placed))


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
