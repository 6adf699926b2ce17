"""What a task receives when it starts: one JSON document on its standard input."""

from typing import Any

from pydantic import Field, ValidationError

from penstock.cluster.layout import Layout, TaskSpec
from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem
from penstock.hardware.cluster import ClusterDocument


class Setup(StrictDocument):
    """Everything a process needs to take its part in a run."""

    task: TaskSpec
    incarnation: int = Field(description="how often it was started before")
    credentials: str = Field(description="its keys, see wire.keys")
    controller: str = Field(description="the controller's address")
    run: str = Field(description="the run folder")
    partition: str
    job: dict[str, Any]
    cluster: ClusterDocument
    layout: Layout
    addresses: dict[str, str] = Field(description="where the tasks are that run already")
    measured: int = Field(default=0, ge=0, description="iterations to be measured, not to be kept; 0: an ordinary run")


def read_setup(text: str) -> Setup:
    """Read and validate a task's setup."""
    try:
        return Setup.model_validate_json(text)
    except ValidationError as error:
        raise PenstockError(
            f"The task's setup is not valid: {first_problem(error)}.", code="invalid-document"
        ) from None
