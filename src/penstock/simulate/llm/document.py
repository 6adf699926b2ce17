"""A language model's training in a workload file."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from penstock.graph.documents import StrictDocument
from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import Compute, ExpertExchange, GradientReduction, LlmJob, Positive
from penstock.simulate.llm.model import Model, Parallelism, preset

Degree = Annotated[int, Field(ge=1, le=65536)]
Width = Annotated[int, Field(ge=1, le=1 << 20)]


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
        """The shape of the preset with the fields that are given in place of its own."""
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


class LlmDocument(StrictDocument):
    """A training job of a language model, as in a workload file."""

    model: ModelDocument | str
    parallel: ParallelDocument
    servers: ServersDocument
    compute: Compute = Compute()
    all_to_all: ExpertExchange = ExpertExchange()
    reduction: GradientReduction = GradientReduction()
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
            self.compute,
            self.all_to_all,
            self.reduction,
            self.simulate,
            seed,
        )
