"""The bottleneck of a plan, in words, and the gain of one more machine, one more GPU or a faster link.

For the gain the plan is made again for a cluster that has it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from penstock.formatting import percent
from penstock.hardware.machines import Machines
from penstock.plan.comparison import Comparison, Trial, in_threads
from penstock.plan.document import Change
from penstock.plan.placement import Budget, Evaluator, place
from penstock.progress import SILENT, Progress
from penstock.simulate.levels import CriticalStep, critical_path
from penstock.simulate.timeline import Timeline


def bottleneck_of(timeline: Timeline, placement: list[str], words: Mapping[str, str]) -> str:
    """A sentence about the longest part of the critical path.

    `placement` names every task's machine, and `words` describe what tasks of a kind do.
    """
    path = critical_path(timeline)
    total = sum(step.end - step.start for step in path) or 1.0
    # A flow's time counts to the task that waits for it and the link it crosses, a task's to its process.
    shares: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    owners = _Owners(timeline, placement, words)
    for step in path:
        shares[owners.of(step)] += (step.end - step.start) / total
    if not shares:
        return "Nothing takes any time."
    (who, verb, what), share = max(shares.items(), key=lambda item: item[1])
    waits = sum(amount for (_, verb, _), amount in shares.items() if verb == "waits")
    rest = f"Links make up {percent(waits)} of the critical path, tasks {percent(1 - waits)}."
    return f"{who} {verb} {percent(share)} of the time {what}. {rest}"


class _Owners:
    def __init__(self, timeline: Timeline, placement: list[str], words: Mapping[str, str]) -> None:
        load = timeline.load
        self._timeline, self._load, self._placement, self._words = timeline, load, placement, words
        self._tasks = {name: number for number, name in enumerate(load.task_names)}
        self._flows = {name: number for number, name in enumerate(load.flow_names)}

    def of(self, step: CriticalStep) -> tuple[str, str, str]:
        """(process, spends or waits, on or for what) of a step."""
        if step.name in self._tasks:
            task = int(self._load.beside[self._tasks[step.name]])
            return self._named(task), "spends", f"on {self._words.get(step.kind, step.kind)}"
        flow = self._flows[step.name]
        target = int(self._load.beside[self._load.targets[flow]])
        link = step.waited_for or self._slowest(flow)
        return self._named(target), "waits", f"for {_possessive(link)}"

    def _named(self, task: int) -> str:
        return f"{self._load.task_names[task]} on {self._placement[task]}"

    def _slowest(self, flow: int) -> str:
        """The link of the least capacity on a flow's path."""
        routes, network = self._timeline.case.routes, self._timeline.network
        if routes.flow_path[flow] < 0:
            return "its own machine"
        path = routes.paths[routes.flow_path[flow]]
        crossed = routes.path_links[path["first"] : path["last"]]
        return network.link_names[int(min(crossed, key=lambda link: network.capacities[link]))]


def _possessive(link: str) -> str:
    """`m0 out` in plain words."""
    for ending, word in ((" out", "uplink"), (" in", "downlink"), (" up", "uplink"), (" down", "downlink")):
        if link.endswith(ending):
            return f"{link.removesuffix(ending)}'s {word}"
    return link


_LEAST = 0.005
"""A gain below this share counts as none: results of the search itself differ by as much."""


def changes_of(
    run: Comparison, best: Trial, budget: Budget, seed: int, progress: Progress, threads: int = 1
) -> list[Change]:
    """Every change by itself, planned with the same flow policy; the most useful first."""
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
    """Seconds per iteration, placed by the same policy; the present placement is one of the candidates."""
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
