"""What has to be done: tasks, flows between them, and their dependencies, as a template of one iteration.

The template is repeated for as many iterations as are simulated. Items are numbered tasks first, then flows. Where a
task runs is not part of a workload: a placement (the machine of every task, int32) is separate, so that a search can
change it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key, draw, unit
from penstock.kernels import njit

# Dependencies of one iteration: what follows an item, a topological order, or the cycle that prevents one.


def successors(items: int, before: Array, after: Array, lags: Array) -> tuple[Array, Array, Array]:
    """For every item its followers: starts (int32 [items + 1]), the followers, and their lags."""
    starts = np.zeros(items + 1, np.int32)
    np.cumsum(np.bincount(before, minlength=items), out=starts[1:])
    followers, follower_lags = np.empty(len(before), np.int32), np.empty(len(before), np.int32)
    _scatter(before, after, lags, starts.copy(), followers, follower_lags)
    return starts, followers, follower_lags


def sorted_items(items: int, before: Array, after: Array, lags: Array) -> Array:
    """The items so that each comes after those it waits for with lag 0; shorter than `items` where there is a cycle."""
    within = lags == 0
    starts, followers, _ = successors(items, before[within], after[within], lags[within])
    out = np.empty(items, np.int32)
    return out[: _sort(starts, followers, np.bincount(after[within], minlength=items), out)]


def cycle_among(done: Array, items: int, before: Array, after: Array, lags: Array) -> list[int]:
    """Items that wait for each other in a cycle with lag 0, each before the next; `done` could be sorted."""
    stuck = np.ones(items, bool)
    stuck[done] = False
    inside = (lags == 0) & stuck[before] & stuck[after]
    # Every stuck item waits for a stuck one, so walking back must return to one.
    waits_for = dict(zip(after[inside].tolist(), before[inside].tolist(), strict=True))
    seen: list[int] = []
    item = int(np.flatnonzero(stuck)[0])
    while item not in seen:
        seen.append(item)
        item = waits_for[item]
    return seen[seen.index(item) :][::-1]


@njit(nogil=True, cache=True)
def _scatter(before: Array, after: Array, lags: Array, free: Array, followers: Array, follower_lags: Array) -> None:
    """A counting sort by `before`; `free` is where each item's next follower goes."""
    for edge in range(before.shape[0]):
        place = free[before[edge]]
        free[before[edge]] += 1
        followers[place], follower_lags[place] = after[edge], lags[edge]


@njit(nogil=True, cache=True)
def _sort(starts: Array, followers: Array, waiting: Array, out: Array) -> int:
    """Kahn's algorithm; `out` is its own queue."""
    filled = 0
    for item in range(waiting.shape[0]):
        if waiting[item] == 0:
            out[filled] = item
            filled += 1
    taken = 0
    while taken < filled:
        item = out[taken]
        taken += 1
        for edge in range(starts[item], starts[item + 1]):
            follower = followers[edge]
            waiting[follower] -= 1
            if waiting[follower] == 0:
                out[filled] = follower
                filled += 1
    return filled


