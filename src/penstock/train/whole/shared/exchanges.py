"""The ways in which workers exchange rows, by the name that a job gives them, and what each cannot do."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.nn.layer_table import layer_entry
from penstock.nn.layers.entry import SourceScale
from penstock.sampling.key import BatchKey
from penstock.train.job import Job
from penstock.train.whole.shared.boundary import BoundaryDraw


def _as_asked(job: Job) -> str:
    return job.pipeline


def _nothing_drawn(key: BatchKey, job: Job) -> BoundaryDraw | None:
    return None


def _draw(key: BatchKey, job: Job) -> BoundaryDraw | None:
    return BoundaryDraw(key.purpose("boundary"), job.boundary_share)


@dataclass(frozen=True)
class Exchange:
    """One way to exchange rows."""

    pipeline: Callable[[Job], str] = _as_asked
    """Which of the two levels of overlap it has: none, inter, intra or both."""
    draw: Callable[[BatchKey, Job], BoundaryDraw | None] = _nothing_drawn
    """The rows that take part in a step; None: all."""
    replicates: bool = False
    """Whether rows of others may be computed here instead."""
    linear_only: bool = False
    """Whether it is for layers that are linear in their neighbours' rows."""
    sums: bool = True
    """Whether workers may send sums of rows instead of rows."""

    def source_scale(self, job: Job) -> SourceScale | None:
        """How a model's layers weigh the rows that workers add up for each other; None: they send every row."""
        found: SourceScale | None = layer_entry(job.model).source_scale(job) if self.sums else None
        return found

    def reasons_against(self, job: Job) -> list[str]:
        """Why a job cannot exchange rows in this way."""
        reasons = []
        if self.linear_only and not layer_entry(job.model).linear(job):
            reasons.append(f"a share of rows estimates sums and means, and model {job.model} as it is set takes none")
        if self.replicates and job.norm == "batch":
            reasons.append("batch normalisation would count rows twice that several workers compute")
        if job.keep == "recompute":
            reasons.append("keep recompute would exchange all rows again")
        return reasons


EXCHANGES = {
    "bins": Exchange(),
    "layer": Exchange(pipeline=lambda job: "none"),
    "boundary": Exchange(draw=_draw, linear_only=True, sums=False),
    "replicate": Exchange(replicates=True),
}
