"""The bottleneck of a plan, in words."""

from collections import defaultdict
from collections.abc import Mapping

from penstock.quantities import percent
from penstock.simulate.critical import CriticalStep, critical_path
from penstock.simulate.timeline import Timeline


def bottleneck_of(timeline: Timeline, placement: list[str], words: Mapping[str, str]) -> str:
    """A sentence about the longest stretch of the critical path.

    `placement` names every task's machine, and `words` say what tasks of a kind do.
    """
    path = critical_path(timeline)
    total = sum(step.end - step.start for step in path) or 1.0
    # A flow's time counts to whoever waits for it and the link it crosses, a task's to whoever does it.
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
        """(who, spends or waits, on or for what) in a step."""
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
    """`m0 out` as people say it."""
    for ending, word in ((" out", "uplink"), (" in", "downlink"), (" up", "uplink"), (" down", "downlink")):
        if link.endswith(ending):
            return f"{link.removesuffix(ending)}'s {word}"
    return link
