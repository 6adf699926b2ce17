"""Messages from tasks to the controller, validated on arrival so that a bad one fails at its sender."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from penstock.pipeline.options import STAGES
from penstock.store.parts.requests import StoreRequest
from penstock.train.run_files.records import MOST_SPANS, MOST_THREADS
from penstock.wire.sockets import ADDRESS

_LARGEST = (1 << 63) - 1
Amount = Annotated[int, Field(ge=0, le=_LARGEST)]
Name = Annotated[str, Field(max_length=512)]
Incarnation = Annotated[int, Field(ge=0)]


def _is_span(span: list[int]) -> list[int]:
    stage, thread, _, *others = span
    if not (0 <= stage < len(STAGES) and 0 <= thread < MOST_THREADS and min(others) >= 0):
        raise ValueError("is not a span of a stage")
    return span


_Number = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
Span = Annotated[list[_Number], Field(min_length=6, max_length=6), AfterValidator(_is_span)]
WAITED = "waited_us"
"""The counter of microseconds in which a worker only waited for others' rows."""

CACHED = {"hits": "cache_hits", "misses": "cache_misses", "bytes_saved": "cache_bytes_saved"}
"""The counters of a worker's cache of remote rows: names in the result, and of the counters."""

FEATURE_PATH = "path "
"""Counts of what came along a path are named `path NAME rows`, `... bytes` and `... us`."""


class Registered(StoreRequest):
    """A task has started and listens at an address."""

    address: Annotated[str, Field(pattern=f"^{ADDRESS.pattern}$")]
    ready: bool
    incarnation: Incarnation


class Heartbeat(StoreRequest):
    """A heartbeat, with the task's counters so far."""

    incarnation: Incarnation
    peak_mb: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    counts: dict[Name, Amount] = Field(default={}, max_length=64)
    coflows: Any = Field(default={})
    """Figures of coflows by kind; `penstock.wire.coflows.read_tallies` validates them."""
    flows: dict[Name, Annotated[list[Amount], Field(min_length=2, max_length=2)]] | None = None
    spans: Annotated[list[Span], Field(max_length=MOST_SPANS)] | None = None
    """The spans of a leaving worker's stages in some batches (`train.run_files.records.KeptEvents`)."""


class StepReport(StoreRequest):
    """Progress of the first worker, shown to the user who started the run."""

    what: Literal["start", "advance", "finish", "status", "note"]
    text: str = ""
    amount: Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)] = 0
    unit: str = ""


class DecisionReport(StoreRequest):
    """What a worker that is about to train has decided (`penstock.train.run.Decisions`)."""

    execution: dict[Name, Any] = Field(max_length=64)
    reasons: dict[Name, str] = Field(max_length=64)
    fields: dict[Name, Any] = Field(max_length=64)


class Failed(StoreRequest):
    """A task reports an error that the user must correct."""

    message: str = "A task failed."
    code: str = "unexpected-failure"


class Result(StoreRequest):
    """The run's result and figures."""

    model_config = ConfigDict(extra="allow", strict=True)
    state: Annotated[str, Field(min_length=1, max_length=64)]
