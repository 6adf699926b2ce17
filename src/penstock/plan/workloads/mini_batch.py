"""Mini-batch training on a cluster: stores serve parts, workers draw, gather and step, gradients are summed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field
from scipy.optimize import brentq

from penstock.cost.profile import Profile
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument
from penstock.graph.folder import Graph
from penstock.hardware.cluster import ClusterDocument, Replica
from penstock.hardware.machines import Machines, machines_of
from penstock.partition.assignment import parts_of
from penstock.plan.workloads.entry import (
    ExecutionWorkload,
    HeldMemory,
    PlannedRun,
    Summed,
    WorkloadEntry,
    sum_around_ring,
    sum_on_servers,
)
from penstock.sampling.sampler_table import DEFAULT_SAMPLER, SAMPLERS
from penstock.simulate.workload import Item, Quantiles, Spread, Workload, WorkloadBuilder
from penstock.store.parts.requests import encoding_for
from penstock.store.rows import by_counts

# A training run as a workload: who sends what to whom, and what waits for what. A worker's pipeline is repeated:
# neighbour lists from the stores to whoever draws, the batch to the worker, features from the stores to the worker,
# rows put in place, the step, and gradients to servers or around a ring. With K samplers per worker, K batches are
# drawn at once, each by the next sampler in turn: the template then holds K iterations.

OPERATORS = {"store": "serve", "sampler": "sample", "worker": "step", "server": "sum"}
"""For each kind of process, its main operator, which decides how many cores it keeps busy."""


class PlannedReplica(StrictDocument):
    """A second copy of a part's features at another store."""

    part: int = Field(ge=0)
    store: str
    shares: list[float] = Field(description="by worker, of the part's feature bytes that come from here")


