"""One of our own training runs as a workload: who sends what to whom, and what waits for what.

A worker's pipeline is repeated: neighbour lists from the stores to whoever draws, the batch to the worker, features
from the stores to the worker, rows put in place, the step, and gradients to servers or around a ring. With K samplers
a worker, K batches are drawn at once, each by the next sampler in turn: the template holds K iterations then.
"""

from pydantic import Field

from penstock.cost.profile import Profile
from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument
from penstock.simulate.workload import Workload
from penstock.simulate.workload_builder import Item, WorkloadBuilder

OPERATORS = {"store": "serve", "sampler": "sample", "worker": "step", "server": "sum"}
"""For each kind of process, the operator that it is there for: it keeps as many cores busy."""
_ROUNDS = 8
"""Steps of a ring that are simulated at most."""


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
            if self._servers:
                self._serve_weights(turn, computed, following, lag)
            elif len(computed) > 1:
                self._ring(turn, computed, following, lag)
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
            for store, sizes in zip(self._stores, self._bytes("features"), strict=True):
                served = self._served(store, f"features {mark}")
                building.wait(blocks, served)
                flow = building.flow(
                    served, placed[turn], sizes[rank], "features",
                    name=f"features {self._name(store)} {mark}", coflow=f"features {mark}", follows_itself=False,
                )  # fmt: skip
                self._after(placed, turn, shape.gather_threads, flow, served)
                self._after(computed, turn, shape.pulled_ahead, flow, served)
            self._after(computed, turn, 1, computed[turn])
        return computed

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

    def _serve_weights(self, turn: int, computed: list[Item], following: list[Item], lag: int) -> None:
        shard = self._gradients / len(self._servers)
        for number, server in enumerate(self._servers):
            summed = self._task(f"sum {number}.{turn}", "sum", self._seconds("sum", "server"), server)
            for rank, (step, next_step) in enumerate(zip(computed, following, strict=True)):
                self._building.flow(
                    step, summed, shard, "gradients",
                    name=f"gradients {rank}.{turn} to {number}", follows_itself=False,
                )  # fmt: skip
                self._building.flow(
                    summed, next_step, shard, "weights",
                    name=f"weights {number} to {rank}.{turn}", arrival_lag=lag, follows_itself=False,
                )  # fmt: skip

    def _ring(self, turn: int, computed: list[Item], following: list[Item], lag: int) -> None:
        """2(n - 1) steps in which every worker sends an n-th to the next, one after the other.

        A ring of many workers is drawn with fewer and larger steps, as many bytes in all. These do not bring word of a
        late worker all the way around, so all wait for the last one first: with every step, each would wait for it too.
        """
        size, building = len(computed), self._building
        rounds = min(2 * (size - 1), _ROUNDS)
        sent = self._gradients * 2 * (size - 1) / size / rounds
        hops = [
            [self._task(f"hop {rank}.{turn}.{hop}", "hop", 0.0, self._workers[rank]) for hop in range(rounds)]
            for rank in range(size)
        ]
        first = computed if rounds == 2 * (size - 1) else [self._all_computed(turn, computed)] * size
        for rank in range(size):
            building.wait(first[rank], hops[rank][0])
            right = (rank + 1) % size
            for hop in range(rounds):
                ends = hop == rounds - 1
                sending = building.flow(
                    hops[rank][hop], following[right] if ends else hops[right][hop + 1], sent, "ring",
                    name=f"ring {rank}.{turn}.{hop}", coflow=f"ring {turn}.{hop}",
                    arrival_lag=lag if ends else 0, follows_itself=False,
                )  # fmt: skip
                if not ends:
                    # A worker sends one step's share after the other.
                    building.wait(sending, hops[rank][hop + 1])

    def _all_computed(self, turn: int, computed: list[Item]) -> Item:
        """A task that ends when every worker has computed."""
        last = self._task(f"computed {turn}", "hop", 0.0, self._workers[0])
        for each in computed:
            self._building.wait(each, last)
        return last
