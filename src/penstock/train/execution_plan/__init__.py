"""The execution plan of a job on one machine: what `penstock plan --execution` says.

`train.job_batches` counts what a job's batches are made of, `job_space` lists what the job and the machine leave open,
and `planning` joins them and says which fields of a job carry a choice out. `batch_fit` measures what batches of a run
take beyond their operators. Predictions are made in `penstock.plan.execution`.
"""

from penstock.train.execution_plan.batch_fit import fit_batches, seconds_of_batch
from penstock.train.execution_plan.planning import PlannedExecution, fields_of, plan_execution, plan_executions

__all__ = ["PlannedExecution", "fields_of", "fit_batches", "plan_execution", "plan_executions", "seconds_of_batch"]
