"""One of our own training runs as a workload: who sends what to whom, and what waits for what.

A worker's pipeline is repeated: neighbour lists from the stores to whoever draws, the batch to the worker, features
from the stores to the worker, rows put in place, the step, and gradients to servers or around a ring. With K samplers
a worker, K batches are drawn at once, each by the next sampler in turn: the template holds K iterations then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.cost.profile import Profile
from penstock.errors import PenstockError
from penstock.simulate.workload import Workload
from penstock.simulate.workload_builder import Item, WorkloadBuilder

_ROUNDS = 8
"""Steps of a ring that are simulated at most."""


@dataclass(frozen=True)
class TrainingShape:
    """How a run is set up, beside what its iterations cost."""

    stores: Sequence[str]
    """A task's name for every part."""
    samplers: int = 0
    """Sampling tasks a worker; 0: it draws its batches itself."""
    servers: int = 0
    """Parameter servers; 0: the workers reduce around a ring."""
    sample_depth: int = 2
    gather_depth: int = 2
    transfer_depth: int = 1
    sample_threads: int = 1
    """Of a worker that draws its batches itself."""
    gather_threads: int = 1

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


def training_workload(profile: Profile, shape: TrainingShape, gpus: float = 0.0) -> Workload:
    """The run of a profile's workers over its parts, each with so many GPUs.

    The stores, `server-N`, `sampler-N-N` and `worker-N` are the tasks to be placed; all else stays beside one.
    """
    if len(shape.stores) != profile.parts:
        raise PenstockError(
            f"The profile was measured with {profile.parts} parts, but the cluster has {len(shape.stores)} machines:"
            " measure again with `penstock profile JOB --cluster` for this cluster.",
            code="mismatched-inputs",
        )
    return _Template(profile, shape, gpus).build()


class _Template:
    def __init__(self, profile: Profile, shape: TrainingShape, gpus: float) -> None:
        self._profile, self._shape, self._turns, self._gpus = profile, shape, shape.unrolled, gpus
        self._building = WorkloadBuilder("training")
        self._stores = [self._task(name, "store", 0.0) for name in shape.stores]
        self._servers = [self._task(f"server-{number}", "server", 0.0) for number in range(shape.servers)]
        self._workers = [self._task(f"worker-{rank}", "worker", 0.0) for rank in range(profile.workers)]

    def build(self) -> Workload:
        steps = [self._pipeline(rank) for rank in range(self._profile.workers)]
        for turn in range(self._turns):
            computed = [each[turn] for each in steps]
            # Whoever computes next waits for this turn's weights.
            following = [each[(turn + 1) % self._turns] for each in steps]
            lag = 1 if turn + 1 == self._turns else 0
            if any(map(any, self._profile.embeddings)):
                self._learn_rows(turn, computed, following, lag)
            if self._servers:
                self._serve_weights(turn, computed, following, lag)
            elif len(computed) > 1:
                self._ring(turn, computed, following, lag)
        return self._building.build()

    def _task(self, name: str, kind: str, seconds: float, beside: Item | None = None) -> Item:
        held: Mapping[str, float] | None = None
        if beside is None and kind in self._profile.tasks:
            cost = self._profile.tasks[kind]
            gpus = self._gpus if kind == "worker" else 0.0
            held = {"cores": cost.cores, "memory_gb": cost.memory_gb, "gpus": gpus}
        return self._building.task(name, kind, seconds, held, follows_itself=False, beside=beside)

    def _seconds(self, kind: str) -> float:
        cost = self._profile.tasks.get(kind)  # type: ignore[call-overload]
        return 0.0 if cost is None else float(cost.seconds.mean)

    def _pipeline(self, rank: int) -> list[Item]:
        """A worker's steps, one a turn."""
        building, worker, shape = self._building, self._workers[rank], self._shape
        drawn, placed, computed = [], [], []
        for turn in range(self._turns):
            mark = f"{rank}.{turn}"
            if shape.samplers:
                drawer = self._task(f"sampler-{rank}-{turn}", "sampler", 0.0)
            else:
                drawer = worker
            drawn.append(self._task(f"draw {mark}", "draw", self._seconds("sampler"), drawer))
            placed.append(self._task(f"gather {mark}", "gather", self._seconds("gather"), worker))
            computed.append(self._task(f"step {mark}", "step", self._seconds("worker"), worker))
            building.wait(placed[-1], computed[-1])
        for turn in range(self._turns):
            mark = f"{rank}.{turn}"
            blocks = building.flow(
                drawn[turn], placed[turn], self._profile.blocks[rank], "blocks",
                name=f"blocks {mark}", coflow=f"blocks {mark}", follows_itself=False,
            )  # fmt: skip
            for store, sizes in zip(self._stores, self._profile.lists, strict=True):
                served = self._served(store, f"lists {mark}")
                flow = building.flow(
                    served, drawn[turn], sizes[rank], "lists",
                    name=f"lists {self._name(store)} {mark}", coflow=f"lists {mark}", follows_itself=False,
                )  # fmt: skip
                self._after(drawn, turn, shape.samplers or shape.sample_threads, flow, served)
                self._after(placed, turn, shape.drawn_ahead, flow, served)
            for store, sizes in zip(self._stores, self._profile.features, strict=True):
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
        share = self._seconds("store") / 2
        return self._task(f"serve {what} at {self._name(store)}", "serve", share, store)

    def _name(self, store: Item) -> str:
        return self._shape.stores[store.number]

    def _after(self, items: list[Item], turn: int, back: int, *waiting: Item) -> None:
        """Let something of this turn wait for an item `back` iterations earlier."""
        lag = max(0, -(-(back - turn) // self._turns))
        for each in waiting:
            self._building.wait(items[(turn - back) % self._turns], each, lag)

    def _learn_rows(self, turn: int, computed: list[Item], following: list[Item], lag: int) -> None:
        """Gradients of learnable rows to their owners, who change them when all have come; the next step reads them."""
        for store, sizes in zip(self._stores, self._profile.embeddings, strict=True):
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
        shard = self._profile.gradients / len(self._servers)
        for number, server in enumerate(self._servers):
            summed = self._task(f"sum {number}.{turn}", "sum", self._seconds("server"), server)
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
        sent = self._profile.gradients * 2 * (size - 1) / size / rounds
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
