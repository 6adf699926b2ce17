"""The fields of a job by their subject: data, batches, device, the user's functions, and kinds of tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator

from penstock.graph.documents import (
    AutoCount,
    StrictDocument,
    first_problem,
    mapping_of_flag,
    name_in,
    parse_yaml,
    split_commas,
)
from penstock.graph.schema import TaskChoice
from penstock.nn.scorer_table import ScorerName
from penstock.registry import Registry

# The job fields that say what is learned, and from which graph.


class DataOptions(StrictDocument):
    """The graph, and what is learned from it."""

    graph: str = Field("synthetic-arxiv", description="a graph folder, or anything `ps.load` recognises")
    task: TaskChoice = Field("auto", description="what is learned; auto: from the labels and held-out edges")
    target: str | None = Field(
        None,
        description="the type that is learned, where several could be: a node type, or source__relation__destination",
    )
    features: str = Field("x", description="vertex field with features; types without it get learnable embeddings")
    edge_features: Annotated[list[str], BeforeValidator(split_commas)] = Field(
        [],
        description="edge fields that gatv2, gine, transformer or a module of your own reads (as `edge_attr`); auto:"
        " the graph's only such field (docs/models.md)",
    )
    label: str = Field("y", description="vertex or edge field with labels")
    split: Literal["auto", "graph", "ratio", "per-class"] = Field(
        "auto",
        description="where train, val and test come from; auto: the graph's splits, else by ratio",
    )
    split_number: int = Field(
        0, ge=0, description="which of an archive's splits is used; drawn splits differ by it too"
    )
    split_ratio: Annotated[list[float], BeforeValidator(split_commas)] = Field(
        [0.6, 0.2, 0.2], min_length=3, max_length=3, description="shares of train, val and test"
    )
    per_class: Annotated[list[int], BeforeValidator(split_commas)] = Field(
        [20, 30], min_length=2, max_length=2, description="training and validation vertices of each class; rest: test"
    )
    reverse_edges: bool = Field(False, description="add every relation's reverse as a relation of its own")

    @property
    def node_type(self) -> str | None:
        """The node type that `target` names; names of node types have no double underscore."""
        return None if self.target is None or "__" in self.target else self.target

    @property
    def edge_type(self) -> str | None:
        """The edge type that `target` names."""
        return self.target if self.target is not None and "__" in self.target else None


# When the seeds of an epoch are shuffled: always, never, or from the elbow of the validation curve on.
#
# The elbow is found by one rule. Let b(t) be the best value of the first t validations. The curve has passed its elbow
# when the last `WINDOW` validations brought less than `SHARE` of what all of them brought since the first: b(t) - b(t -
# WINDOW) < SHARE * (b(t) - b(1)), or nothing at all. The rule has no unit, so it is the same for accuracy, ranks and
# errors, and it asks for at least WINDOW + 1 validations.

WINDOW = 3
"""Validations that are looked back on."""
SHARE = 0.1
"""The share of the whole gain below which these have gained little."""


@dataclass(frozen=True)
class Shuffling:
    """One value of the job field `shuffle`."""

    first: int | None
    """The first epoch that is shuffled before any validation is known; None: none is."""
    waits_for_elbow: bool = False
    """Whether shuffling begins at the elbow of the validation curve."""


SHUFFLINGS = {
    "always": Shuffling(0),
    "never": Shuffling(None),
    "adaptive": Shuffling(None, waits_for_elbow=True),
}
"""The values of the job field `shuffle`."""


def past_elbow(values: Sequence[float], better: Literal["higher", "lower"]) -> bool:
    """Whether a curve of validations, from the first to the newest, has passed its elbow."""
    if len(values) <= WINDOW:
        return False
    sign = 1.0 if better == "higher" else -1.0
    signed = [sign * value for value in values]
    now, before, first = max(signed), max(signed[:-WINDOW]), signed[0]
    return now == before or now - before < SHARE * (now - first)


# The job fields that say what passes from batch to batch: their order, how they are drawn, and what is used again.

if TYPE_CHECKING:
    ShuffleName = str
else:
    ShuffleName = Literal[tuple(SHUFFLINGS)]


class BatchOptions(StrictDocument):
    """The order of batches, and whether they are used again."""

    shuffle: ShuffleName = Field(
        "always",
        description="whether each epoch has its own batches of seeds; never: those of the first epoch; adaptive: those"
        " of the first epoch until the elbow of the validation curve (docs/execution.md)",
    )
    reuse_batches: bool = Field(
        False,
        description="while seeds are not shuffled, use the neighbourhoods that the first epoch drew again; faster, and"
        " usually less accurate",
    )


# The device fields of a job.

Where = Literal["auto", "device", "pinned", "host"]
FIRST_LAYERS = ("auto", "device", "gather", "aggregate", "transform", "divided")
"""Names of `train.first_layer.ways.WAYS`, which imports torch and more."""
if TYPE_CHECKING:
    FirstLayerName = str
else:
    FirstLayerName = name_in(Registry("way", "penstock.first_layer_ways", dict.fromkeys(FIRST_LAYERS, "")))


class Placement(StrictDocument):
    """Where each part of the graph lies while a device trains."""

    topology: Where = Field("auto", description="the neighbour lists")
    features: Where | Literal["sharded"] = Field("auto", description="the vertices' features")
    cache_rows: int | None = Field(
        None, ge=0, description="rows of pinned features kept on the device too; of features on disk, in memory"
    )
    cache_by: Literal["degree", "counts"] = Field("counts", description="what makes a row hot")


class AskedPlacement(Placement):
    """A placement as a job has it: features may also be read from the disk, past the system's page cache."""

    features: Where | Literal["sharded", "disk"] = Field("auto", description="the vertices' features")  # type: ignore[assignment]


