"""A workload put together item by item, with the dependencies that most of them share."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.simulate.workload import Workload


class Item(NamedTuple):
    """A task or a flow of a builder, by its number among its like."""

    is_flow: bool
    number: int


class WorkloadBuilder:
    """Collects tasks, flows and dependencies of one job; `build` checks them and makes the workload."""

    def __init__(self, job: str = "job") -> None:
        self.job = job
        self._tasks: list[tuple[str, str, float, Mapping[str, float], int]] = []
        self._flows: list[tuple[str, str, int, int, float, int, int, int]] = []
        self._edges: list[tuple[Item, Item, int]] = []
        self._coflows: dict[str, int] = {}

    def task(
        self,
        name: str,
        kind: str,
        seconds: float,
        resources: Mapping[str, float] | None = None,
        follows_itself: bool = True,
        beside: Item | None = None,
    ) -> Item:
        """Add a task of so many mean seconds; with `follows_itself` it runs its iterations one after the other.

        A task `beside` another is always on that one's machine.
        """
        item = Item(False, len(self._tasks))
        self._tasks.append((name, kind, seconds, resources or {}, item.number if beside is None else beside.number))
        if follows_itself:
            self.wait(item, item, 1)
        return item

    def flow(
        self,
        source: Item,
        target: Item,
        size: float,
        kind: str,
        *,
        name: str | None = None,
        coflow: str | None = None,
        arrival_lag: int = 0,
        follows_itself: bool = True,
        waits_for_source: bool = True,
        awaited_by_target: bool = True,
        microbatch: int = 0,
        layer: int = 0,
    ) -> Item:
        """Add a flow of `size` mean bytes from one task to another, where it is needed `arrival_lag` iterations later.

        It starts when its source ends and, with `follows_itself`, after its own last iteration. Flows with one `coflow`
        belong together; without a name, a flow belongs to those with the same target. A microbatch and a layer are what
        policies may order by.
        """
        if source.is_flow or target.is_flow:
            raise PenstockError(f"A flow of kind {kind} runs from or to a flow: give two tasks.")
        item = Item(True, len(self._flows))
        ends = (self._tasks[source.number][0], self._tasks[target.number][0])
        label = coflow if coflow is not None else f"to {ends[1]} after {arrival_lag}"
        number = self._coflows.setdefault(label, len(self._coflows))
        title = name or f"{ends[0]}->{ends[1]}"
        self._flows.append((title, kind, source.number, target.number, size, number, microbatch, layer))
        if waits_for_source:
            self.wait(source, item)
        if awaited_by_target:
            self.wait(item, target, arrival_lag)
        if follows_itself:
            self.wait(item, item, 1)
        return item

    def wait(self, before: Item, after: Item, lag: int = 0) -> None:
        """Let `after` of every iteration n wait for `before` of iteration n - lag."""
        self._edges.append((before, after, lag))

    def build(self) -> Workload:
        """The workload; bad numbers and cycles are refused here."""
        tasks, flows = self._tasks, self._flows
        names = sorted({name for task in tasks for name in task[3]})
        edges = np.array(
            [(self._number(before), self._number(after), lag) for before, after, lag in self._edges], np.int32
        ).reshape(-1, 3)
        return Workload(
            task_names=tuple(task[0] for task in tasks),
            task_kinds=tuple(task[1] for task in tasks),
            task_seconds=np.array([task[2] for task in tasks], np.float64),
            task_jobs=np.zeros(len(tasks), np.int32),
            job_names=(self.job,),
            resources={name: np.array([task[3].get(name, 0) for task in tasks], np.float64) for name in names},
            beside=np.array([task[4] for task in tasks], np.int32),
            flow_names=tuple(flow[0] for flow in flows),
            flow_kinds=tuple(flow[1] for flow in flows),
            sources=np.array([flow[2] for flow in flows], np.int32),
            targets=np.array([flow[3] for flow in flows], np.int32),
            flow_bytes=np.array([flow[4] for flow in flows], np.float64),
            coflows=np.array([flow[5] for flow in flows], np.int32),
            before=edges[:, 0].copy(),
            after=edges[:, 1].copy(),
            lags=edges[:, 2].copy(),
            microbatches=np.array([flow[6] for flow in flows], np.int32),
            layers=np.array([flow[7] for flow in flows], np.int32),
        )

    def _number(self, item: Item) -> int:
        return item.number + (len(self._tasks) if item.is_flow else 0)