def _unmarked() -> Array:
    return np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class Workload:
    """One iteration of T tasks and F flows, and E dependencies between these T + F items.

    `sources` and `targets` say only between which tasks a flow runs, that is, between which machines. What it waits
    for, and what waits for it, is in the dependencies: item `after[e]` of iteration n starts when item `before[e]` of
    iteration n - `lags[e]` has ended (at once where there is no such iteration).
    """

    task_names: tuple[str, ...]
    task_kinds: tuple[str, ...]
    task_seconds: Array  # float64 [T]: mean seconds on a machine of speed 1
    task_jobs: Array  # int32 [T]: number in `job_names`
    job_names: tuple[str, ...]
    resources: Mapping[str, Array]  # name (as "gpus") -> float64 [T], what each task holds while the job runs
    beside: Array  # int32 [T]: the task whose machine it shares; its own number where it is placed by itself
    flow_names: tuple[str, ...]
    flow_kinds: tuple[str, ...]
    sources: Array  # int32 [F]: task
    targets: Array  # int32 [F]: task
    flow_bytes: Array  # float64 [F]: mean bytes
    coflows: Array  # int32 [F]: flows of one number and one iteration belong together
    before: Array  # int32 [E]: item
    after: Array  # int32 [E]: item
    lags: Array  # int32 [E]: iterations, 0 or more
    microbatches: Array = field(default_factory=_unmarked)  # int32 [F]: of a flow in its iteration; none: all 0
    layers: Array = field(default_factory=_unmarked)  # int32 [F]: of the model; none: all 0

    def __post_init__(self) -> None:
        for mark in ("microbatches", "layers"):
            if len(getattr(self, mark)) == 0:
                object.__setattr__(self, mark, np.zeros(self.flows, np.int32))
        _check_lengths(self)
        _check_numbers(self)
        if len(self.order) < self.items:
            cycle = cycle_among(self.order, self.items, self.before, self.after, self.lags)
            chain = " -> ".join(self.item_name(item) for item in [*cycle, cycle[0]])
            raise PenstockError(
                f"The workload's dependencies form a cycle within one iteration ({chain}): remove a dependency, or"
                " give one a lag.",
                code="invalid-document",
            )

    @property
    def tasks(self) -> int:
        """The number of tasks: T of the shapes above."""
        return len(self.task_names)

    @property
    def flows(self) -> int:
        """The number of flows: F of the shapes above."""
        return len(self.flow_names)

    @property
    def items(self) -> int:
        """Number of tasks and flows together."""
        return self.tasks + self.flows

    def item_name(self, item: int) -> str:
        """The name of a task or flow by its item number."""
        return self.task_names[item] if item < self.tasks else self.flow_names[item - self.tasks]

    def tasks_of(self, kind: str) -> Array:
        """Numbers of the tasks of a kind, ascending."""
        if kind not in self.task_kinds:
            raise PenstockError(
                f"The workload has no task of kind {kind!r}{nearest(kind, sorted(set(self.task_kinds)))}",
                code="unknown-name",
            )
        return np.flatnonzero(np.array(self.task_kinds) == kind).astype(np.int32)

    def settled(self, placement: Array, machines: int) -> Array:
        """A validated placement (machine of every task), each task on the machine of what it is beside, int32."""
        if len(placement) != self.tasks:
            raise PenstockError(
                f"The placement has {len(placement)} tasks, the workload {self.tasks}: place each once.",
                code="shape-mismatch",
            )
        out = np.asarray(placement, np.int32)[self.beside]
        bad = np.flatnonzero((out < 0) | (out >= machines))
        if len(bad):
            raise PenstockError(
                f"{self.task_names[bad[0]]} is placed on machine {out[bad[0]]}, but there are 0 to {machines - 1}:"
                " name one of these.",
                code="id-out-of-range",
            )
        return out

    @cached_property
    def item_numbers(self) -> dict[str, int]:
        """The number of every item by its name, which no other has."""
        return {name: number for number, name in enumerate(self.task_names + self.flow_names)}

    @property
    def item_kinds(self) -> tuple[str, ...]:
        """The kinds of all items: those of the tasks, then those of the flows."""
        return self.task_kinds + self.flow_kinds

    @cached_property
    def order(self) -> Array:
        """All items so that within an iteration each comes after what it waits for, int32."""
        return sorted_items(self.items, self.before, self.after, self.lags)

    @cached_property
    def followers(self) -> tuple[Array, Array, Array]:
        """What waits for each item: starts (int32 [items + 1]), the items that follow, and their lags."""
        return successors(self.items, self.before, self.after, self.lags)


def merge(workloads: Mapping[str, Workload]) -> Workload:
    """Several jobs as one workload: names become `job/name`, coflows stay separate, nothing waits across jobs."""
    if not workloads:
        raise PenstockError("There is no workload to merge: give at least one job.", code="missing-data")
    parts = list(workloads.values())
    first_task = _offsets([part.tasks for part in parts])
    first_flow = _offsets([part.flows for part in parts])
    first_coflow = _offsets([int(part.coflows.max(initial=-1)) + 1 for part in parts])
    first_job = _offsets([len(part.job_names) for part in parts])
    names = sorted({name for part in parts for name in part.resources})

    def moved_items(part: Workload, k: int, numbers: Array) -> Array:
        shift = np.where(numbers < part.tasks, first_task[k], first_task[-1] - part.tasks + first_flow[k])
        return (numbers + shift).astype(np.int32)

    def joined(name: str, offsets: list[int] | None = None) -> Array:
        return np.concatenate([getattr(part, name) + (offsets[k] if offsets else 0) for k, part in enumerate(parts)])

    return Workload(
        task_names=_prefixed(workloads, "task_names"),
        task_kinds=tuple(kind for part in parts for kind in part.task_kinds),
        task_seconds=joined("task_seconds"),
        task_jobs=joined("task_jobs", first_job),
        job_names=tuple(
            job if len(part.job_names) == 1 else f"{job}/{name}"
            for job, part in workloads.items()
            for name in part.job_names
        ),
        resources={
            name: np.concatenate([part.resources.get(name, np.zeros(part.tasks)) for part in parts]) for name in names
        },
        beside=joined("beside", first_task),
        flow_names=_prefixed(workloads, "flow_names"),
        flow_kinds=tuple(kind for part in parts for kind in part.flow_kinds),
        sources=joined("sources", first_task),
        targets=joined("targets", first_task),
        flow_bytes=joined("flow_bytes"),
        coflows=joined("coflows", first_coflow),
        before=np.concatenate([moved_items(part, k, part.before) for k, part in enumerate(parts)]),
        after=np.concatenate([moved_items(part, k, part.after) for k, part in enumerate(parts)]),
        lags=joined("lags"),
        microbatches=joined("microbatches"),
        layers=joined("layers"),
    )