class DeviceOptions(StrictDocument):
    """The processor that computes, and what it keeps in its own memory. A CPU ignores most of it (docs/devices.md)."""

    device: str = Field("auto", description="where the model is trained: auto (a GPU if there is one), cpu or cuda")
    placement: str | dict[str, Any] = Field(
        "auto", description="auto, or any of {topology, features, cache_rows, cache_by} (docs/devices.md)"
    )
    sample_on: Literal["auto", "device", "host", "hybrid"] = Field("auto", description="where batches are sampled")
    feature_type: Literal["stored", "float32", "float16", "bfloat16"] = Field(
        "stored", description="number type of the placed features"
    )
    compute_type: Literal["float32", "tf32", "bfloat16", "float16"] = Field(
        "float32", description="number type of matrix products; tf32 and the 16-bit types are faster and less exact"
    )
    device_share: float = Field(
        0.92, gt=0, le=1, description="share of the device's memory that may be used, by this run and others together"
    )
    first_layer: FirstLayerName = Field(
        "auto",
        description="what the host does of the first layer: read rows, aggregate or transform them, or aggregate a part"
        " while the device reads the rows of the other (docs/devices.md)",
    )
    capture: Literal["auto"] | bool = Field(
        "auto",
        description="capture a step once and replay it, where the job allows it; auto: unless steps that are launched"
        " one by one are predicted to be faster, where this machine was measured",
    )

    @field_validator("placement", mode="before")
    @classmethod
    def _readable(cls, value: object) -> object:
        """On the command line a mapping is written {features: pinned}."""
        if isinstance(value, str) and value != "auto":
            try:
                parsed = parse_yaml(value)
            except yaml.YAMLError:
                parsed = None
            if not isinstance(parsed, dict):
                raise ValueError(f"{value!r} is neither auto nor a mapping, such as {{features: pinned}}")
            value = parsed
        if isinstance(value, dict):
            try:
                AskedPlacement.model_validate(value)
            except ValidationError as error:
                raise ValueError(first_problem(error)) from None
        return value

    @property
    def placed(self) -> Placement:
        """The placement as its own document; for a device, rows that are read from the disk come from the host."""
        asked = {} if isinstance(self.placement, str) else self.placement
        return Placement.model_validate(asked | ({"features": "host", "cache_rows": None} if self.reads_disk else {}))

    @property
    def reads_disk(self) -> bool:
        """Whether the job asks for features that are read from the disk past the page cache."""
        return isinstance(self.placement, dict) and self.placement.get("features") == "disk"


# The job fields that name functions of the user's: the loss, further metrics and callbacks; and weights of classes.


def _weights_of_flag(value: object) -> object:
    """What a flag says: balanced, numbers with commas, or a mapping."""
    if not isinstance(value, str) or value == "balanced":
        return value
    return mapping_of_flag(value) if value.lstrip().startswith("{") else split_commas(value)


ClassWeights = Literal["balanced"] | list[float] | dict[str | int, float]


LINK_LOSSES = ("bce", "softmax", "margin")
"""Values of the job field `loss` for links; the first is the default."""


