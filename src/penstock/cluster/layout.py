"""Which task runs where: stores beside their parts, workers as many as a machine has, samplers and servers for them."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from penstock.cluster.document import ClusterDocument
from penstock.graph.documents import StrictDocument

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


class Layout(StrictDocument):
    """Every task, stores first: in this order they are started."""

    tasks: list[TaskSpec]
    shares: list[float] = Field(description="of every batch, by worker; they add up to one")
    owners: list[str] = Field(description="the store of every part")

    def of_kind(self, kind: Kind) -> list[TaskSpec]:
        """In order of rank."""
        return [task for task in self.tasks if task.kind == kind]

    def samplers_of(self, rank: int) -> list[str]:
        """The tasks that sample for a worker; none: it does so itself."""
        return [task.id for task in self.tasks if task.kind == "sampler" and task.rank == rank]

    @property
    def world(self) -> int:
        """Workers."""
        return len(self.shares)


def lay_out(cluster: ClusterDocument, parts: int) -> Layout:
    """Parts to machines in order, each as many as the others or one more; every machine's tasks beside its parts."""
    machines = cluster.machines
    held: list[list[int]] = [[] for _ in machines]
    for part in range(parts):
        held[part * len(machines) // parts if parts > len(machines) else part].append(part)
    tasks: list[TaskSpec] = []
    for number, machine in enumerate(machines):
        if held[number]:
            tasks.append(_task(f"store-{machine.name}", "store", cluster, number, number, held))
    owners = [f"store-{machines[number].name}" for number in range(len(machines)) for _ in held[number]]
    if cluster.reduce == "servers":
        tasks += [
            _task(f"server-{rank}", "server", cluster, rank % len(machines), rank, held)
            for rank in range(cluster.servers)
        ]
    seats = list(_seats(cluster))
    tasks += [
        _task(f"sampler-{rank}-{copy}", "sampler", cluster, number, rank, held)
        for rank, number in enumerate(seats)
        for copy in range(cluster.samplers)
    ]
    tasks += [_task(f"worker-{rank}", "worker", cluster, number, rank, held) for rank, number in enumerate(seats)]
    speeds = [machines[number].speed for number in seats]
    return Layout(tasks=tasks, shares=[speed / sum(speeds) for speed in speeds], owners=owners)


def _seats(cluster: ClusterDocument) -> Iterator[int]:
    """The machine of every worker, by rank."""
    for number, machine in enumerate(cluster.machines):
        yield from [number] * machine.workers


def _task(name: str, kind: Kind, cluster: ClusterDocument, number: int, rank: int, held: list[list[int]]) -> TaskSpec:
    machine = cluster.machines[number]
    return TaskSpec(id=name, kind=kind, machine=machine.name, address=machine.address, rank=rank, parts=held[number])
