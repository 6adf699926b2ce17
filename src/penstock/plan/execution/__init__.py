"""Plans of one machine's execution: who draws, reads, aggregates and multiplies what of a batch, and what that takes.

`choice` has what can be chosen and the sizes of a batch that decide, `first_layer` what becomes of a batch's features
before the model sees them. `batch_operators` makes the operators of one batch from a choice, prices them with the
cost model and says which processor or bus carries them out, `prediction` lets the simulator run many batches one
behind the other, and `search` compares all choices. Nothing here knows jobs: `penstock.train.execution_plan` does.
"""

from penstock.plan.execution.choice import BatchKind, ExecutionChoice, PipelineDepths, mean_blocks
from penstock.plan.execution.prediction import Prediction, predict
from penstock.plan.execution.search import Alternative, ExecutionPlan, Space, outside_measured, search

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