class FunctionOptions(StrictDocument):
    """Code of your own, each FILE.py:NAME or PACKAGE.MODULE:NAME (docs/python.md)."""

    loss: str | None = Field(
        None,
        description="regression: mse (the default), mae or huber; links: each pair by itself (bce, the default), a"
        " positive against its negatives (softmax), or above each by `margin` (margin; knowledge graphs); or a function"
        " of yours, called with outputs and labels, that returns a number for each row",
    )
    metrics: Annotated[list[str], BeforeValidator(split_commas)] = Field(
        [], description="further metrics, each called with outputs and labels (NumPy arrays); returns a number"
    )
    callbacks: Annotated[list[str], BeforeValidator(split_commas)] = Field(
        [], description="called after every epoch, and may end the run; or tensorboard, mlflow, wandb"
    )
    class_weights: Annotated[ClassWeights | None, BeforeValidator(_weights_of_flag)] = Field(
        None, description="how much a row's loss counts by its class: balanced, a number for each class, or a mapping"
    )

    @property
    def link_loss(self) -> str:
        """The name in LINK_LOSSES of the loss of links."""
        return self.loss if self.loss in LINK_LOSSES else LINK_LOSSES[0]


# The job fields of tasks on edges.


class LinkOptions(StrictDocument):
    """Fields of tasks on edges."""

    negatives: Literal["uniform", "in-batch", "joint", "all"] = Field(
        "uniform", description="links: how negatives are drawn; all: every entity (knowledge graphs)"
    )
    negatives_per_edge: int = Field(1, ge=1, description="links: negatives for each positive, or shared by a batch")
    filtered: bool = Field(True, description="links: never use a true edge as a negative")
    corrupt: Literal["destination", "source", "both"] = Field(
        "destination", description="links: the end that negatives replace"
    )
    scorer: ScorerName = Field(
        "auto", description="links: how two embeddings become a score; auto: dot, and complex for knowledge graphs"
    )
    rank_against: int = Field(
        100, ge=0, description="links: number of vertices against which a held-out edge is ranked; 0: all"
    )
    supervision: float = Field(
        0.3,
        gt=0,
        le=1,
        description="whole: share of the training edges that a task on edges predicts; the others carry messages",
    )
    held_out: Annotated[list[float], BeforeValidator(split_commas)] = Field(
        [0.05, 0.1],
        min_length=2,
        max_length=2,
        description="links: validation and test shares, if the graph has no held-out edges",
    )


# The job fields of knowledge graph completion.


class TripleOptions(StrictDocument):
    """Fields of knowledge graph completion, beside those of links."""

    inverse_relations: bool = Field(
        False,
        description="learn a second vector for each relation, by which heads are looked for (reciprocal relations)",
    )
    negatives_power: float = Field(
        0.0, ge=0, le=2, description="draw negatives in proportion to degree to this power, such as 0.75; 0: uniformly"
    )
    negatives_group: int = Field(0, ge=0, description="joint negatives: positives that share them; 0: the whole batch")
    adversarial: float = Field(
        0.0, ge=0, description="temperature of self-adversarial weights of negatives; 0: all weigh the same"
    )
    margin: float = Field(
        9.0,
        ge=0,
        description="transe, rotate: a score is this minus the distance; loss margin: by how much a true triple is"
        " to score above its negatives",
    )
    distance: int = Field(1, ge=1, le=2, description="transe: the norm that measures distances, 1 or 2")
    triple_weights: Literal["none", "frequency"] = Field(
        "none",
        description="frequency: triples whose head or tail is common with its relation count less, by the root of how"
        " often it is (Sun et al., 2019)",
    )
    regulariser: Literal["none", "l2", "n3"] = Field(
        "none",
        description="penalty on the embeddings of a batch's triples: their squares (l2) or the cubes of their absolute"
        " values (n3)",
    )
    regularisation: float = Field(0.0, ge=0, description="weight of the `regulariser` in the loss; set both or neither")


# The fields of a job that trains on the whole graph at once.


class WholeOptions(StrictDocument):
    """How sampler `whole` is executed. Other samplers ignore these fields."""

    bins: AutoCount = Field(
        0, description="whole: bins that each layer's vertices are divided into; auto: as few as fit memory"
    )
    keep: Literal["auto", "device", "host", "disk", "recompute"] = Field(
        "auto",
        description="whole: where outputs of layers wait for the backward pass; recompute: not at all",
    )
    keep_type: Literal["float32", "bfloat16"] = Field(
        "float32", description="whole: number type of outputs that wait for the backward pass"
    )
    exchange: Literal["bins", "layer", "boundary", "replicate"] = Field(
        "bins",
        description="whole, on a cluster: rows of remote vertices travel bin by bin, layer by layer, as a sampled share"
        " of them, or are computed again where that takes less time",
    )
    boundary_share: float = Field(
        1.0, gt=0, le=1, description="whole, exchange boundary: share of remote rows that each step draws"
    )
