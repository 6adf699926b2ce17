"""The metrics file: what was profiled of every path of every request type."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from penstock.graph.atomic import write_whole
from penstock.graph.documents import StrictDocument
from penstock.paths.document_reader import read_document
from penstock.paths.hardware_file import Microseconds, Name


class PathMetrics(StrictDocument):
    """One path of one request type, in microseconds."""

    base_us: Microseconds = Field(description="at both hosts, without queues and without the network")
    end_to_end_us: Microseconds = Field(description="from request to answer without queues, network included")
    distinct_us: Microseconds = Field(description="on what the alternatives do not all share, network included")
    toll_us: Microseconds = Field(description="work that a request brings to the nodes and links of its hosts, summed")
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
    """Write a metrics file, whole or not at all."""
    fields: dict[str, Any] = metrics.model_dump()
    write_whole(path, yaml.safe_dump(fields, sort_keys=False))
