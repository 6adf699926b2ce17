"""All that one step of training depends on."""

from dataclasses import dataclass, field
from typing import Literal

from penstock.errors import PenstockError
from penstock.simulate.llm.fabric import Seat, Servers
from penstock.simulate.llm.model import Model
from penstock.simulate.llm.parallelism import Parallelism


@dataclass(frozen=True)
class Compute:
    """What GPUs take. A time that is given (milliseconds a layer and microbatch, forward) counts before the rate."""

    tflops: float = 312.0  # of a GPU, 16 bit
    efficiency: float = 0.5  # what a layer reaches of it
    backward: float = 2.0  # times the forward pass; 3 where activations are computed again
    attention_ms: float | None = None
    gate_ms: float = 0.0
    feed_forward_ms: float | None = None  # of a rank with an equal part of the tokens
    update_ms: float = 0.0  # of the optimiser, a layer


@dataclass(frozen=True)
class ExpertExchange:
    """How tokens go to their experts and back."""

    schedule: str = "fair"  # of penstock.coflow.matching
    skew: float = 0.5  # exponent of the experts' popularity; 0: all alike
    overhead_us: float = 10.0  # of every phase of a schedule
    detail: Literal["auto", "pairs", "ports"] = "auto"

    @property
    def could_be_pairs(self) -> bool:
        """Whether every pair of ranks may have a flow of its own."""
        return self.schedule == "fair" and self.detail != "ports"


@dataclass(frozen=True)
class GradientReduction:
    """How gradients are summed and parameters handed out: ZeRO-2's reduce-scatter and all-gather."""

    shape: Literal["ring", "tree"] = "ring"
    bucket_layers: int = 1
    gradient_bytes: int = 2  # of a parameter
    parameter_bytes: int = 2
    latency_us: float = 1.0  # of a hop
    clip: Literal["none", "norm"] = "none"  # norm: no parameter changes before all gradients are summed


@dataclass(frozen=True)
class LlmJob:
    """A model on a cluster."""

    model: Model
    parallel: Parallelism
    servers: Servers
    compute: Compute = field(default_factory=Compute)
    exchange: ExpertExchange = field(default_factory=ExpertExchange)
    reduction: GradientReduction = field(default_factory=GradientReduction)
    simulate: Literal["representatives", "all"] = "representatives"
    seed: int = 0

    def __post_init__(self) -> None:
        self.parallel.check(self.model, self.servers.gpus)
        there = self.servers.count * self.servers.gpus
        if self.parallel.gpus > there:
            raise PenstockError(
                f"The job needs {self.parallel.gpus:,} GPUs, and {self.servers.count:,} servers have {there:,}: give"
                " more servers, or lower a degree.",
                code="infeasible",
            )
        rail = max(1, self.servers.gpus // self.servers.nics)
        if rail % self.parallel.tensor and self.parallel.tensor % rail:
            raise PenstockError(
                f"tensor={self.parallel.tensor} does not fit NICs that serve {rail} GPUs each: one must be divisible"
                " by the other.",
                code="unsupported-combination",
            )
        if self.servers.routing == "ecmp" and self.parallel.expert > 1 and not self.exchange.could_be_pairs:
            raise PenstockError(
                "routing ecmp needs the flows between pairs of devices: set all_to_all to schedule fair and detail"
                " pairs, or routing to spray.",
                code="unsupported-combination",
            )

    @property
    def replicas(self) -> int:
        """Data ranks that are simulated."""
        return self.parallel.replicas(self.servers.gpus, self.simulate == "all")

    def seat(self, stage: int, rank: int) -> Seat:
        """Where the device of a stage and a data rank is, simulated or not."""
        first = (rank + self.parallel.data * stage) * self.parallel.tensor
        return Seat(first // self.servers.gpus, first % self.servers.gpus, self.parallel.tensor)
