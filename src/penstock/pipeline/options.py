"""The pipeline fields of a job."""

from pydantic import Field

from penstock.graph.documents import AutoCount, StrictDocument


class PipelineOptions(StrictDocument):
    """Threads and queue depths of the stages between seeds and training. None of them changes a result."""

    seeds_depth: int = Field(4, ge=1, description="batches of seeds chosen ahead")
    sample_threads: AutoCount = Field(
        0,
        description="threads that sample, each one batch at a time; auto: one, and all cores but one, 16 at most, where"
        " a GPU computes what the host draws",
    )
    sample_depth: int = Field(2, ge=1, description="batches sampled ahead")
    gather_threads: int = Field(1, ge=1, description="threads that gather features, each one batch at a time")
    gather_depth: int = Field(2, ge=1, description="batches whose features are gathered ahead")
    transfer_threads: int = Field(
        1, ge=1, description="threads that copy batches to the device, each one batch at a time"
    )
    transfer_depth: int = Field(1, ge=1, description="batches copied to the device ahead")
    trace_batches: int = Field(
        1000, ge=0, description="batches recorded in events.jsonl; after that, every hundredth one"
    )

    @property
    def drawing_threads(self) -> int:
        """The threads that sample: one where nothing was said or decided."""
        return self.sample_threads or 1