class MiniBatchExecution(StrictDocument):
    """The setup of a run, beside the costs of its iterations."""

    stores: list[str] = Field(description="a task's name for every part")
    samplers: int = Field(default=0, ge=0, description="sampling tasks of each worker; 0: it draws its batches itself")
    servers: int = Field(default=0, ge=0, description="parameter servers; 0: the workers reduce around a ring")
    sample_depth: int = Field(default=2, ge=1)
    gather_depth: int = Field(default=2, ge=1)
    transfer_depth: int = Field(default=1, ge=1)
    sample_threads: int = Field(default=1, ge=1, description="of a worker that draws its batches itself")
    gather_threads: int = Field(default=1, ge=1)
    device: str = Field(default="cpu", description="kind of device that workers compute on")
    gpus: float = Field(default=0.0, ge=0, description="GPUs that each worker needs")
    replicas: list[PlannedReplica] = Field(default=[])
    seats: list[int] = Field(
        default=[], description="the machine of every worker, where what it reads was measured there; else it may move"
    )

    @property
    def unrolled(self) -> int:
        """The number of iterations in the template."""
        return max(1, self.samplers)

    @property
    def drawn_ahead(self) -> int:
        """A batch is drawn when the one so many before it has its rows: the capacity of the pipeline's queues."""
        return self.sample_depth + max(self.samplers, self.sample_threads) + 1

    @property
    def ahead(self) -> int:
        """Iterations of the template that a pipeline works ahead of its step."""
        return -(-(self.drawn_ahead + self.pulled_ahead) // self.unrolled)

    @property
    def pulled_ahead(self) -> int:
        """A batch's rows are fetched when the one so many before it is computed."""
        return self.gather_depth + self.transfer_depth + self.gather_threads + 2


def mini_batch_template(profile: Profile, execution: MiniBatchExecution) -> Workload:
    """The run of a profile's workers over its parts.

    The stores, `server-N`, `sampler-N-N` and `worker-N` are the tasks to be placed; all others are beside one of them.
    """
    if len(execution.stores) != profile.parts:
        raise PenstockError(
            f"The profile was measured with {profile.parts} parts, but the cluster has {len(execution.stores)}"
            " machines: measure again with `penstock profile JOB --cluster` for this cluster.",
            code="mismatched-inputs",
        )
    return _Template(profile, execution).build()


class _Template:
    def __init__(self, profile: Profile, execution: MiniBatchExecution) -> None:
        self._profile, self._shape, self._turns = profile, execution, execution.unrolled
        self._building = WorkloadBuilder("training")
        self._stores = [self._process(name, "store") for name in execution.stores]
        self._servers = [self._process(f"server-{number}", "server") for number in range(execution.servers)]
        self._workers = [self._process(f"worker-{rank}", "worker") for rank in range(profile.workers)]
        self._gradients = self._bytes("gradients")[0][0]
        # One for each request of every worker to every store, so it is looked up once.
        self._serving = self._seconds("serve", "store") / 2

    def build(self) -> Workload:
        steps = [self._pipeline(rank) for rank in range(self._profile.workers)]
        learned = self._profile.transfer("embeddings")
        for turn in range(self._turns):
            computed = [each[turn] for each in steps]
            # The next steps wait for this turn's weights.
            following = [each[(turn + 1) % self._turns] for each in steps]
            lag = 1 if turn + 1 == self._turns else 0
            if learned is not None and any(map(any, learned.bytes)):
                self._learn_rows(turn, learned.bytes, computed, following, lag)
            weights = Summed(str(turn), self._gradients, computed, following, lag)
            if self._servers:
                sum_on_servers(self._building, weights, self._servers, self._seconds("sum", "server"))
            elif len(computed) > 1:
                sum_around_ring(self._building, weights, self._workers)
        return self._building.build()

    def _process(self, name: str, kind: str) -> Item:
        """A process of the run, which takes no time by itself."""
        cores = self._profile.operator(OPERATORS[kind], self._device(kind)).cores
        gpus = self._shape.gpus if kind == "worker" else 0.0
        held = {"cores": cores, "memory_gb": self._profile.memory_gb(kind), "gpus": gpus}
        return self._building.task(name, kind, 0.0, held, follows_itself=False)

    def _device(self, kind: str) -> str:
        """The kind of device: workers may compute on another kind; all else is on CPUs."""
        return self._shape.device if kind == "worker" else "cpu"

    def _seconds(self, operator: str, kind: str = "worker") -> float:
        return float(self._profile.operator(operator, self._device(kind)).seconds.mean)

    def _bytes(self, name: str) -> list[list[float]]:
        """Mean bytes of a transfer from every source to every target."""
        found = self._profile.transfer(name)
        if found is None:
            raise PenstockError(
                f"The profile has no transfer {name}: measure again with `penstock profile JOB`.", code="missing-data"
            )
        return found.bytes

    def _pipeline(self, rank: int) -> list[Item]:
        """A worker's steps, one per turn."""
        building, worker, shape = self._building, self._workers[rank], self._shape
        drawn, placed, computed = [], [], []
        for turn in range(self._turns):
            mark = f"{rank}.{turn}"
            if shape.samplers:
                drawer, kind = self._process(f"sampler-{rank}-{turn}", "sampler"), "sampler"
            else:
                drawer, kind = worker, "worker"
            drawn.append(self._building.work(f"draw {mark}", "draw", self._seconds("sample", kind), drawer))
            placed.append(self._building.work(f"gather {mark}", "gather", self._seconds("gather"), worker))
            computed.append(self._building.work(f"step {mark}", "step", self._seconds("step"), worker))
            building.wait(placed[-1], computed[-1])
        for turn in range(self._turns):
            mark = f"{rank}.{turn}"
            blocks = building.flow(
                drawn[turn], placed[turn], self._bytes("blocks")[0][rank], "blocks",
                name=f"blocks {mark}", coflow=f"blocks {mark}", follows_itself=False,
            )  # fmt: skip
            for store, sizes in zip(self._stores, self._bytes("lists"), strict=True):
                served = self._served(store, f"lists {mark}")
                flow = building.flow(
                    served, drawn[turn], sizes[rank], "lists",
                    name=f"lists {self._name(store)} {mark}", coflow=f"lists {mark}", follows_itself=False,
                )  # fmt: skip
                self._after(drawn, turn, shape.samplers or shape.sample_threads, flow, served)
                self._after(placed, turn, shape.drawn_ahead, flow, served)
            for store, what, size in self._feature_sources(rank):
                served = self._served(store, f"features{what} {mark}")
                building.wait(blocks, served)
                flow = building.flow(
                    served, placed[turn], size, "features",
                    name=f"features {self._name(store)}{what} {mark}", coflow=f"features {mark}", follows_itself=False,
                )  # fmt: skip
                self._after(placed, turn, shape.gather_threads, flow, served)
                self._after(computed, turn, shape.pulled_ahead, flow, served)
            self._after(computed, turn, 1, computed[turn])
        return computed

    def _feature_sources(self, rank: int) -> list[tuple[Item, str, float]]:
        """(store, which replica in words, bytes) of everything that a worker reads features from."""
        found = []
        for part, (store, sizes) in enumerate(zip(self._stores, self._bytes("features"), strict=True)):
            copies = [each for each in self._shape.replicas if each.part == part and each.shares[rank] > 0]
            own = 1.0 - sum(each.shares[rank] for each in copies)
            if own > 1e-9 or not copies:
                found.append((store, "", own * sizes[rank]))
            for each in copies:
                place = self._shape.stores.index(each.store)
                found.append((self._stores[place], f" of part {part}", each.shares[rank] * sizes[rank]))
        return found

    def _served(self, store: Item, what: str) -> Item:
        """A store's work on one request."""
        return self._building.work(f"serve {what} at {self._name(store)}", "serve", self._serving, store)

    def _name(self, store: Item) -> str:
        return self._shape.stores[store.number]

    def _after(self, items: list[Item], turn: int, back: int, *waiting: Item) -> None:
        """Make items of this turn wait for an item `back` iterations earlier."""
        lag = max(0, -(-(back - turn) // self._turns))
        for each in waiting:
            self._building.wait(items[(turn - back) % self._turns], each, lag)

    def _learn_rows(
        self, turn: int, rows: list[list[float]], computed: list[Item], following: list[Item], lag: int
    ) -> None:
        """Gradients of learnable rows are sent to their owners, which update them when all have come; the next step
        reads them.
        """
        for store, sizes in zip(self._stores, rows, strict=True):
            name = self._name(store)
            changed = self._building.work(f"change {turn} at {name}", "change", 0.0, store)
            for rank, size in enumerate(sizes):
                self._building.flow(
                    computed[rank], changed, size, "row gradients",
                    name=f"row gradients {rank}.{turn} to {name}", follows_itself=False,
                )  # fmt: skip
                self._building.flow(
                    changed, following[rank], size, "rows",
                    name=f"rows {name} to {rank}.{turn}", arrival_lag=lag, follows_itself=False,
                )  # fmt: skip


# The feature bytes of a part that each worker gets from replicas, divided as a run's selector would.

_CHUNKS = 40
"""Chunks into which the bytes between a part and a worker are divided."""


def replica_shares(
    cluster: ClusterDocument,
    profile: Profile,
    open_graph: Callable[[], Graph],
    seats: Sequence[int] | None = None,
) -> list[PlannedReplica]:
    """Every chunk goes where it ends first: over the owner's or a replica's link, given their present load.

    `seats` are the workers' machines; None: as in the cluster file. A worker on a replica's machine reads it there.
    """
    features, lists = profile.transfer("features"), profile.transfer("lists")
    if not cluster.replicas or features is None or "replica" not in _allowed(cluster):
        return []
    names = [machine.name for machine in cluster.machines]
    seats = _seats(cluster) if seats is None else seats
    rates, carried = machines_of(cluster, profile.rate).rates, np.zeros(len(names))
    if lists is not None:
        for part, sizes in enumerate(lists.bytes):
            carried[part] += sum(size for size, seat in zip(sizes, seats, strict=True) if seat != part)
    covered = covered_reads(cluster, profile, open_graph)
    shares = np.zeros((len(cluster.replicas), len(seats)))
    for chunk in range(_CHUNKS):
        for part, sizes in enumerate(features.bytes):
            for rank, (size, seat) in enumerate(zip(sizes, seats, strict=True)):
                if seat == part:
                    continue
                held = [
                    number
                    for number, each in enumerate(cluster.replicas)
                    if each.part == part and chunk < covered[number] * _CHUNKS
                ]
                places = {number: names.index(cluster.replicas[number].machine) for number in held}
                if any(place == seat for place in places.values()):
                    chosen = next(number for number, place in places.items() if place == seat)
                    shares[chosen, rank] += 1 / _CHUNKS
                    continue
                if "owner" in _allowed(cluster) or not held:
                    places[-1] = part
                chosen = min(
                    places, key=lambda number: (carried[places[number]] + size / _CHUNKS) / rates[places[number]]
                )
                carried[places[chosen]] += size / _CHUNKS
                if chosen >= 0:
                    shares[chosen, rank] += 1 / _CHUNKS
    return [
        PlannedReplica(part=each.part, store=f"store-{each.machine}", shares=[round(float(x), 6) for x in row])
        for each, row in zip(cluster.replicas, shares, strict=True)
    ]


def covered_reads(cluster: ClusterDocument, profile: Profile, open_graph: Callable[[], Graph]) -> list[float]:
    """For each replica the share of its part's feature bytes that its rows serve."""
    if all(each.rows == "all" for each in cluster.replicas):
        return [1.0] * len(cluster.replicas)
    graph, features = open_graph(), profile.transfer("features")
    part_of = parts_of(graph, cluster.partition, len(cluster.machines), cluster.method)
    found = []
    for each in cluster.replicas:
        sizes = [size for size in (features.bytes[each.part] if features is not None else []) if size > 0]
        pulled = float(np.mean(sizes)) if sizes else 0.0
        field = str(profile.job.get("features", "x"))
        found.append(1.0 if each.rows == "all" else _covered(_reads(each, cluster, graph, field, part_of), pulled))
    return found


class _PartReads(NamedTuple):
    """How often rows of a part, of one node type, are read."""

    entries: Array
    """Entries of other parts' lists that refer to each row."""
    held: Array
    """Whether a replica holds it."""
    row_bytes: int


def _reads(replica: Replica, cluster: ClusterDocument, graph: Graph, field: str, part_of: Array) -> list[_PartReads]:
    here = [machine.name for machine in cluster.machines].index(replica.machine)
    starts = np.cumsum([0, *(graph.nodes[name].count for name in graph.node_types)])
    offsets = dict(zip(graph.node_types, starts, strict=False))
    found = []
    for name in graph.node_types:
        table = graph.nodes[name].fields.get(field)
        if table is None:
            continue
        near, others = np.zeros(graph.nodes[name].count, np.int64), np.zeros(graph.nodes[name].count, np.int64)
        for (source, _, target), edges in graph.edges.items():
            if source == name:
                there = part_of[offsets[target] + edges.destinations()]
                np.add.at(near, edges.indices[there == here], 1)
                np.add.at(others, edges.indices[there != replica.part], 1)
        mine = np.flatnonzero(part_of[offsets[name] :][: len(near)] == replica.part)
        wanted = replica.rows if isinstance(replica.rows, int) else max(1, round(float(replica.rows) * len(mine)))
        held = np.zeros(len(mine), np.bool_)
        held[by_counts(near[mine], wanted)] = True
        row_bytes = encoding_for(cluster.wire_type, table.dtype, table.shape[1:], None).row_bytes
        found.append(_PartReads(others[mine], held, row_bytes))
    return found


def _covered(reads: Sequence[_PartReads], pulled: float) -> float:
    """The share of held rows in the bytes that a batch fetches from a part.

    A batch fetches a row once however often it reads it. With reads in proportion to a row's entries in lists, a row is
    fetched with probability 1 - exp(-rate * entries); the rate is such that a batch fetches as many bytes as in the
    profile.
    """
    entries = np.concatenate([np.empty(0, np.int64), *(each.entries for each in reads)])
    sizes = np.concatenate([np.empty(0), *(np.full(len(each.entries), each.row_bytes) for each in reads)])
    if not entries.any():
        return 0.0

    def expected(log_rate: float) -> Array:
        """The expected bytes of every row, at a given logarithm of the rate."""
        return np.asarray(-sizes * np.expm1(-np.exp(log_rate) * entries))

    rarely, always = np.log(1e-9 / entries.max()), np.log(50.0)
    rate = always if pulled >= expected(always).sum() else rarely
    if expected(rarely).sum() < pulled < expected(always).sum():
        rate = brentq(lambda each: expected(each).sum() - pulled, rarely, always)
    bytes_of, held = expected(rate), np.concatenate([each.held for each in reads])
    return float(bytes_of[held].sum() / bytes_of.sum())


def _allowed(cluster: ClusterDocument) -> list[str]:
    return ["owner", "replica"] if cluster.feature_paths == "auto" else list(cluster.feature_paths)


_SERVING = 2
"""Threads with which a store answers."""
_VARYING = {"draw": "sample", "gather": "gather", "step": "step"}
"""Kinds of tasks whose seconds vary as those of an operator do."""
_WORDS = {
    "draw": "drawing batches",
    "serve": "answering requests",
    "gather": "putting rows in place",
    "step": "computing",
    "sum": "summing gradients",
}


def _set_up(run: PlannedRun) -> MiniBatchExecution:
    cluster, job = run.cluster, run.job
    return MiniBatchExecution(
        stores=[f"store-{machine.name}" for machine in cluster.machines],
        samplers=cluster.samplers,
        servers=cluster.servers if cluster.reduce == "servers" else 0,
        sample_depth=max(job.sample_depth, cluster.samplers + 1),
        gather_depth=job.gather_depth,
        transfer_depth=job.transfer_depth,
        sample_threads=job.drawing_threads,
        gather_threads=job.reading_threads,
        device=run.device,
        gpus=run.gpus,
        replicas=replica_shares(cluster, run.profile, run.open_graph, run.seats),
        # Workers were measured beside their parts where their sampler depends on what is local.
        seats=_seats(cluster) if SAMPLERS[str(run.profile.job.get("sampler", DEFAULT_SAMPLER))].local else [],
    )


def _seats(cluster: ClusterDocument) -> list[int]:
    """The machine of every worker in the cluster file."""
    return [number for number, machine in enumerate(cluster.machines) for _ in range(machine.workers)]


def _build(profile: Profile, execution: MiniBatchExecution) -> ExecutionWorkload:
    load = mini_batch_template(profile, execution)
    serving = profile.operator("serve").seconds.mean

    def slowest_store(machines: Machines) -> float:
        """Seconds of the slowest store for all workers' requests: the simulator gives each request its own thread."""
        return profile.workers * serving / _SERVING / min(machines.speeds[: len(execution.stores)])

    notes = []
    if execution.device != "cpu" and profile.operator("step", execution.device).device == "cpu":
        notes.append("Steps were measured on processors: on GPUs they take less, and so may an iteration.")
    return ExecutionWorkload(
        load,
        memory=_device_memory(profile, execution.device),
        spreads=_spreads(profile, execution),
        pinned={name: number for number, name in enumerate(execution.stores)}
        | {f"worker-{rank}": seat for rank, seat in enumerate(execution.seats)},
        owners="store",
        unrolled=execution.unrolled,
        ahead=execution.ahead,
        floor_s=slowest_store,
        words=_WORDS,
        notes=tuple(notes),
    )


def _device_memory(profile: Profile, device: str) -> tuple[HeldMemory, ...]:
    """What each worker holds on its GPU, if it was measured."""
    gb = profile.memory_gb("worker", device) if device != "cpu" else 0.0
    return tuple(HeldMemory(f"worker-{rank}", gb, device) for rank in range(profile.workers)) if gb else ()


def _spreads(profile: Profile, execution: MiniBatchExecution) -> dict[str, Spread]:
    """How amounts vary, by kind of task or flow."""
    spreads: dict[str, Spread] = {}
    for kind, operator in _VARYING.items():
        elsewhere = kind == "draw" and execution.samplers
        shape = profile.operator(operator, "cpu" if elsewhere else execution.device).seconds.shape
        if len(shape) > 1:
            spreads[kind] = Quantiles(shape)
    for kind in ("lists", "features", "blocks"):
        transfer = profile.transfer(kind)
        if transfer is not None and len(transfer.shape) > 1:
            spreads[kind] = Quantiles(transfer.shape)
    return spreads


def conditions(cluster: ClusterDocument) -> Mapping[str, Any]:
    """Settings of a cluster that decide how many bytes are sent, and who computes."""
    servers = cluster.servers if cluster.reduce == "servers" else 0
    cached = {"remote_cache_mb": cluster.remote_cache_mb} if cluster.remote_cache_mb else {}
    return {"wire_type": cluster.wire_type, "reduce": cluster.reduce, "servers": servers, **cached}


MINI_BATCH = WorkloadEntry("mini-batch", MiniBatchExecution, _set_up, _build, conditions, uses_replicas=True)
