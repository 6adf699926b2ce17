"""Which task runs on which machine, and what a task receives when it starts."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem
from penstock.hardware.cluster import LAUNCHER_FACTS, LOOPBACK, ClusterDocument

# Which task runs on which machine: stores with their parts, workers, samplers and servers.

Kind = Literal["store", "sampler", "server", "worker"]
CONTROLLER = "controller"


class TaskSpec(StrictDocument):
    """One process of a run."""

    id: str
    kind: Kind
    machine: str
    address: str = Field(description="where it listens")
    rank: int = Field(default=0, description="its number among those of its kind; a sampler's: its worker's")
    parts: list[int] = Field(
        default=[], description="a store's: what it holds; others': what their machine's store holds"
    )
    gpu: int | None = Field(default=None, description="a worker's: the number of its GPU among its host's")


class Layout(StrictDocument):
    """Every task, in the order in which they are started: stores first."""

    tasks: list[TaskSpec]
    shares: list[float] = Field(description="of every batch, by worker; they add up to one")
    owners: list[str] = Field(description="the store of every part")

    def of_kind(self, kind: Kind) -> list[TaskSpec]:
        """The tasks of one kind, in order of rank."""
        return [task for task in self.tasks if task.kind == kind]

    def samplers_of(self, rank: int) -> list[str]:
        """The sampler tasks of a worker; none: it samples itself."""
        return [task.id for task in self.tasks if task.kind == "sampler" and task.rank == rank]

    @property
    def world(self) -> int:
        """The number of workers, each of which has a share of the vertices."""
        return len(self.shares)


def lay_out(
    cluster: ClusterDocument,
    parts: int,
    placed: Mapping[str, str] | None = None,
    shares: Sequence[float] | None = None,
) -> Layout:
    """Assign parts to machines in order, numbers of parts differing by at most one, and tasks to the machines of their
    parts.

    With `placed`, the machine of every task by name, each is where that says, and workers have the `shares` of every
    batch that a plan names, else equal ones.
    """
    machines = cluster.machines
    held: list[list[int]] = [[] for _ in machines]
    for part in range(parts):
        held[part * len(machines) // parts if parts > len(machines) else part].append(part)
    where = _where(cluster, placed)
    _check_replicas(cluster, held)
    copied = {replica.machine for replica in cluster.replicas}
    tasks: list[TaskSpec] = []
    for number, machine in enumerate(machines):
        if held[number] or machine.name in copied:
            tasks.append(_task(f"store-{machine.name}", "store", cluster, number, number, held))
    owners = [f"store-{machines[number].name}" for number in range(len(machines)) for _ in held[number]]
    if cluster.reduce == "servers":
        tasks += [
            _task(name, "server", cluster, where(name, rank % len(machines)), rank, held)
            for rank, name in enumerate(f"server-{rank}" for rank in range(cluster.servers))
        ]
    seats = [where(f"worker-{rank}", number) for rank, number in enumerate(_seats(cluster))]
    for rank, seat in enumerate(seats):
        names = [f"sampler-{rank}-{copy}" for copy in range(cluster.samplers)]
        tasks += [_task(name, "sampler", cluster, where(name, seat), rank, held) for name in names]
    gpus = list(_gpus(cluster, seats))
    tasks += [
        _task(f"worker-{rank}", "worker", cluster, number, rank, held).model_copy(update={"gpu": gpus[rank]})
        for rank, number in enumerate(seats)
    ]
    if placed is not None:
        _check_placed(tasks, placed)
    speeds = [1.0 if placed else machines[number].speed for number in seats]
    if shares is None:
        shares = [speed / sum(speeds) for speed in speeds]
    elif len(shares) != len(seats) or min(shares) <= 0 or not math.isclose(sum(shares), 1.0):
        raise PenstockError(
            f"The plan gives {len(shares)} workers shares of every batch that add up to {sum(shares):g}, and the"
            f" cluster has {len(seats)} workers, whose shares add up to 1: make a plan for this cluster.",
            code="mismatched-inputs",
        )
    return Layout(tasks=tasks, shares=list(shares), owners=owners)


def worker_hosts(cluster: ClusterDocument, layout: Layout) -> int:
    """The number of hosts that workers are on. A launcher other than `local` may place a machine anywhere, unless its
    address says where it is.
    """
    elsewhere = cluster.launcher != "local"
    workers = layout.of_kind("worker")
    return len({task.machine if elsewhere and task.address in LOOPBACK else task.address for task in workers})


def chosen_reduction(cluster: ClusterDocument, layout: Layout) -> str:
    """The reduction of all-reduce: gradients are sent unencrypted between hosts only if the cluster file says so."""
    if cluster.reduction != "auto":
        return cluster.reduction
    return "wire" if worker_hosts(cluster, layout) > 1 else "torch"


def _check_replicas(cluster: ClusterDocument, held: list[list[int]]) -> None:
    """Refuse replicas of parts that do not exist, at their owner, or of rows that the machine cannot choose."""
    held_by = {machine.name: parts for machine, parts in zip(cluster.machines, held, strict=True)}
    count = sum(map(len, held))
    for place, replica in enumerate(cluster.replicas):
        why = None
        if replica.part >= count:
            why = f"there is no part {replica.part}, as the graph has {count}: name one of 0..{count - 1}"
        elif replica.part in held_by[replica.machine]:
            why = f"machine {replica.machine} owns part {replica.part}: name another machine"
        elif replica.rows != "all" and not held_by[replica.machine]:
            why = (
                f"machine {replica.machine} holds no part, whose lists would say which rows are read most: set rows to"
                " all"
            )
        if why is not None:
            raise PenstockError(f"The cluster's replicas[{place}]: {why}.", code="invalid-value")


def without_machine(cluster: ClusterDocument, name: str, parts: int) -> ClusterDocument:
    """The cluster without one of its machines, and without replicas that were there or are now at their owner."""
    machines = [machine for machine in cluster.machines if machine.name != name]
    rest = cluster.model_copy(update={"machines": machines, "replicas": []})
    owners = lay_out(rest, parts).owners
    replicas = [
        replica
        for replica in cluster.replicas
        if replica.machine != name and f"store-{replica.machine}" != owners[replica.part]
    ]
    return rest.model_copy(update={"replicas": replicas})


def _check_placed(tasks: list[TaskSpec], placed: Mapping[str, str]) -> None:
    """Check that a plan has exactly the run's tasks, with stores where their parts are."""
    found = {task.id: task.machine for task in tasks}
    for name in sorted(found.keys() | placed.keys()):
        if found.get(name) != placed.get(name):
            raise PenstockError(
                f"The plan puts {name} on {placed.get(name, 'no machine')!r}, but the run has it on"
                f" {found.get(name, 'no machine')!r}: make a plan for this cluster.",
                code="mismatched-inputs",
            )


