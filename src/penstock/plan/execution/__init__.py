"""Plans of one machine's execution: which device draws, reads, aggregates and multiplies what of a batch, and the time.

`choice` has what can be chosen and the sizes of a batch that decide, `first_layer` what is done with a batch's features
before the model; it makes the operators of one batch from a choice, prices them with the cost model and assigns them to
processors and the bus. `search` simulates many batches one after the other and compares all choices. Nothing here knows
jobs: `penstock.train.execution_plan` does.
"""

from penstock.plan.execution.choice import BatchKind, ExecutionChoice, PipelineDepths, mean_blocks
from penstock.plan.execution.search import (
    Alternative,
    ExecutionPlan,
    Prediction,
    Space,
    outside_measured,
    predict,
    search,
)

__all__ = [
    "Alternative",
    "BatchKind",
    "ExecutionChoice",
    "ExecutionPlan",
    "PipelineDepths",
    "Prediction",
    "Space",
    "mean_blocks",
    "outside_measured",
    "predict",
    "search",
]
