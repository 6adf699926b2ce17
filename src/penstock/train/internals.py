"""Settings of a run that are not fields of a job: values that are decided automatically, and constants of mechanisms.

A run folder has them in `decided.yaml`, beside the job, and plans and the documents of clusters and queues have them
among the job's fields, so that a resumed run uses the same values. Tests and benchmarks set them in Python:
`make_job(fields, internals={"staleness": 2})`.

Earlier releases had these as fields of the job. `up_to_date` reads what they wrote, and `REMOVED` has an error
message for each field that a job may no longer have.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from penstock.graph.documents import AutoCount, split_commas
from penstock.graph.schema import is_about
from penstock.nn.options import ONE_HOT, ModelInternals
from penstock.pipeline.options import PipelineInternals
from penstock.sampling.entry import ExplainInternals

RowPath = Literal["cache", "pinned", "gathered"]
_EVERY_PATH: frozenset[RowPath] = frozenset({"cache", "pinned", "gathered"})


def _auto_or_list(value: object) -> object:
    return value if value == "auto" else split_commas(value)


def _listed(value: object) -> object:
    """Fields are written first_layer,groups, and no fields `none`."""
    return [] if value == "none" else split_commas(value)


class Internals(ModelInternals, PipelineInternals, ExplainInternals):
    """Decided by the machine, or fixed in the mechanism."""

    # What the machine decides.
    feature_paths: Annotated[Literal["auto"] | list[RowPath], BeforeValidator(_auto_or_list)] = Field(
        "auto",
        description="how rows of features in pinned memory reach the device: auto (every path, divided by what reads"
        " take), or some of cache, pinned and gathered (docs/devices.md)",
    )
    host_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="first_layer divided: the host's share of a batch's edges; None: as much as makes host and device"
        " end together, by what batches took",
    )
    groups: AutoCount = Field(
        1,
        description="batches that all processors draw together before they are trained on; 1: each beside the training"
        " of others, unless a trial finds groups to be faster; auto: eight for each processor, or as predicted where"
        " this machine was measured",
    )
    timed_choices: Annotated[
        list[Literal["feature_paths", "first_layer", "groups", "order"]], BeforeValidator(_listed)
    ] = Field(
        ["feature_paths", "first_layer", "groups"],
        description="what is decided by timing some batches before a long run begins, where it is open",
    )
    replicate_costs: Annotated[list[float], BeforeValidator(split_commas)] = Field(
        [],
        description="whole, exchange replicate: seconds of a row and of an edge for each layer, which a plan fills in;"
        " none: stated rates of a core",
    )

    # Settings of mechanisms.
    trace_batches: int = Field(
        1000, ge=0, description="batches recorded in events.jsonl; after that, every hundredth one"
    )
    reuse_mb: int = Field(1024, ge=1, description="memory for batches that are used again; others are drawn again")
    inference_mb: int = Field(512, ge=1, description="working memory of exact inference, beyond its results")
    staleness: int = Field(
        0, ge=0, le=64, description="compute the gradients of a batch on weights that are so many updates old"
    )
    scope: Literal["reached", "all"] = Field(
        "reached", description="whole: compute the vertices that the loss reaches, or all of them"
    )
    pipeline: Literal["none", "inter", "intra", "both"] = Field(
        "both",
        description="whole, exchange bins: intra: a bin's rows are sent while later bins of its layer are computed;"
        " inter: a bin of the next layer starts as soon as its own inputs are there",
    )
    unchecked: bool = Field(False, description="the graph's arrays are not checked before they are used")
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints kept beside the best model")
    min_delta: float = Field(0.0, ge=0, description="what a validation must gain to count as improvement for patience")
    max_classes: int = Field(10_000, ge=2, description="largest number of classes, or of labels per vertex")

    draws: int = Field(
        3,
        ge=1,
        le=3,
        description="version of the random draws; 1, 2: of earlier releases; with 1 small seeds share batches",
    )

    # What `penstock data prepare` does today, for runs that were started before it did.
    scale_features: Literal["none", "rows"] = Field(
        "none", description="rows: divide each vertex's features by their sum"
    )
    largest_component: bool = Field(False, description="labels count in the largest connected component only")
    train_on_validation: bool = Field(
        False, description="train on the graph's validation vertices too: nothing is validated, the last epoch counts"
    )

    @field_validator("feature_paths")
    @classmethod
    def _reaches_all(cls, value: "str | list[RowPath]") -> "str | list[RowPath]":
        """A cache has some rows alone."""
        if value != "auto" and not {"pinned", "gathered"} & set(value):
            raise ValueError("name pinned, gathered or both: a cache does not have every row")
        return value

    @property
    def row_paths(self) -> frozenset[RowPath]:
        """The paths that rows of features in pinned memory may take."""
        return _EVERY_PATH if isinstance(self.feature_paths, str) else frozenset(self.feature_paths)


BY_MACHINE = frozenset({*ModelInternals.model_fields, "feature_paths", "host_share", "groups", "replicate_costs"})
"""What was decided for one job on one machine: a job that differs decides again."""

_BY_RUN = "a run decides it and writes it into its decided.yaml"
_QUEUES = "leave it out, every stage has a few batches waiting for the next"
_EXPLAINS = "leave it out; set `explain_every` for rarer explanations"
REMOVED: dict[str, str] = {
    "order": f"leave it out, {_BY_RUN}, by what the machine was measured to do",
    "order_costs": "leave it out; measure this machine with `penstock profile --operators`",
    "replicate_costs": "leave it out; `penstock plan` measures it",
    "edge_width": "leave it out, it is the width of `edge_features`",
    "host_share": "leave it out, host and device end together by what batches take; `first_layer: aggregate` leaves all"
    " of it to the host",
    "feature_paths": f"leave it out, {_BY_RUN}; `placement` says where features lie",
    "groups": f"leave it out, {_BY_RUN}, where a GPU waits for batches that the host draws",
    "timed_choices": "leave it out, long runs time what is open; set `first_layer` to the way that you want",
    **dict.fromkeys(("seeds_depth", "sample_depth", "gather_depth", "transfer_depth"), _QUEUES),
    "gather_threads": f"leave it out, {_BY_RUN}",
    "transfer_threads": "leave it out, one thread copies batches while others are computed",
    "trace_batches": "leave it out, events.jsonl has the first 1,000 batches and every hundredth one after them",
    "reuse_mb": "leave it out, 1 GB of batches is kept with `reuse_batches`",
    "inference_mb": "leave it out; in Python, ps.infer takes memory_mb",
    "staleness": "leave it out, gradients are of the newest weights",
    "scope": "leave it out, only vertices that the loss reaches are computed",
    "pipeline": "leave it out, rows are sent while others are computed",
    "unchecked": "leave it out, a folder is checked once; in Python, train on ps.load(graph, unchecked=True)",
    "explain_delay": _EXPLAINS,
    "explain_steps": _EXPLAINS,
    "explain_loss": _EXPLAINS,
    "explain_rows": _EXPLAINS,
    "layer_sizes": "name it `fanouts`, which of fastgcn and ladies are the vertices drawn for each layer",
    "saint_size": "name it `batch_size`, which of saint are the vertices, edges or roots of a batch",
    "draws": "leave it out; `penstock train OLD/job.yaml --run NEW` repeats a run of an earlier release with its draws",
    "link_loss": "name it `loss`",
    "node_type": "name it `target`",
    "edge_type": "name it `target`",
    "one_hot": "set `embedding` to one-hot",
    "clusters_per_batch": "name it `batch_size`, which of cluster are the parts joined in a batch",
    "partition": "give `clusters` the partition folder",
    "max_classes": "leave it out, labels without gaps may have any number of classes",
    "keep_checkpoints": "leave it out, the newest two and the best one are kept",
    "min_delta": "leave it out, and set `patience`; in Python, early_stop takes min_delta",
    "scale_features": "run `penstock data prepare GRAPH --scale-features --out FOLDER`, and train on that folder",
    "largest_component": "run `penstock data prepare GRAPH --largest-component --out FOLDER`, and train on that folder",
    "train_on_validation": "run `penstock data prepare GRAPH --train-on-validation --out FOLDER`, and train on that"
    " folder",
}
"""Fields that jobs of earlier releases had, and what to do instead."""

_FORMER: dict[str, dict[str, str]] = {
    **{key: {"layer_sizes": "fanouts"} for key in ("fastgcn", "ladies")},
    **{key: {"saint_size": "batch_size"} for key in ("saint-vertex", "saint-edge", "saint-walk")},
    "cluster": {"clusters_per_batch": "batch_size", "partition": "clusters"},
}
"""By sampler, fields of earlier releases and those that have their values today."""
_MERGED = frozenset(
    {*(name for fields in _FORMER.values() for name in fields), "link_loss", "node_type", "edge_type", "one_hot"}
)


def up_to_date(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job in a document that Penstock wrote, perhaps an earlier release, as they are named today."""
    found = {name: value for name, value in document.items() if name not in _MERGED}
    for former, name in _FORMER.get(str(found.get("sampler")), {}).items():
        if document.get(former) is not None:
            found[name] = document[former]
    if found.get("loss") is None and document.get("link_loss", "bce") != "bce":
        found["loss"] = document["link_loss"]
    if document.get("one_hot"):
        found["embedding"] = ONE_HOT
    targets = [document.get("node_type"), document.get("edge_type")]
    if any(targets):
        first, second = targets[::-1] if is_about(str(found.get("task")), "edges") else targets
        found["target"] = first or second
    return found
