"""The application file: request types, the paths that each may take, and which requests depend on others."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from penstock.graph.documents import StrictDocument
from penstock.paths.document_reader import read_document
from penstock.paths.hardware_file import Made, Microseconds, Name

Share = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Dependency = Literal["none", "address", "message"]


class StepDocument(StrictDocument):
    """Either a message that goes over the nodes named in `go`, or work at the node named in `compute`."""

    go: list[Name] | None = Field(default=None, min_length=2, max_length=16)
    bytes: int = Field(default=0, ge=0, le=1 << 40)
    compute: Name | None = None
    us: Microseconds = 0.0

    @model_validator(mode="after")
    def _one_of_both(self) -> "StepDocument":
        if (self.go is None) == (self.compute is None):
            raise ValueError("a step has either go (with bytes) or compute (with us)")
        if (self.go is None and self.bytes) or (self.compute is None and self.us):
            raise ValueError("bytes belong to go, and us to compute")
        return self


class RequestDocument(StrictDocument):
    """A type of requests. Paths of the same name in two types count as the same path for dependencies."""

    paths: dict[Name, list[StepDocument]] = Field(min_length=1, max_length=16)
    depends: Dependency = Field(
        default="none",
        description="none; address: on requests in progress at the same address, if one of the two writes; message:"
        " on requests of the same message. A request that depends on one in progress takes its path.",
    )
    writes: bool = False

    @model_validator(mode="after")
    def _paths_have_steps(self) -> "RequestDocument":
        for name, steps in self.paths.items():
            if not 1 <= len(steps) <= 64:
                raise ValueError(f"paths.{name} has {len(steps)} steps: give 1 to 64")
        return self


class ApplicationDocument(StrictDocument):
    """The whole of an application file."""

    name: Name
    about: str = ""
    hardware: Name = Field(description="the shipped hardware model that it was written for")
    requests: dict[Name, RequestDocument] = Field(min_length=1, max_length=32)
    workloads: dict[Name, dict[Name, Share]] = Field(
        min_length=1, description="mixes of requests: name -> request type -> weight; the first is the default"
    )
    addresses: int = Field(default=1, ge=1, le=1 << 24, description="how many addresses requests go to")
    skew: float = Field(default=0.0, ge=0, lt=1, description="Zipf exponent of the addresses; 0: all alike")
    message_requests: int = Field(default=1, ge=1, le=1024, description="requests of a message, which come at once")
    made: Made = Field(default=[])

    @model_validator(mode="after")
    def _workloads_name_requests(self) -> "ApplicationDocument":
        for workload, shares in self.workloads.items():
            for request in shares:
                if request not in self.requests:
                    raise ValueError(f"workloads.{workload}: there is no request {request!r}: add it to requests")
            if not shares:
                raise ValueError(f"workloads.{workload} is empty: name at least one request")
        return self


def read_application(path: Path) -> ApplicationDocument:
    """The application file at `path`."""
    return read_document(path, ApplicationDocument, "an application file")
