"""The profile: what an iteration of a job costs, as measured; a document that can be edited and replayed."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.atomic import write_whole
from penstock.graph.documents import StrictDocument, read_checked

FORMAT, VERSION = "penstock-profile", 1
_RANKS = 20
"""Equally likely values that a distribution is kept as."""
DECIDING = (
    "graph",
    "task",
    "model",
    "module",
    "hidden",
    "layers",
    "heads",
    "norm",
    "sampler",
    "replace",
    "weight",
    "time",
    "fanouts",
    "layer_sizes",
    "saint_size",
    "walk_length",
    "clusters",
    "partition",
    "clusters_per_batch",
    "batch_size",
    "negatives",
    "scorer",
    "features",
    "embedding",
    "compute_type",
)
"""Fields of a job that decide what an iteration costs."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostSpread(StrictDocument):
    """An amount that differs from iteration to iteration."""

    mean: Amount
    shape: list[Amount] = Field(
        default=[1.0], min_length=1, description="values at equally likely ranks, as multiples of the mean"
    )

    @classmethod
    def of(cls, values: Sequence[float] | Array) -> "CostSpread":
        """The mean and spread of measured values."""
        found = np.asarray(values, np.float64)
        mean = float(found.mean()) if len(found) else 0.0
        if mean == 0.0:
            return cls(mean=0.0)
        ranks = (np.arange(_RANKS) + 0.5) / _RANKS
        shape = np.quantile(found / mean, ranks, method="hazen")
        # Cutting off the ends moves the mean: it is put back.
        return cls(mean=mean, shape=[round(float(each), 6) for each in shape / shape.mean()])


class TaskCost(StrictDocument):
    """One task of a kind."""

    seconds: CostSpread = Field(description="processor seconds an iteration, on the machine that was measured")
    cores: Amount = Field(default=1.0, description="cores that it keeps busy at most")
    memory_gb: Amount = Field(default=0.0, description="largest resident memory")


class MeasuredSetup(StrictDocument):
    """The size of a cluster that a profile was measured at."""

    parts: int = Field(ge=1)
    workers: int = Field(ge=1)


class SmallerBatches(StrictDocument):
    """What the same tasks took with smaller batches: it tells what does not grow with a batch."""

    batch_size: int = Field(ge=1)
    iterations: int = Field(ge=1, description="measured")
    seconds: dict[str, Amount] = Field(description="mean processor seconds of each kind of task")


class Profile(StrictDocument):
    """One job on so many parts and workers. Bytes are those of one iteration."""

    format: Literal["penstock-profile"] = "penstock-profile"
    version: Literal[1] = 1
    job: dict[str, Any] = Field(description="the fields that decide what an iteration costs")
    iterations: int = Field(ge=1, description="measured")
    batches: int = Field(ge=1, description="iterations an epoch")
    parts: int = Field(ge=1)
    workers: int = Field(ge=1)
    tasks: dict[Literal["store", "sampler", "gather", "worker", "server"], TaskCost] = Field(
        description="store: for one worker's batch; sampler: draws a batch; gather: puts its rows in place"
    )
    lists: list[list[Amount]] = Field(description="bytes of neighbour lists, from part to worker")
    features: list[list[Amount]] = Field(description="bytes of features, from part to worker")
    blocks: list[Amount] = Field(description="bytes of a batch's blocks, by worker, if drawn by another task")
    sizes: list[Amount] = Field(default=[1.0], min_length=1, description="how these vary, as a spread's shape")
    embeddings: list[list[Amount]] = Field(
        default=[], description="bytes of learnable rows, from part to worker; as many gradients go back"
    )
    cluster: dict[str, Any] = Field(default={}, description="how rows travelled and gradients were summed")
    gradients: Amount = Field(description="bytes of all gradients, and of all weights")
    smaller: SmallerBatches | None = Field(default=None, description="the same, measured with smaller batches")
    scaled_from: MeasuredSetup | None = Field(
        default=None, description="where the amounts were measured, if these are predicted from there"
    )
    rate: Amount = Field(default=0.0, description="bytes/s that pulls reached where they were measured")

    @model_validator(mode="after")
    def _check(self) -> "Profile":
        for name in ("lists", "features", "embeddings"):
            rows = getattr(self, name)
            if name == "embeddings" and not rows:
                continue
            if len(rows) != self.parts or any(len(row) != self.workers for row in rows):
                raise ValueError(f"{name} must have {self.parts} rows (parts) of {self.workers} numbers (workers)")
        if len(self.blocks) != self.workers:
            raise ValueError(f"blocks must have {self.workers} numbers, one a worker")
        for name in ("store", "sampler", "gather", "worker"):
            if name not in self.tasks:
                raise ValueError(f"tasks must have {name}")
        return self

    def check_job(self, job: Mapping[str, Any], where: str) -> None:
        """Refuse a profile of another job."""
        for name in (each for each in DECIDING if each in job):
            value = self.job.get(name)
            if job[name] != value:
                raise PenstockError(
                    f"{where} is the profile of another job: it has {name} {value!r} where this one has"
                    f" {job[name]!r}; measure this one with `penstock profile`.",
                    code="mismatched-inputs",
                )


def deciding(job: Mapping[str, Any]) -> dict[str, Any]:
    """What of a job a profile belongs to."""
    return {name: job[name] for name in DECIDING if name in job}


def read_profile(path: Path) -> Profile:
    """Read and validate a profile."""
    if path.is_dir():
        raise PenstockError(
            f"{path} is a folder, not a profile: name the file that `penstock profile` wrote.", code="wrong-file"
        )
    if not path.is_file():
        raise PenstockError(
            f"{path} does not exist: make a profile with `penstock profile JOB -o {path}`.", code="file-not-found"
        )
    return read_checked(path, Profile, FORMAT, VERSION)


def write_profile(profile: Profile, path: Path) -> None:
    """For people to read and change."""
    rounded = _rounded(profile.model_dump())
    text = Profile.model_validate(rounded).model_dump_json(indent=1)
    write_whole(path, text + "\n")


def _rounded(value: Any) -> Any:
    """Six digits are more than were measured."""
    if isinstance(value, float):
        return 0.0 if value == 0 else round(value, 5 - math.floor(math.log10(abs(value))))
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
