"""The ways of reading the first layer's inputs: what each declares, and the choice of one for a job."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.nn.aggregation import HostRows
from penstock.nn.layer_table import LAYERS
from penstock.nn.layers.entry import LayerEntry
from penstock.pipeline.batch_rows import PLAIN_ROWS, Move, PlainReading, RowReader, RowReading
from penstock.plan.execution.first_layer import (
    WayWork,
    rows_aggregated,
    rows_divided,
    rows_gathered,
    rows_read_by_device,
    rows_transformed,
)
from penstock.registry import Registry
from penstock.sampling.block import MiniBatch
from penstock.sampling.sampler_table import SAMPLERS
from penstock.store.source import RowSource
from penstock.train.dataset.inputs import Inputs
from penstock.train.first_layer.aggregated import aggregated_inputs, cheaper_inputs, divided_inputs
from penstock.train.first_layer.aggregated_slots import (
    aggregated_bytes,
    aggregated_slots,
    divided_slots,
    reasons_against_dividing,
)
from penstock.train.first_layer.slots import Filler, gathered_bytes, gathered_slots, reasons_against_reading
from penstock.train.job import Job

# The host keeps the first layer's inputs and transforms them where that makes rows narrower, so that fewer bytes are
# copied. The product needs the weights of the current step, so it is computed within the step; only reading rows is
# done ahead.


class TransformedReading(PlainReading):
    """A `RowReading` of the rows of all vertices that a batch needs; they stay on the host."""

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> HostRows:
        rows: Any = arrays[0]
        return HostRows(torch.as_tensor(rows).to(torch.float32), device)


class TransformedInputs:
    """The `RowReader` under which every batch is transformed on the host."""

    def reading(self, batch: MiniBatch, node_type: str, source: RowSource) -> RowReading:
        return TransformedReading(batch.vertices[node_type], source)


def transformed_inputs(model: Any, job: Job) -> RowReader:
    """The reader for a job whose first layer can transform its inputs first."""
    return TransformedInputs()


# What a way of reading the first layer's inputs declares, and the reasons against using it for a job.


@dataclass(frozen=True)
class FirstLayerWay:
    """A way of reading the first layer's inputs."""

    name: str
    reader: Callable[[Any, Job], RowReader]
    """`reader(model, job)` gives the reader of batches."""
    layer_allows: Callable[[LayerEntry, Job], bool] = lambda entry, job: True
    """Whether a kind of layer accepts inputs of this form."""
    on_host: bool = False
    """Whether the host reads the features, wherever the model is computed."""
    on_both: bool = False
    """Whether host and device read the features, in memory that both can read."""
    computed_on_host: bool = False
    """Whether it is for models that the host computes."""
    rounds_as_auto: bool = False
    """Whether results on the host have the same bits as with `auto`, and a model on a GPU does the same as `auto`."""
    as_stored: bool = True
    """Whether the layer must read features as they are stored."""
    filler: Filler | None = None
    """How the host provides the inputs of captured steps; None: steps read features by themselves, or are not captured
    where the host reads them.
    """
    planned: WayWork | None = None
    """The work on a batch's features, for execution plans; None: it chooses among other ways."""


def reasons_against(way: FirstLayerWay, job: Job, model: Any, inputs: Inputs) -> list[str]:
    """The reasons why a job cannot read its first layer's inputs in this way; empty where it can."""
    if not way.as_stored:
        return []
    reasons = []
    if way.computed_on_host and not inputs.on_host:
        reasons.append("the model is computed on a GPU")
    if not getattr(model, "layerwise", False):
        reasons.append("the model is a module of the user's own")
    elif not inputs.no_table and not way.layer_allows(LAYERS[job.model], job):
        reasons.append(f"model {job.model} as it is set reads every row by itself")
    if inputs.no_table:
        reasons.append(inputs.no_table)
    if not SAMPLERS[job.sampler].makes_batches:
        reasons.append(f"sampler {job.sampler} keeps what its first layer aggregates")
    set_fields = {
        "input_dropout": job.input_dropout > 0,
        "residual": job.residual,
        "scale_features": job.scale_features != "none",
    }
    return reasons + [f"{name} is set" for name, is_set in set_fields.items() if is_set]


# The ways of reading the first layer's inputs, and the choice of one for a job.


def _plain(model: Any, job: Job) -> RowReader:
    return PLAIN_ROWS


def _aggregates(entry: LayerEntry, job: Job) -> bool:
    return entry.aggregates(job) is not None


def _transforms(entry: LayerEntry, job: Job) -> bool:
    return entry.transforms_first(job)


WAYS: Registry[FirstLayerWay] = Registry(
    "way of reading the first layer's inputs",
    "penstock.first_layer_ways",
    {
        way.name: way
        for way in (
            FirstLayerWay("auto", cheaper_inputs, _aggregates, computed_on_host=True),
            FirstLayerWay("device", _plain, as_stored=False, planned=rows_read_by_device),
            FirstLayerWay(
                "gather",
                _plain,
                on_host=True,
                rounds_as_auto=True,
                as_stored=False,
                filler=Filler(gathered_slots, reasons_against_reading, gathered_bytes),
                planned=rows_gathered,
            ),
            FirstLayerWay(
                "aggregate",
                aggregated_inputs,
                _aggregates,
                on_host=True,
                filler=Filler(aggregated_slots, reasons_against_reading, aggregated_bytes),
                planned=rows_aggregated,
            ),
            FirstLayerWay("transform", transformed_inputs, _transforms, on_host=True, planned=rows_transformed),
            FirstLayerWay(
                "divided",
                divided_inputs,
                _aggregates,
                on_both=True,
                filler=Filler(divided_slots, reasons_against_dividing, aggregated_bytes),
                planned=rows_divided,
            ),
        )
    },
    FirstLayerWay,
)


def first_layer_reader(job: Job, model: Any, inputs: Inputs) -> RowReader:
    """The reader of a job's batches; an error where the way asked for is not possible."""
    way = WAYS[job.first_layer]
    reasons = reasons_against(way, job, model, inputs)
    if reasons and job.first_layer == "auto":
        return PLAIN_ROWS
    if reasons:
        raise PenstockError(
            f"first_layer {job.first_layer} is not possible: {', '.join(reasons)}. Set it to auto.",
            code="unsupported-combination",
        )
    return way.reader(model, job)
