"""The pipeline's stages, their threads and queue depths: those that a job asks for, and those that it has by itself."""

from pydantic import Field

from penstock.graph.documents import AutoCount, StrictDocument

PASSES = ("forward", "exchange", "backward", "update")
"""The stages of a step on the whole graph: one thread does them one after the other."""
STAGES = ("seeds", "sample", "gather", "transfer", "compute", *PASSES)
"""All stages of training, in the order in which a batch passes through them."""


class PipelineFields(StrictDocument):
    """Threads of the stages between seeds and training. No result depends on them."""

    sample_threads: AutoCount = Field(
        0,
        description="threads that sample, each one batch at a time; auto: one, and all cores but one, 16 at most, where"
        " a GPU computes what the host draws",
    )

    @property
    def drawing_threads(self) -> int:
        """The threads that sample: one where nothing was said or decided."""
        return self.sample_threads or 1


class PipelineInternals(StrictDocument):
    """Threads and queue depths of the other stages, compared with others by benchmarks/pipeline_depths.py."""

    @property
    def reading_threads(self) -> int:
        """The threads that gather: one where nothing was decided."""
        return self.gather_threads or 1

    seeds_depth: int = Field(4, ge=1, description="batches of seeds chosen ahead")
    sample_depth: int = Field(2, ge=1, description="batches sampled ahead")
    gather_threads: AutoCount = Field(
        0,
        description="threads that gather features, each one batch at a time; auto: one, and eight for mapped features"
        " that are larger than the memory that is free, up to sixteen for those that are read past the page cache",
    )
    gather_depth: int = Field(2, ge=1, description="batches whose features are gathered ahead")
    transfer_threads: int = Field(
        1, ge=1, description="threads that copy batches to the device, each one batch at a time"
    )
    transfer_depth: int = Field(1, ge=1, description="batches copied to the device ahead")


class PipelineOptions(PipelineFields, PipelineInternals):
    """All that a pipeline is built by."""
