"""One of our own training runs as a workload: who sends what to whom, and what waits for what.

A worker's pipeline is repeated: neighbour lists from the stores to whoever draws, the batch to the worker, features
from the stores to the worker, rows put in place, the step, and gradients to servers or around a ring. With K samplers
a worker, K batches are drawn at once, each by the next sampler in turn: the template holds K iterations then.
"""

from pydantic import Field

from penstock.cost.profile import Profile
from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument
from penstock.plan.workloads.gradient_sums import Summed, sum_around_ring, sum_on_servers
from penstock.simulate.workload import Workload
from penstock.simulate.workload_builder import Item, WorkloadBuilder

OPERATORS = {"store": "serve", "sampler": "sample", "worker": "step", "server": "sum"}
"""For each kind of process, the operator that it is there for: it keeps as many cores busy."""


class PlannedReplica(StrictDocument):
    """A second copy of a part's features at another store."""

    part: int = Field(ge=0)
    store: str
    shares: list[float] = Field(description="by worker, of the part's feature bytes that come from here")


class MiniBatchExecution(StrictDocument):
    """How a run is set up, beside what its iterations cost."""

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
        """A batch is drawn when the one so many before it has its rows: what the pipeline's queues hold."""
        return self.sample_depth + max(self.samplers, self.sample_threads) + 1

    @property
    def ahead(self) -> int:
        """Iterations of the template that a pipeline works ahead of its step."""
        return -(-(self.drawn_ahead + self.pulled_ahead) // self.unrolled)

    @property
    def pulled_ahead(self) -> int:
        """A batch's rows are pulled when the one so many before it is computed."""
        return self.gather_depth + self.transfer_depth + self.gather_threads + 2


def mini_batch_template(profile: Profile, execution: MiniBatchExecution) -> Workload:
    """The run of a profile's workers over its parts.

    The stores, `server-N`, `sampler-N-N` and `worker-N` are the tasks to be placed; all else stays beside one.
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
        # One for each request of every worker to every store: looked up once.
        self._serving = self._seconds("serve", "store") / 2

    def build(self) -> Workload:
        steps = [self._pipeline(rank) for rank in range(self._profile.workers)]
        learned = self._profile.transfer("embeddings")
        for turn in range(self._turns):
            computed = [each[turn] for each in steps]
            # Whoever computes next waits for this turn's weights.
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

    def _task(self, name: str, kind: str, seconds: float, beside: Item) -> Item:
        """Work of a process."""
        return self._building.task(name, kind, seconds, None, follows_itself=False, beside=beside)

    def _device(self, kind: str) -> str:
        """Workers may compute on another kind of device; all else is on processors."""
        return self._shape.device if kind == "worker" else "cpu"

    def _seconds(self, operator: str, kind: str = "worker") -> float:
        return float(self._profile.operator(operator, self._device(kind)).seconds.mean)

    def _bytes(self, name: str) -> list[list[float]]:
        """From every source to every target."""
        found = self._profile.transfer(name)
        if found is None:
            raise PenstockError(
                f"The profile has no transfer {name}: measure again with `penstock profile JOB`.", code="missing-data"
            )
        return found.bytes

    def _pipeline(self, rank: int) -> list[Item]:
        """A worker's steps, one a turn."""
        building, worker, shape = self._building, self._workers[rank], self._shape
        drawn, placed, computed = [], [], []
        for turn in range(self._turns):
            mark = f"{rank}.{turn}"
            if shape.samplers:
                drawer, kind = self._process(f"sampler-{rank}-{turn}", "sampler"), "sampler"
            else:
                drawer, kind = worker, "worker"
            drawn.append(self._task(f"draw {mark}", "draw", self._seconds("sample", kind), drawer))
            placed.append(self._task(f"gather {mark}", "gather", self._seconds("gather"), worker))
            computed.append(self._task(f"step {mark}", "step", self._seconds("step"), worker))
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
        return self._task(f"serve {what} at {self._name(store)}", "serve", self._serving, store)

    def _name(self, store: Item) -> str:
        return self._shape.stores[store.number]

    def _after(self, items: list[Item], turn: int, back: int, *waiting: Item) -> None:
        """Let something of this turn wait for an item `back` iterations earlier."""
        lag = max(0, -(-(back - turn) // self._turns))
        for each in waiting:
            self._building.wait(items[(turn - back) % self._turns], each, lag)

    def _learn_rows(
        self, turn: int, rows: list[list[float]], computed: list[Item], following: list[Item], lag: int
    ) -> None:
        """Gradients of learnable rows to their owners, who change them when all have come; the next step reads them."""
        for store, sizes in zip(self._stores, rows, strict=True):
            name = self._name(store)
            changed = self._task(f"change {turn} at {name}", "change", 0.0, store)
            for rank, size in enumerate(sizes):
                self._building.flow(
                    computed[rank], changed, size, "row gradients",
                    name=f"row gradients {rank}.{turn} to {name}", follows_itself=False,
                )  # fmt: skip
                self._building.flow(
                    changed, following[rank], size, "rows",
                    name=f"rows {name} to {rank}.{turn}", arrival_lag=lag, follows_itself=False,
                )  # fmt: skip
