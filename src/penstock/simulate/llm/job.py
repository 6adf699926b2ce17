"""All inputs of one training step, and its costs in seconds and bytes.

Costs are those of a device, which is all GPUs of a tensor group together: they all send the same.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from penstock.coflow.matching import SCHEDULES
from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, name_in
from penstock.simulate.llm.fabric import Seat, Servers
from penstock.simulate.llm.model import Model, Parallelism, unfit

if TYPE_CHECKING:
    ScheduleName = str
else:
    ScheduleName = name_in(SCHEDULES)
Positive = Annotated[float, Field(ge=1e-6, le=1e9)]
Milliseconds = Annotated[float, Field(ge=0, le=1e6)]


class Compute(StrictDocument):
    """Times of GPUs: from a rate, or as measured (milliseconds per layer and microbatch, forward), which goes first."""

    tflops: Positive = Field(default=312.0, description="of a GPU")
    efficiency: Annotated[float, Field(ge=1e-6, le=1)] = 0.5
    backward: Positive = Field(default=2.0, description="times the forward pass")
    attention_ms: Milliseconds | None = None
    gate_ms: Milliseconds = 0.0
    feed_forward_ms: Milliseconds | None = None
    update_ms: Milliseconds = Field(default=0.0, description="of the optimiser, a layer")


class ExpertExchange(StrictDocument):
    """How tokens are sent to their experts and back."""

    schedule: ScheduleName = "fair"
    skew: Annotated[float, Field(ge=0, le=8)] = Field(default=0.5, description="0: all experts are alike")
    overhead_us: Annotated[float, Field(ge=0, le=1e6)] = Field(default=10.0, description="of a schedule's phase")
    detail: Literal["auto", "pairs", "ports"] = "auto"

    @model_validator(mode="after")
    def _pairs_are_fair(self) -> "ExpertExchange":
        if self.detail == "pairs" and self.schedule != "fair":
            raise ValueError(f"detail pairs is for schedule fair, not for {self.schedule}: take auto or ports")
        return self

    @property
    def could_be_pairs(self) -> bool:
        """Whether every pair of ranks may have a flow of its own."""
        return self.schedule == "fair" and self.detail != "ports"


class GradientReduction(StrictDocument):
    """How gradients are summed and parameters distributed: ZeRO-2's reduce-scatter and all-gather."""

    shape: Literal["ring", "tree"] = "ring"
    bucket_layers: Annotated[int, Field(ge=1, le=1024)] = 1
    gradient_bytes: Literal[1, 2, 4] = 2
    parameter_bytes: Literal[1, 2, 4] = 2
    latency_us: Annotated[float, Field(ge=0, le=1e6)] = Field(default=1.0, description="of a hop")
    clip: Literal["none", "norm"] = Field(default="none", description="norm: all gradients before any update")


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
            fit = f"tensor={self.parallel.tensor} does not fit NICs that serve {rail} GPUs each"
            raise unfit(f"{fit}: one must be divisible by the other.")
        if self.servers.routing == "ecmp" and self.parallel.expert > 1 and not self.exchange.could_be_pairs:
            raise unfit(
                "routing ecmp needs the flows between pairs of devices: set all_to_all to schedule fair and detail"
                " pairs, or routing to spray."
            )

    @property
    def replicas(self) -> int:
        """Data ranks that are simulated."""
        return self.parallel.replicas(self.servers.gpus, self.simulate == "all")

    def seat(self, stage: int, rank: int) -> Seat:
        """The seat of the device of a stage and a data rank, simulated or not."""
        first = (rank + self.parallel.data * stage) * self.parallel.tensor
        return Seat(first // self.servers.gpus, first % self.servers.gpus, self.parallel.tensor)


_HALF = 2
"""Bytes of an activation (bfloat16)."""


class Costs:
    """Seconds and bytes of one job's operations."""

    def __init__(self, job: LlmJob) -> None:
        model, compute, parallel = job.model, job.compute, job.parallel
        self._job, self._tokens = job, model.sequence * parallel.microbatch_size
        self._rate = parallel.tensor * compute.tflops * 1e12 * compute.efficiency
        self._tensor = self._tensor_seconds()
        attention = self._seconds(compute.attention_ms, model.attention_flops(self._tokens))
        self._attention = attention + compute.gate_ms / 1e3
        self._feed_forward = self._seconds(compute.feed_forward_ms, model.feed_forward_flops(self._tokens))
        self._head = model.head_flops(self._tokens) / self._rate
        passed = _HALF * self._tokens * model.hidden
        self.between_stages = passed if parallel.sequence_parallel else passed * parallel.tensor
        """Bytes from stage to stage."""
        self.to_experts = passed * model.top_k
        """Bytes of tokens that a device sends in one all-to-all, including to itself."""

    def attention(self, forward: bool) -> float:
        """Seconds of a layer's pass up to its feed-forward part."""
        return self._whole(self._attention, forward)

    def feed_forward(self, forward: bool) -> float:
        """Seconds of the feed-forward part's."""
        return self._whole(self._feed_forward, forward)

    def head(self, forward: bool) -> float:
        """Seconds of the pass after the last layer."""
        return self._head * (1.0 if forward else self._job.compute.backward)

    def reduced(self, layers: range, last: int) -> tuple[float, float]:
        """Parameters of some layers that a ring of all data ranks moves, and those that a ring of ranks with the same
        experts moves. `last` is the model's last layer: the first and last hold the token embeddings.
        """
        model, parallel = self._job.model, self._job.parallel
        ends = sum(1 for layer in layers if layer == 0) + sum(1 for layer in layers if layer == last)
        shared = len(layers) * model.shared_parameters + ends * model.vocabulary * model.hidden
        experts = len(layers) * model.expert_parameters / parallel.expert
        return shared * self._moved(parallel.data), experts * self._moved(parallel.data // parallel.expert)

    def _moved(self, ranks: int) -> float:
        """The share of the data that a rank sends in a reduce-scatter, or in an all-gather."""
        if ranks == 1:
            return 0.0
        return (ranks - 1) / ranks if self._job.reduction.shape == "ring" else 1.0

    def _whole(self, seconds: float, forward: bool) -> float:
        """Seconds including tensor-parallel communication: as much backward as forward, and again where activations are
        recomputed, which `backward` counts as one forward pass more than 2.
        """
        times = self._job.compute.backward
        return seconds + self._tensor if forward else seconds * times + self._tensor * max(1.0, times - 1)

    def _seconds(self, given_ms: float | None, flops: float) -> float:
        return flops / self._rate if given_ms is None else given_ms / 1e3

    def _tensor_seconds(self) -> float:
        """An all-reduce among the GPUs of a device, over NVLink."""
        tensor = self._job.parallel.tensor
        size = _HALF * self._tokens * self._job.model.hidden
        return 2 * (tensor - 1) / tensor * size / (self._job.servers.nvlink_gbps * 1e9 / 8)
