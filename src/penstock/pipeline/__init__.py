"""From seeds to batches that a model can use: stages that run in parallel and keep the order.

`stages` is the mechanism for any stages, and measures them; `schedule` is the sequence of batches, `loader` the five
stages of training. `batch_rows` and `device` read the features of batches and move them to the device that computes.
`grouped_batches` has batches that are drawn in groups by all processors, or once for all epochs.
"""

from typing import TYPE_CHECKING

from penstock.imports import lazy_names

if TYPE_CHECKING:
    from penstock.pipeline.batch_rows import HostCarrier
    from penstock.pipeline.loader import Loader
    from penstock.pipeline.options import PipelineOptions
    from penstock.pipeline.schedule import Planned, Position, Schedule
    from penstock.pipeline.stages import Stage, StageError, StagePipeline

__all__ = [
    "HostCarrier",
    "Loader",
    "PipelineOptions",
    "Planned",
    "Position",
    "Schedule",
    "Stage",
    "StageError",
    "StagePipeline",
]

# Imported on first use, so that reading the options (a job, the command line's help) does not load kernels.
__getattr__, __dir__ = lazy_names(__name__)
