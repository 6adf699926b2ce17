"""The cluster document: its machines, and how a run is spread over them. The job stays the same."""

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from penstock.graph.documents import StrictDocument, name_in
from penstock.registry import Registry
from penstock.wire.options import WireOptions

# What other packages need to know of the launchers, which cluster files name.


class LauncherFacts(NamedTuple):
    """What other packages need to know of a launcher; `cluster.launch.LAUNCHERS` has the code that starts tasks."""

    one_host: bool = False
    """Whether all machines of the cluster file are this host."""
    discovers: bool = False
    """Whether it can find out by itself which machines there are."""
    gives_gpus: bool = False
    """Whether it makes each worker see only its own GPU."""


NO_FACTS = LauncherFacts()
LAUNCHER_FACTS: Registry[LauncherFacts] = Registry(
    "launcher",
    "penstock.launchers",
    {
        "local": LauncherFacts(one_host=True),
        "ray": LauncherFacts(discovers=True, gives_gpus=True),
        "environment": LauncherFacts(discovers=True),
    },
    LauncherFacts,
    part="facts",
)


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,40}$")]
LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Loopback addresses, which do not say which machine is meant."""


if TYPE_CHECKING:
    LauncherName = str
else:
    LauncherName = name_in(LAUNCHER_FACTS)


class Background(StrictDocument):
    """What other tenants of a machine keep busy."""

    cores: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    gbps: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="Gbit/s of its link, each way")

    def check(self, machine: str, cores: float | None, nic_gbps: float | None) -> None:
        """Refuse tenants that leave nothing of a machine, or of what is not known."""
        found = (("cores", self.cores, "cores", cores), ("gbps", self.gbps, "nic_gbps", nic_gbps))
        for name, taken, whole, there in found:
            if taken and there is None:
                raise ValueError(f"machine {machine} has background.{name} but no {whole}; say what it has")
            if there is not None and taken >= there:
                raise ValueError(
                    f"machine {machine} has {whole}: {there:g}, of which background.{name}: {taken:g} leaves nothing;"
                    " give less"
                )


class TransportOptions(StrictDocument):
    """What a network does below a fluid."""

    kind: Literal["tcp", "credit"] = Field(
        default="tcp", description="tcp: windows that double, and timeouts; credit: the receiver grants what is sent"
    )
    hop_us: float = Field(
        default=10.0, ge=0, le=1e6, description="microseconds one way over one link, with the switch or host behind it"
    )
    packet_bytes: int = Field(default=1500, ge=64, le=1 << 20)
    window: int = Field(default=10, ge=1, le=1 << 20, description="packets that are sent before the first answer")
    buffer_kb: float | None = Field(
        default=None, gt=0, le=1e9, description="10^3 bytes that wait at a port of a switch; none: as many as come"
    )
    timeout_ms: float = Field(
        default=200.0,
        gt=0,
        le=1e6,
        description="the least wait for an answer; as long an idle path starts slowly again",
    )
    uplinks: int = Field(default=1, ge=1, le=1024, description="links of equal cost that make up a rack's uplink")
    paths: int = Field(default=1, ge=1, le=4096, description="hashes that divide a flow over these links")
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="of hashes, and of who waits for a timeout")

    @model_validator(mode="after")
    def _check(self) -> "TransportOptions":
        if self.paths > 1 and self.uplinks == 1:
            raise ValueError("paths divides flows over the links of an uplink; give uplinks, or leave out paths")
        if self.kind == "credit" and self.buffer_kb is not None:
            raise ValueError("buffer_kb is for kind: tcp; credits never overflow a port, so leave it out")
        return self


class Machine(StrictDocument):
    """One machine. A resource that is not given is unlimited."""

    name: Name
    address: str = Field(
        default="127.0.0.1", description="where the other machines reach it; its tasks listen there alone"
    )
    workers: int = Field(default=1, ge=0, le=256, description="processes that train")
    speed: float = Field(
        default=1.0, gt=0, description="how fast its workers are beside others': their share of every batch"
    )
    cores: int | None = Field(default=None, ge=1)
    memory_gb: float | None = Field(default=None, gt=0)
    gpus: int = Field(default=0, ge=0, description="for its workers; the n-th worker computes on the n-th")
    nic_gbps: float | None = Field(default=None, gt=0)
    rack: str | None = None
    background: Background | None = Field(default=None, description="what other tenants take of it; plans count on it")

    @model_validator(mode="after")
    def _leaves_some(self) -> "Machine":
        if self.background is not None:
            self.background.check(self.name, self.cores, self.nic_gbps)
        return self


class FailureOptions(StrictDocument):
    """How failed tasks are handled."""

    restarts: int = Field(default=5, ge=0, description="how often one task is started again before the run gives up")
    patience: float = Field(
        default=60.0, gt=0, description="seconds a task that runs may be silent before it counts as dead"
    )
    start_patience: float = Field(
        default=300.0, gt=0, description="seconds a task may take to start, until its first sign"
    )
    elastic: bool = Field(
        default=False,
        description="continue on the other machines when one is lost; they must see its parts",
    )


UNCUT = "none"
"""The `method` that does not cut a graph."""
MOST_REPLICAS = 4
"""The most replicas of one part."""
FeaturePath = Literal["owner", "replica"]


class Replica(StrictDocument):
    """A second copy of a part's feature rows, at the store of another machine."""

    part: int = Field(ge=0)
    machine: Name
    rows: Literal["all"] | Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] = Field(
        default="all",
        description="all, a number of rows or a share of them: those that occur most in the lists of that machine's"
        " parts, of each node type",
    )


