"""A language model's training in a workload file."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from penstock.coflow.matching import SCHEDULES
from penstock.graph.documents import StrictDocument, name_in
from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import Compute, ExpertExchange, GradientReduction, LlmJob
from penstock.simulate.llm.model import Model, Parallelism, preset

if TYPE_CHECKING:
    ScheduleName = str
else:
    ScheduleName = name_in(SCHEDULES)
Degree = Annotated[int, Field(ge=1, le=65536)]
Width = Annotated[int, Field(ge=1, le=1 << 20)]
Positive = Annotated[float, Field(ge=1e-6, le=1e9)]
Milliseconds = Annotated[float, Field(ge=0, le=1e6)]


class ModelDocument(StrictDocument):
    """A model's shape: that of a preset with changes, or all of it."""

    preset: str | None = Field(default=None, description="gpt3-13b, gpt3-175b, mixtral-8x7b, ...")
    layers: Annotated[int, Field(ge=1, le=1024)] | None = None
    hidden: Width | None = None
    heads: Width | None = None
    sequence: Width | None = Field(default=None, description="tokens")
    feed_forward: Width | None = Field(default=None, description="width of the feed-forward part, or of one expert")
    matrices: Literal[2, 3] | None = Field(default=None, description="of a feed-forward part: 3 where it is gated")
    key_value_heads: Width | None = Field(default=None, description="as many as heads if none")
    experts: Annotated[int, Field(ge=0, le=4096)] | None = None
    top_k: Annotated[int, Field(ge=0, le=4096)] | None = Field(default=None, description="experts a token goes to")
    shared: Annotated[int, Field(ge=0, le=1 << 20)] | None = Field(
        default=None, description="width of a part that every token passes beside its experts"
    )
    vocabulary: Annotated[int, Field(ge=0, le=1 << 24)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> "ModelDocument":
        needed = ("layers", "hidden", "heads", "sequence", "feed_forward")
        missing = [name for name in needed if getattr(self, name) is None]
        if self.preset is None and missing:
            raise ValueError(f"give a preset, or {missing[0]}")
        return self

    def model(self) -> Model:
        """The model's shape."""
        said = self.model_dump(exclude_none=True, exclude={"preset"})
        base: dict[str, Any] = vars(preset(self.preset)) if self.preset is not None else {}
        return Model(**{**base, **said})


class ParallelDocument(StrictDocument):
    """Degrees of parallelism, which together give the number of GPUs."""

    tensor: Degree = 1
    pipeline: Degree = 1
    data: Degree = 1
    expert: Degree = Field(default=1, description="data ranks that share the experts")
    microbatches: Annotated[int, Field(ge=1, le=4096)] = Field(default=1, description="of each data rank, in a step")
    microbatch_size: Annotated[int, Field(ge=1, le=4096)] = Field(default=1, description="sequences")
    interleave: Annotated[int, Field(ge=1, le=64)] = Field(default=1, description="chunks of layers a stage has")
    sequence_parallel: bool = True


class ServersDocument(StrictDocument):
    """Equal servers and the switches above them; rates in Gbit/s, each way."""

    count: Degree
    gpus: Annotated[int, Field(ge=1, le=1024)] = 8
    nvlink_gbps: Positive = Field(default=3200.0, description="of a GPU")
    nics: Annotated[int, Field(ge=1, le=1024)] = Field(default=8, description="of a server, each for equally many GPUs")
    nic_gbps: Positive = 100.0
    topology: Literal["fat-tree", "leaf-spine"] = "fat-tree"
    routing: Literal["spray", "ecmp"] = Field(default="spray", description="ecmp: a path by hash for every pair")
    servers_per_leaf: Degree = 8
    leaves_per_pod: Degree = Field(default=8, description="of a fat-tree")
    spines: Degree = Field(default=8, description="switches above a leaf")
    oversubscription: Annotated[float, Field(ge=1, le=1024)] = 1.0


class ComputeDocument(StrictDocument):
    """Times of GPUs: from a rate, or as measured (milliseconds per layer and microbatch, forward)."""

    tflops: Positive = Field(default=312.0, description="of a GPU")
    efficiency: Annotated[float, Field(ge=1e-6, le=1)] = 0.5
    backward: Positive = Field(default=2.0, description="times the forward pass")
    attention_ms: Milliseconds | None = None
    gate_ms: Milliseconds = 0.0
    feed_forward_ms: Milliseconds | None = None
    update_ms: Milliseconds = Field(default=0.0, description="of the optimiser, a layer")


class ExchangeDocument(StrictDocument):
    """How tokens are sent to their experts and back."""

    schedule: ScheduleName = "fair"
    skew: Annotated[float, Field(ge=0, le=8)] = Field(default=0.5, description="0: all experts are alike")
    overhead_us: Annotated[float, Field(ge=0, le=1e6)] = Field(default=10.0, description="of a schedule's phase")
    detail: Literal["auto", "pairs", "ports"] = "auto"

    @model_validator(mode="after")
    def _pairs_are_fair(self) -> "ExchangeDocument":
        if self.detail == "pairs" and self.schedule != "fair":
            raise ValueError(f"detail pairs is for schedule fair, not for {self.schedule}: take auto or ports")
        return self


class ReductionDocument(StrictDocument):
    """How gradients are summed and parameters distributed (ZeRO-2)."""

    shape: Literal["ring", "tree"] = "ring"
    bucket_layers: Annotated[int, Field(ge=1, le=1024)] = 1
    gradient_bytes: Literal[1, 2, 4] = 2
    parameter_bytes: Literal[1, 2, 4] = 2
    latency_us: Annotated[float, Field(ge=0, le=1e6)] = Field(default=1.0, description="of a hop")
    clip: Literal["none", "norm"] = Field(default="none", description="norm: all gradients before any update")


class LlmDocument(StrictDocument):
    """A training job of a language model, as in a workload file."""

    model: ModelDocument | str
    parallel: ParallelDocument
    servers: ServersDocument
    compute: ComputeDocument = ComputeDocument()
    all_to_all: ExchangeDocument = ExchangeDocument()
    reduction: ReductionDocument = ReductionDocument()
    simulate: Literal["representatives", "all"] = Field(
        default="representatives", description="data ranks that are simulated: those that stand for all, or all"
    )

    def job(self, seed: int = 0) -> LlmJob:
        """The job that the document describes."""
        model = preset(self.model) if isinstance(self.model, str) else self.model.model()
        return LlmJob(
            model,
            Parallelism(**self.parallel.model_dump()),
            Servers(**self.servers.model_dump()),
            Compute(**self.compute.model_dump()),
            ExpertExchange(**self.all_to_all.model_dump()),
            GradientReduction(**self.reduction.model_dump()),
            self.simulate,
            seed,
        )
