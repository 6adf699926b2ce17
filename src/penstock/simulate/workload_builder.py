"""Builds a workload item by item, with the usual dependencies."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.simulate.workload import Workload


class Item(NamedTuple):
    """A task or a flow of a builder, by its number among tasks or flows."""

    is_flow: bool
    number: int


class _TaskColumns(NamedTuple):
    """The fields of tasks, a list for each."""

    names: list[str]
    kinds: list[str]
    seconds: list[float]
    resources: list[Mapping[str, float]]
    beside: list[int]


class _FlowColumns(NamedTuple):
    """The fields of flows, a list for each."""

    names: list[Any]
    kinds: list[Any]
    sources: list[Any]
    targets: list[Any]
    sizes: list[Any]
    coflows: list[Any]
    microbatches: list[Any]
    layers: list[Any]


class WorkloadBuilder:
    """Collects tasks, flows and dependencies of one job; `build` validates them and makes the workload.

    `task`, `flow` and `wait` add one; `add_tasks`, `add_flows` and `add_waits` add many from arrays, as if one by one.
    """

    def __init__(self, job: str = "job") -> None:
        self.job = job
        self._tasks = _TaskColumns([], [], [], [], [])
        self._flows = _FlowColumns([], [], [], [], [], [], [], [])
        self._waits: list[tuple[int, int, int]] = []  # before, after, lag; flows as -1 - number
        self._wait_blocks: list[Array] = []
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
        """Add a task of so many mean seconds; with `follows_itself` its iterations run one after the other.

        A task `beside` another is always on that one's machine.
        """
        item = Item(False, len(self._tasks.names))
        self._tasks.names.append(name)
        self._tasks.kinds.append(kind)
        self._tasks.seconds.append(seconds)
        self._tasks.resources.append(resources or {})
        self._tasks.beside.append(item.number if beside is None else beside.number)
        if follows_itself:
            self.wait(item, item, 1)
        return item

    def work(self, name: str, kind: str, seconds: float, beside: Item) -> Item:
        """Add a task of a process, `beside` it, that does not wait for its own last iteration."""
        return self.task(name, kind, seconds, follows_itself=False, beside=beside)

    def add_tasks(
        self,
        names: Sequence[str],
        kinds: Sequence[str],
        seconds: Array,
        resources: Sequence[Mapping[str, float]],
        beside: Array | None = None,
    ) -> Array:
        """Add tasks that follow themselves, each `beside` the task of that number; their numbers."""
        first = len(self._tasks.names)
        numbers = np.arange(first, first + len(names))
        self._tasks.names.extend(names)
        self._tasks.kinds.extend(kinds)
        self._tasks.seconds.extend(seconds.tolist())
        self._tasks.resources.extend(resources)
        self._tasks.beside.extend((numbers if beside is None else beside).tolist())
        self.add_waits(numbers, numbers, np.ones(len(names), np.int64))
        return numbers

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
        belong together; without a name, a flow belongs to those with the same target. Policies may order by microbatch
        and layer.
        """
        if source.is_flow or target.is_flow:
            raise PenstockError(
                f"A flow of kind {kind} starts or ends at another flow: give two tasks.", code="wrong-type"
            )
        item = Item(True, len(self._flows.names))
        ends = (self._tasks.names[source.number], self._tasks.names[target.number])
        label = coflow if coflow is not None else f"to {ends[1]} after {arrival_lag}"
        row = (
            name or f"{ends[0]}->{ends[1]}", kind, source.number, target.number, size, self._coflow(label), microbatch,
            layer,
        )  # fmt: skip
        for column, value in zip(self._flows, row, strict=True):
            column.append(value)
        if waits_for_source:
            self.wait(source, item)
        if awaited_by_target:
            self.wait(item, target, arrival_lag)
        if follows_itself:
            self.wait(item, item, 1)
        return item

    def add_flows(
        self,
        sources: Array,
        targets: Array,
        sizes: Array,
        kinds: Sequence[str],
        *,
        names: Sequence[str] | None = None,
        coflows: tuple[Sequence[str], Array] | None = None,
        arrival_lags: Array | None = None,
    ) -> Array:
        """Add flows between tasks of these numbers, with all that `flow` makes them wait for; their numbers.

        `coflows` has labels, and the number of its label for every flow; without, a flow belongs to those with the same
        target and lag.
        """
        count, first = len(sources), len(self._flows.names)
        numbers = np.arange(first, first + count)
        lags = np.zeros(count, np.int64) if arrival_lags is None else arrival_lags
        titles, froms, tos = self._tasks.names, sources.tolist(), targets.tolist()
        labels, label_of = self._to_targets(targets, lags) if coflows is None else coflows
        label_numbers = np.array([self._coflow(label) for label in labels], np.int64)
        named = names or [f"{titles[source]}->{titles[target]}" for source, target in zip(froms, tos, strict=True)]
        columns = (
            named, kinds, froms, tos, sizes.tolist(), label_numbers[label_of].tolist(), [0] * count, [0] * count,
        )  # fmt: skip
        for column, values in zip(self._flows, columns, strict=True):
            column.extend(values)
        flows, none = -1 - numbers, np.zeros(count, np.int64)
        before = np.stack([sources, flows, flows], axis=1)
        after = np.stack([flows, targets, flows], axis=1)
        self._add_block(before.reshape(-1), after.reshape(-1), np.stack([none, lags, none + 1], axis=1).reshape(-1))
        return numbers

    def wait(self, before: Item, after: Item, lag: int = 0) -> None:
        """Make `after` of every iteration n wait for `before` of iteration n - lag."""
        ends = (-1 - item.number if item.is_flow else item.number for item in (before, after))
        self._waits.append((*ends, lag))  # type: ignore[arg-type]

    def add_waits(self, before: Array, after: Array, lags: Array, after_are_flows: bool = False) -> None:
        """Make tasks or flows `after` wait for tasks `before`, all by number."""
        self._add_block(before, -1 - after if after_are_flows else after, lags)

    def _add_block(self, before: Array, after: Array, lags: Array) -> None:
        """Add dependencies from arrays behind those that were added so far."""
        if self._waits:
            self._wait_blocks.append(np.array(self._waits, np.int64))
            self._waits = []
        self._wait_blocks.append(np.stack([before, after, lags], axis=1).astype(np.int64))

    def _to_targets(self, targets: Array, lags: Array) -> tuple[list[str], Array]:
        """Labels of coflows by target and lag, in order of their first flow, and the number of each flow's."""
        furthest = int(lags.max(initial=0)) + 1
        keys, first, label_of = np.unique(targets * furthest + lags, return_index=True, return_inverse=True)
        by_first = np.argsort(first)
        place = np.empty(len(keys), np.int64)
        place[by_first] = np.arange(len(keys))
        pairs = (divmod(key, furthest) for key in keys[by_first].tolist())
        return [f"to {self._tasks.names[target]} after {lag}" for target, lag in pairs], place[label_of]

    def _coflow(self, label: str) -> int:
        return self._coflows.setdefault(label, len(self._coflows))

    def build(self) -> Workload:
        """The workload; an error for invalid numbers or cycles."""
        tasks, flows = self._tasks, self._flows
        resources = sorted({name for held in tasks.resources if held for name in held})
        waits = np.concatenate([*self._wait_blocks, np.array(self._waits, np.int64).reshape(-1, 3)])
        ends = np.where(waits[:, :2] < 0, len(tasks.names) - 1 - waits[:, :2], waits[:, :2]).astype(np.int32)
        return Workload(
            task_names=tuple(tasks.names),
            task_kinds=tuple(tasks.kinds),
            task_seconds=np.array(tasks.seconds, np.float64),
            task_jobs=np.zeros(len(tasks.names), np.int32),
            job_names=(self.job,),
            resources={
                name: np.array([held.get(name, 0) for held in tasks.resources], np.float64) for name in resources
            },
            beside=np.array(tasks.beside, np.int32),
            flow_names=tuple(flows.names),
            flow_kinds=tuple(flows.kinds),
            sources=np.array(flows.sources, np.int32),
            targets=np.array(flows.targets, np.int32),
            flow_bytes=np.array(flows.sizes, np.float64),
            coflows=np.array(flows.coflows, np.int32),
            before=np.ascontiguousarray(ends[:, 0]),
            after=np.ascontiguousarray(ends[:, 1]),
            lags=waits[:, 2].astype(np.int32),
            microbatches=np.array(flows.microbatches, np.int32),
            layers=np.array(flows.layers, np.int32),
        )
