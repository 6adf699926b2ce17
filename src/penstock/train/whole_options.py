"""The fields of a job that trains on the whole graph at once."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from penstock.graph.documents import AutoCount, StrictDocument, split_commas


class WholeOptions(StrictDocument):
    """How sampler `whole` is executed. Other samplers ignore these fields."""

    scope: Literal["reached", "all"] = Field(
        "reached", description="whole: compute the vertices that the loss reaches, or all of them"
    )
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
    pipeline: Literal["none", "inter", "intra", "both"] = Field(
        "both",
        description="whole, exchange bins: intra: a bin's rows are sent while later bins of its layer are computed;"
        " inter: a bin of the next layer starts as soon as its own inputs are there",
    )
    replicate_costs: Annotated[list[float], BeforeValidator(split_commas)] = Field(
        [],
        description="whole, exchange replicate: seconds of a row and of an edge for each layer, which a plan fills in;"
        " none: stated rates of a core",
    )
    boundary_share: float = Field(
        1.0, gt=0, le=1, description="whole, exchange boundary: share of remote rows that each step draws"
    )