class RayOptions(StrictDocument):
    """Options of the launcher `ray`."""

    address: str | None = Field(
        default=None,
        description="the Ray cluster: HOST:PORT, or auto for the one this host is a node of; if neither this nor"
        " RAY_ADDRESS is said, one is started for the run",
    )
    spares: bool = Field(
        default=False, description="whether a machine whose node is gone may move to one that no machine is on"
    )
    start_timeout: float = Field(
        default=120.0, gt=0, description="seconds to reach a Ray cluster, or to start one, before the run gives up"
    )


class ClusterDocument(StrictDocument):
    """The whole of a cluster file."""

    machines: list[Machine] = Field(min_length=1, max_length=1024)
    oversubscription: float = Field(
        default=1.0, ge=1, description="how much more the machines of a rack can send than its uplink carries"
    )
    transport: TransportOptions | None = Field(
        default=None, description="what plans know of the network below a fluid; none: flows are fluids"
    )
    uplink_background_gbps: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default={}, description="rack -> Gbit/s of its uplink that other tenants take, each way"
    )
    partition: str | None = Field(
        default=None, description="a folder with the graph cut into parts; cut at the start if none"
    )
    method: str = Field(
        default="metis", description="how it is cut then; none: all workers of one machine open the graph's own folder"
    )
    launcher: LauncherName = Field(
        default="local",
        description="who starts the tasks: this host, Ray, or torchrun or srun, under which every process of the job"
        " runs the same command",
    )
    ray: RayOptions = RayOptions()
    samplers: int = Field(default=0, ge=0, le=16, description="sampling processes a worker; 0: it samples by itself")
    reduce: Literal["all-reduce", "servers"] = Field(
        default="all-reduce", description="how gradients are summed: among the workers, or by parameter servers"
    )
    reduction: Literal["auto", "torch", "wire"] = Field(
        default="auto",
        description="by what all-reduce sums: torch (NCCL where every worker has a GPU of its own, else gloo: both send"
        " in the clear whatever the wire's security is), wire (as encrypted as everything else; on the hosts), or auto"
        " (wire where workers are on several hosts, torch where all are on one)",
    )
    servers: int = Field(default=1, ge=1, le=64, description="parameter servers, if they sum")
    share_gpus: bool = Field(
        default=False, description="let several workers of a machine with fewer GPUs compute on the same one"
    )
    wire_type: Literal["stored", "float16", "int8"] = Field(default="stored", description="how features travel")
    wire_rounding: Literal["nearest", "stochastic"] = Field(
        default="nearest",
        description="how wire_type rounds: to the nearest number, or up or down at random without bias, anew in every"
        " epoch; where remote_cache_mb keeps rows, once for the run",
    )
    remote_cache_mb: float = Field(
        default=0,
        ge=0,
        allow_inf_nan=False,
        description="memory at each worker for feature rows of other machines, in MiB: rows that it reads most travel"
        " once; 0: none",
    )
    replicas: list[Replica] = Field(default=[], max_length=256, description="second copies of parts' feature rows")
    feature_paths: Literal["auto"] | Annotated[list[FeaturePath], Field(min_length=1)] = Field(
        default="auto",
        description="where feature rows that a replica holds may come from: auto (both, divided by what pulls take),"
        " or some of owner and replica",
    )
    failure: FailureOptions = FailureOptions()
    wire: WireOptions = Field(default_factory=WireOptions)

    @model_validator(mode="after")
    def _check(self) -> "ClusterDocument":
        names = [machine.name for machine in self.machines]
        if len(set(names)) < len(names):
            raise ValueError("two machines have the same name")
        if not self.workers:
            raise ValueError("no machine has a worker")
        check_replicas(self.replicas, names)
        if self.method == UNCUT and len(self.machines) > 1:
            raise ValueError("method: none leaves the graph whole, which is for one machine; name another method")
        if self.wire_rounding == "stochastic" and self.wire_type == "stored":
            raise ValueError("wire_rounding: stochastic rounds nothing with wire_type: stored; name float16 or int8")
        return self

    @property
    def workers(self) -> int:
        """The number of workers on all machines."""
        return sum(machine.workers for machine in self.machines)


def check_replicas(replicas: list[Replica], machines: list[str]) -> None:
    """Refuse replicas on machines that do not exist, and more than `MOST_REPLICAS` of a part."""
    for place, replica in enumerate(replicas):
        where, before = f"replicas[{place}]", replicas[:place]
        if replica.machine not in machines:
            raise ValueError(f"{where}: no machine is called {replica.machine!r}; there are {', '.join(machines)}")
        if any((each.part, each.machine) == (replica.part, replica.machine) for each in before):
            raise ValueError(f"{where}: part {replica.part} has a replica on {replica.machine} already; keep one")
        if sum(each.part == replica.part for each in before) == MOST_REPLICAS:
            raise ValueError(
                f"{where}: part {replica.part} has more than {MOST_REPLICAS} replicas; keep {MOST_REPLICAS}"
            )