def _where(cluster: ClusterDocument, placed: Mapping[str, str] | None) -> Callable[[str, int], int]:
    """(a task's name, its default machine) -> its machine, by number."""
    numbers = {machine.name: number for number, machine in enumerate(cluster.machines)}

    def where(task: str, otherwise: int) -> int:
        if placed is None:
            return otherwise
        if task not in placed or placed[task] not in numbers:
            raise PenstockError(
                f"The plan puts {task} on {placed.get(task, 'no machine')!r}, but the cluster has"
                f" {', '.join(numbers)}: make a plan for this cluster.",
                code="mismatched-inputs",
            )
        return numbers[placed[task]]

    return where


def _seats(cluster: ClusterDocument) -> Iterator[int]:
    """The machine of every worker, by rank."""
    for number, machine in enumerate(cluster.machines):
        yield from [number] * machine.workers


def _gpus(cluster: ClusterDocument, seats: Sequence[int]) -> Iterator[int | None]:
    """The GPU of every worker, by rank; a machine's GPUs are assigned in turn."""
    counts = [machine.gpus for machine in cluster.machines]
    # Machines that are the same host have consecutive ranges of its GPUs.
    first = [sum(counts[:number]) if LAUNCHER_FACTS[cluster.launcher].one_host else 0 for number in range(len(counts))]
    placed = Counter[int]()
    for number in seats:
        yield first[number] + placed[number] % counts[number] if counts[number] else None
        placed[number] += 1


def _task(name: str, kind: Kind, cluster: ClusterDocument, number: int, rank: int, held: list[list[int]]) -> TaskSpec:
    machine = cluster.machines[number]
    return TaskSpec(id=name, kind=kind, machine=machine.name, address=machine.address, rank=rank, parts=held[number])


# The setup of a task: one JSON document on its standard input.


_OWN = "task", "incarnation", "credentials", "controller", "addresses"
"""The fields of a setup that tasks do not share."""


class Setup(StrictDocument):
    """Everything a process needs to take its part in a run."""

    task: TaskSpec
    incarnation: int = Field(description="how often it was started before")
    credentials: str = Field(description="its keys, see wire.keys")
    controller: str = Field(description="the controller's address")
    run: str = Field(description="the run folder")
    partition: str
    job: dict[str, Any]
    cluster: ClusterDocument
    layout: Layout
    addresses: dict[str, str] = Field(description="where the tasks are that run already")
    decided: list[dict[str, Any]] = Field(
        default=[], description="by worker, what a plan decided for it, by name; empty: each decides by itself"
    )
    measured: int = Field(default=0, ge=0, description="iterations to be measured, not to be kept; 0: an ordinary run")
    _shared: str = PrivateAttr(default="")

    def for_task(self, **own: Any) -> "Setup":
        """A copy with a task's own values; what all tasks share is written as text once for all copies."""
        self._shared = self._shared or self.model_dump_json(exclude=set(_OWN))
        return self.model_copy(update=own)

    def text(self) -> str:
        """The document, as `read_setup` reads it."""
        own = self.model_dump_json(include=set(_OWN))
        return f"{own[:-1]},{(self._shared or self.model_dump_json(exclude=set(_OWN)))[1:]}"


def read_setup(text: str) -> Setup:
    """Read and validate a task's setup."""
    try:
        return Setup.model_validate_json(text)
    except ValidationError as error:
        raise PenstockError(
            f"The task's setup is not valid: {first_problem(error)}.", code="invalid-document"
        ) from None


def worker_rank(sender: str, world: int, what: str) -> int:
    """The rank of a worker of the run that has sent a message; any other sender may not do `what`."""
    kind, _, rank = sender.partition("-")
    if kind != "worker" or not rank.isdecimal() or int(rank) >= world:
        raise PenstockError(
            f"{sender} may not {what}: it is not one of the {world} workers, and only they may.", code="not-permitted"
        )
    return int(rank)