def _prefixed(workloads: Mapping[str, Workload], field: str) -> tuple[str, ...]:
    return tuple(f"{job}/{name}" for job, part in workloads.items() for name in getattr(part, field))


def _offsets(counts: list[int]) -> list[int]:
    """Where each part begins, and the total at the end."""
    return [0, *np.cumsum(counts).tolist()]


def _check_lengths(load: Workload) -> None:
    tasks, flows = load.tasks, load.flows
    if tasks == 0:
        raise PenstockError("The workload has no tasks: give it at least one.", code="missing-data")
    wanted = dict.fromkeys(("task_kinds", "task_seconds", "task_jobs", "beside"), tasks)
    of_flows = ("flow_kinds", "sources", "targets", "flow_bytes", "coflows", "microbatches", "layers")
    wanted |= dict.fromkeys(of_flows, flows) | dict.fromkeys(("after", "lags"), len(load.before))
    for each in fields(load):
        if each.name in wanted and len(getattr(load, each.name)) != wanted[each.name]:
            raise PenstockError(
                f"The workload's {each.name} has {len(getattr(load, each.name))} entries where "
                f"{wanted[each.name]} are needed: give one for each.",
                code="shape-mismatch",
            )
    for name, held in load.resources.items():
        if len(held) != tasks or not (np.isfinite(held).all() and (held >= 0).all()):
            raise PenstockError(
                f"The workload's resource {name!r} must give each of {tasks} tasks an amount of 0 or more.",
                code="shape-mismatch",
            )
    names = [*load.task_names, *load.flow_names]
    if len(set(names)) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise PenstockError(
            f"Two items of the workload are called {twice!r}: give each a name of its own.", code="duplicate"
        )


def _check_numbers(load: Workload) -> None:
    for what, amounts, names in (
        ("seconds", load.task_seconds, load.task_names),
        ("bytes", load.flow_bytes, load.flow_names),
    ):
        bad = np.flatnonzero(~(np.isfinite(amounts) & (amounts >= 0)))
        if len(bad):
            raise PenstockError(
                f"{names[bad[0]]} of the workload has {amounts[bad[0]]:g} {what}: give a finite number, 0 or more.",
                code="value-out-of-range",
            )
    for what, numbers, bound in (
        ("job", load.task_jobs, len(load.job_names)),
        ("task", load.beside, load.tasks),
        ("source task", load.sources, load.tasks),
        ("target task", load.targets, load.tasks),
        ("item", load.before, load.items),
        ("item", load.after, load.items),
    ):
        bad = np.flatnonzero((numbers < 0) | (numbers >= bound))
        if len(bad):
            raise PenstockError(
                f"The workload names {what} {numbers[bad[0]]}, but has 0 to {bound - 1}: correct the number.",
                code="id-out-of-range",
            )
    if (load.coflows < 0).any():
        raise PenstockError(
            "The workload has a coflow with a negative number: number coflows from 0.", code="value-out-of-range"
        )
    early = np.flatnonzero(load.lags < 0)
    if len(early):
        before, after = (load.item_name(int(items[early[0]])) for items in (load.before, load.after))
        raise PenstockError(
            f"{after} waits for {before} with a lag of {load.lags[early[0]]} iterations: give a lag of 0 or more.",
            code="value-out-of-range",
        )


# The amounts of each iteration: seconds of every task and bytes of every flow, drawn around their means.


class Amounts(NamedTuple):
    """The amounts of a workload's iterations."""

    seconds: Array  # float64 [iterations, tasks], on a machine of speed 1
    sizes: Array  # float64 [iterations, flows]: bytes


