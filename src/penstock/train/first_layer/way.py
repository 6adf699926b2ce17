"""What a way of reading the first layer's inputs declares, and every reason against using it for a job."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.graph.graph import Graph
from penstock.nn.layer_table import layer_entry
from penstock.nn.layers.entry import LayerEntry
from penstock.pipeline.row_reader import RowReader
from penstock.plan.execution.first_layer import WayWork
from penstock.train.first_layer.slot_fill import Filler
from penstock.train.inputs import Inputs
from penstock.train.job import Job


@dataclass(frozen=True)
class FirstLayerWay:
    """A way of reading the first layer's inputs."""

    name: str
    reader: Callable[[Any, Job], RowReader]
    """`reader(model, job)`."""
    layer_allows: Callable[[LayerEntry, Job], bool] = lambda entry, job: True
    """Whether a kind of layer can be given its inputs so."""
    on_host: bool = False
    """Whether the host reads the features, wherever the model is computed."""
    on_both: bool = False
    """Whether host and device read the features, in memory that both can read."""
    computed_on_host: bool = False
    """Whether it is for models that the host computes."""
    rounds_as_auto: bool = False
    """Whether a model that the host computes has the same bits as by `auto`, and one on a GPU does what `auto` does."""
    as_stored: bool = True
    """Whether the layer must read features as they are stored."""
    filler: Filler | None = None
    """How captured steps have their inputs from the host; None: they read features by themselves, or are not captured
    where the host reads them."""
    planned: WayWork | None = None
    """What it makes of a batch's features, for execution plans; None: it decides between others."""


def reasons_against(way: FirstLayerWay, job: Job, graph: Graph, model: Any, inputs: Inputs) -> list[str]:
    """Why a job cannot read its first layer's inputs in a way; empty where it can."""
    if not way.as_stored:
        return []
    reasons = []
    if way.computed_on_host and inputs.device.type != "cpu":
        reasons.append("the model is computed on a GPU")
    if not getattr(model, "layerwise", False):
        reasons.append("the model is a module of the user's own")
    elif not graph.is_homogeneous:
        reasons.append("the graph has several types")
    elif not way.layer_allows(layer_entry(job.model), job):
        reasons.append(f"model {job.model} as it is set reads every row by itself")
    if inputs.tables:
        reasons.append("vertex embeddings are learned")
    if job.sampler == "whole":
        reasons.append("sampler whole keeps what its first layer aggregates")
    set_fields = {
        "input_dropout": job.input_dropout > 0,
        "residual": job.residual,
        "scale_features": job.scale_features != "none",
    }
    return reasons + [f"{name} is set" for name, is_set in set_fields.items() if is_set]
