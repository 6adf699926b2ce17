"""The ways of reading the first layer's inputs, and the choice of one for a job."""

from typing import Any

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.nn.layers.entry import LayerEntry
from penstock.pipeline.row_reader import PLAIN_ROWS, RowReader
from penstock.plan.execution.first_layer import (
    rows_aggregated,
    rows_divided,
    rows_gathered,
    rows_read_by_device,
    rows_transformed,
)
from penstock.train.first_layer.aggregated import aggregated_inputs, cheaper_inputs
from penstock.train.first_layer.aggregated_slots import aggregated_bytes, aggregated_slots
from penstock.train.first_layer.divided import divided_inputs
from penstock.train.first_layer.divided_slots import divided_slots, reasons_against_dividing
from penstock.train.first_layer.gathered_slots import gathered_bytes, gathered_slots, reasons_against_reading
from penstock.train.first_layer.slot_fill import Filler
from penstock.train.first_layer.transformed import transformed_inputs
from penstock.train.first_layer.way import FirstLayerWay, reasons_against
from penstock.train.inputs import Inputs
from penstock.train.job import Job


def _plain(model: Any, job: Job) -> RowReader:
    return PLAIN_ROWS


def _aggregates(entry: LayerEntry, job: Job) -> bool:
    return entry.aggregates(job) is not None


def _transforms(entry: LayerEntry, job: Job) -> bool:
    return entry.transforms_first(job)


WAYS: dict[str, FirstLayerWay] = {
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
}


def first_layer_reader(job: Job, graph: Graph, model: Any, inputs: Inputs) -> RowReader:
    """How batches of a job read their features; a way that is asked for and not possible is refused."""
    way = WAYS[job.first_layer]
    reasons = reasons_against(way, job, graph, model, inputs)
    if reasons and job.first_layer == "auto":
        return PLAIN_ROWS
    if reasons:
        raise PenstockError(
            f"first_layer {job.first_layer} is not possible: {', '.join(reasons)}. Set it to auto.",
            code="unsupported-combination",
        )
    return way.reader(model, job)
