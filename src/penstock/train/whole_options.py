"""The fields of a job that trains on the whole graph at once."""

from typing import Literal

from pydantic import Field

from penstock.graph.documents import AutoCount, StrictDocument


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