class Spread(Protocol):
    """A distribution of mean 1: turns uniform draws of [0, 1) into factors of the mean."""

    def factors(self, uniform: Array) -> Array: ...


@dataclass(frozen=True)
class Constant:
    """An amount that is always its mean."""

    def factors(self, uniform: Array) -> Array:
        return np.ones_like(uniform)


class Quantiles:
    """A measured sample: its quantiles, joined by straight lines, over its mean."""

    def __init__(self, sample: Sequence[float] | Array) -> None:
        values = np.sort(np.asarray(sample, np.float64))
        if len(values) == 0 or not np.isfinite(values).all() or values[0] < 0 or values[-1] <= 0:
            raise PenstockError(
                "A measured sample must hold finite numbers of 0 or more, at least one of them above 0: profile again.",
                code="value-out-of-range",
            )
        # Straight lines between sorted values have this mean, not that of the values themselves.
        mean = values.mean() if len(values) == 1 else float(np.mean((values[1:] + values[:-1]) / 2))
        self._levels = np.linspace(0, 1, len(values)) if len(values) > 1 else np.zeros(1)
        self._values = values / mean

    def factors(self, uniform: Array) -> Array:
        """The sample's values over their mean."""
        return np.asarray(np.interp(uniform, self._levels, self._values))


@dataclass(frozen=True)
class PeakToMean:
    """Factors up to `ratio`, with mean 1: ratio x u^(ratio - 1); 1 is constant, 2 uniform, above 2 mostly small."""

    ratio: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.ratio) and self.ratio >= 1):
            raise PenstockError(f"The peak-to-mean ratio is {self.ratio:g}: give 1 or more.", code="value-out-of-range")

    def factors(self, uniform: Array) -> Array:
        return np.asarray(self.ratio * uniform ** (self.ratio - 1))


def draw_amounts(
    load: Workload, iterations: int, seed: int = 0, spreads: Mapping[str, Spread] | None = None
) -> Amounts:
    """Amounts of so many iterations; `spreads` gives a distribution to a kind of task or flow, others are constant.

    An amount depends only on the seed, the iteration and the item's number.
    """
    if iterations < 1:
        raise PenstockError(f"The number of iterations is {iterations}: ask for at least 1.", code="value-out-of-range")
    kinds = load.item_kinds
    means = np.concatenate([load.task_seconds, load.flow_bytes])
    out = np.repeat(means[None, :], iterations, axis=0)
    key = document_key(seed, "amounts")
    for kind, spread in (spreads or {}).items():
        items = np.flatnonzero(np.array(kinds) == kind)
        if len(items) == 0:
            raise PenstockError(
                f"No task or flow of the workload is of kind {kind!r}{nearest(kind, sorted(set(kinds)))}",
                code="unknown-name",
            )
        if not isinstance(spread, Constant):
            out[:, items] *= spread.factors(_uniform(key, iterations, items))
    return Amounts(np.ascontiguousarray(out[:, : load.tasks]), np.ascontiguousarray(out[:, load.tasks :]))


@njit(nogil=True, cache=True)
def _uniform(key: np.uint64, iterations: int, items: Array) -> Array:
    out = np.empty((iterations, items.shape[0]))
    for n in range(iterations):
        for k in range(items.shape[0]):
            out[n, k] = unit(draw(key, (np.uint64(n) << np.uint64(32)) + np.uint64(items[k])))
    return out


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

    def chain(
        self,
        source: Item,
        targets: Sequence[Item],
        sizes: Sequence[float],
        kinds: Sequence[str],
        names: Sequence[str],
        after: Sequence[Item],
    ) -> tuple[Item, Item]:
        """Add flows from one task that run one after the other, the first when all of `after` have ended; the first and
        the last of them. They wait for nothing else, and no target waits for them.
        """
        count, first = len(targets), len(self._flows.names)
        titles, numbers = self._tasks.names, [target.number for target in targets]
        columns = (
            names, kinds, [source.number] * count, numbers, sizes,
            [self._coflow(f"to {titles[number]} after 0") for number in numbers], [0] * count, [0] * count,
        )  # fmt: skip
        for column, values in zip(self._flows, columns, strict=True):
            column.extend(values)
        begin, last = Item(True, first), Item(True, first + count - 1)
        for before in after:
            self.wait(before, begin)
        self._waits.extend((-1 - number, -2 - number, 0) for number in range(first, last.number))
        return begin, last

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
