"""What Python users call: `ps.train` and the `Run` that it returns, `ps.loader`, `ps.infer`, `ps.explain` and
`ps.memory`."""

from penstock.api.batches import loader
from penstock.api.explanation import VertexExplanation, explain
from penstock.api.outputs import infer
from penstock.api.run_handle import Run
from penstock.api.training import memory, memory_of_job, train

__all__ = ["Run", "VertexExplanation", "explain", "infer", "loader", "memory", "memory_of_job", "train"]
