"""The files of an application, its hardware and the metrics of its paths; and those that come with Penstock."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from penstock.errors import PenstockError, nearest
from penstock.graph.documents import Model, StrictDocument, read_yaml, validated
from penstock.graph.files import write_whole

# How the three files are read: an error names the place of a mistake.


def read_document(path: Path, kind: type[Model], what: str) -> Model:
    """The YAML document at `path`, validated; `what` names the kind of file in errors."""
    return validated(kind, read_yaml(path, what), f"{path} is not {what} that can be used")


# The hardware file: nodes with a parallel capacity, links, and which links every logical connection goes over.

Name = Annotated[str, Field(min_length=1, max_length=80)]
Microseconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Made = Annotated[list[str], Field(description="numbers that no publication or measurement gave, in sentences")]


class NodeDocument(StrictDocument):
    """A device that computes: a processor, an accelerator, a network card."""

    capacity: int = Field(default=1, ge=1, le=256, description="requests that it works on at once")


class LinkDocument(StrictDocument):
    """A physical link in one direction. A message holds it for bytes / bandwidth, or 1 / message rate if longer."""

    gbps: Rate = Field(description="Gbit/s")
    mops: Rate | None = Field(default=None, description="million messages per second; none: only the bandwidth limits")
    latency_us: Microseconds = 0.0
    jitter_us: tuple[Microseconds, Microseconds] = Field(
        default=(0.0, 0.0), description="a further delay of each message, uniform between the two"
    )
    network: bool = Field(default=False, description="between hosts: LEO's signal leaves it out")

    @model_validator(mode="after")
    def _ordered(self) -> "LinkDocument":
        if self.jitter_us[0] > self.jitter_us[1]:
            raise ValueError(f"jitter_us must name the smaller number first (it is {list(self.jitter_us)})")
        return self


class HardwareDocument(StrictDocument):
    """The whole of a hardware file."""

    name: Name
    about: str = ""
    nodes: dict[Name, NodeDocument] = Field(min_length=1, max_length=256)
    links: dict[Name, LinkDocument] = Field(min_length=1, max_length=256)
    routes: dict[Name, list[Name]] = Field(
        description="'a > b': the physical links from node a to node b; routes that name the same link share it"
    )
    made: Made = Field(default=[])

    @model_validator(mode="after")
    def _names_are_known(self) -> "HardwareDocument":
        if both := sorted(set(self.nodes) & set(self.links)):
            raise ValueError(f"{both[0]!r} is both a node and a link: give each a name of its own")
        for route, links in self.routes.items():
            ends = [end.strip() for end in route.split(">")]
            if len(ends) != 2 or not all(end in self.nodes for end in ends):
                raise ValueError(f"routes: {route!r} must be 'a > b' with two of the nodes {', '.join(self.nodes)}")
            for link in links:
                if link not in self.links:
                    raise ValueError(f"routes[{route}]: there is no link {link!r}: add it to links")
        return self

    def route(self, start: str, end: str) -> list[str] | None:
        """The links from one node to another, or None where no route is declared."""
        for route, links in self.routes.items():
            if [each.strip() for each in route.split(">")] == [start, end]:
                return links
        return None


def read_hardware(path: Path) -> HardwareDocument:
    """The hardware file at `path`."""
    return read_document(path, HardwareDocument, "a hardware file")


# The application file: request types, the paths that each may take, and which requests depend on others.

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


# The metrics file: what was profiled of every path of every request type.


class PathMetrics(StrictDocument):
    """One path of one request type, in microseconds."""

    base_us: Microseconds = Field(description="at both hosts, without queues and without the network")
    end_to_end_us: Microseconds = Field(description="from request to answer without queues, network included")
    distinct_us: Microseconds = Field(description="on what the alternatives do not all share, network included")
    toll_us: Microseconds = Field(description="compute times and bytes / bandwidth at both hosts, summed")
    toll_per_place_us: Microseconds = Field(description="service at both hosts, divided by the places of each node")
    interval_us: Microseconds = Field(description="by how much each request of a burst ends after the one before it")


class MetricsDocument(StrictDocument):
    """The whole of a metrics file."""

    application: Name
    hardware: Name
    requests: dict[Name, dict[Name, PathMetrics]] = Field(min_length=1, description="request type -> path -> metrics")


def read_metrics(path: Path) -> MetricsDocument:
    """The metrics file at `path`."""
    return read_document(path, MetricsDocument, "a metrics file")


def write_metrics(metrics: MetricsDocument, path: Path) -> None:
    """Write a metrics file atomically."""
    fields: dict[str, Any] = metrics.model_dump()
    write_whole(path, yaml.safe_dump(fields, sort_keys=False))


# The applications and hardware models that come with Penstock, by name; a file of the user's by its path.

_FOLDER = Path(__file__).parent / "shipped"


def shipped_applications() -> list[str]:
    """Names of the applications that come with Penstock."""
    return _names("applications")


def shipped_hardware() -> list[str]:
    """Names of the hardware models that come with Penstock."""
    return _names("hardware")


def find_application(name: str) -> ApplicationDocument:
    """A shipped application by its name, or the application file at that path."""
    return read_application(_found("applications", name, "application"))


def find_hardware(name: str) -> HardwareDocument:
    """A shipped hardware model by its name, or the hardware file at that path."""
    return read_hardware(_found("hardware", name, "hardware model"))


def _names(kind: str) -> list[str]:
    return sorted(file.stem for file in (_FOLDER / kind).glob("*.yaml"))


def _found(kind: str, name: str, what: str) -> Path:
    if name in _names(kind):
        return _FOLDER / kind / f"{name}.yaml"
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name)
    raise PenstockError(f"No {what} is called {name!r}{nearest(name, _names(kind))}", code="unknown-name")
