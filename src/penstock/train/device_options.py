"""The device fields of a job."""

from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, field_validator

from penstock.graph.documents import StrictDocument, first_problem, parse_yaml, split_commas

Where = Literal["auto", "device", "pinned", "host"]
RowPath = Literal["cache", "pinned", "gathered"]
_EVERY_PATH: frozenset[RowPath] = frozenset({"cache", "pinned", "gathered"})


def _auto_or_list(value: object) -> object:
    return value if value == "auto" else split_commas(value)


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
    feature_paths: Annotated[Literal["auto"] | list[RowPath], BeforeValidator(_auto_or_list)] = Field(
        "auto",
        description="how rows of features in pinned memory reach the device: auto (every path, divided by what reads"
        " take), or some of cache, pinned and gathered (docs/devices.md)",
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
    first_layer: Literal["auto", "device", "gather", "aggregate", "transform", "divided"] = Field(
        "auto",
        description="what the host does of the first layer: read rows, aggregate or transform them, or aggregate a part"
        " while the device reads the rows of the other (docs/devices.md)",
    )
    host_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="first_layer divided: the host's share of a batch's edges; left out: as much as makes host and"
        " device end together, by what batches took",
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
                Placement.model_validate(value)
            except ValidationError as error:
                raise ValueError(first_problem(error)) from None
        return value

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

    @property
    def placed(self) -> Placement:
        """The placement as its own document."""
        return Placement.model_validate({} if isinstance(self.placement, str) else self.placement)
