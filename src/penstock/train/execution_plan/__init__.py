"""The execution plan of a job on one machine: what `penstock plan --execution` says.

`train.job_batches` counts what a job's batches are made of, `job_space` lists what the job and the machine leave open,
`job_fields` says which fields of a job carry a choice out, and `planning` joins them. Predictions are made in
`penstock.plan.execution`.
"""

from penstock.train.execution_plan.job_fields import fields_of
from penstock.train.execution_plan.planning import PlannedExecution, plan_execution

__all__ = ["PlannedExecution", "fields_of", "plan_execution"]
