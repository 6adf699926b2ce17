"""The hardware file: nodes with a parallel capacity, links, and which links every logical connection goes over."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from penstock.graph.documents import StrictDocument
from penstock.paths.document_reader import read_document

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
    network: bool = Field(default=False, description="between hosts: the source's signal leaves it out")

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
