"""The device fields of a job."""

from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from penstock.graph.documents import StrictDocument, first_problem, parse_yaml

Where = Literal["auto", "device", "pinned", "host"]


class Placement(StrictDocument):
    """Where each part of the graph lies while a device trains."""

    topology: Where = Field("auto", description="the neighbour lists")
    features: Where = Field("auto", description="the vertices' features")
    cache_rows: int | None = Field(None, ge=0, description="rows of pinned features kept on the device too")
    cache_by: Literal["degree", "counts"] = Field("counts", description="what makes a row hot")


class DeviceOptions(StrictDocument):
    """The processor that computes, and what it keeps in its own memory. On a CPU all but `first_layer` are ignored."""

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
    first_layer: Literal["auto", "device", "gather", "aggregate", "transform"] = Field(
        "auto",
        description="what the host does of the first layer: read rows, aggregate or transform them (docs/devices.md)",
    )
    capture: bool = Field(True, description="capture a step once and replay it, where the job allows it")

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
                Placement.model_validate(value)
            except ValidationError as error:
                raise ValueError(first_problem(error)) from None
        return value

    @property
    def placed(self) -> Placement:
        """The placement as its own document."""
        return Placement.model_validate({} if isinstance(self.placement, str) else self.placement)
