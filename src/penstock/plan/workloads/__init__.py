"""Workload builders: how each execution mode turns measurements into tasks and flows for the simulator.

`entry` is the interface of a builder. `mini_batch` is the builder of mini-batch training on a cluster with its tasks
and flows. `whole` is that of training on the whole graph; `whole_section` has the setup of a run and the costs of bins
and messages. `gradient_sums` are tasks and flows that both have. A new execution mode is one file that defines a
`WorkloadEntry` and one line in `WORKLOADS` (docs/planning.md, "How to add a workload builder").
"""

from penstock.plan.workloads.entry import ExecutionWorkload, PlannedRun, WorkloadEntry
from penstock.registry import Registry
from penstock.sampling.sampler_table import SAMPLERS

WORKLOADS: Registry[WorkloadEntry] = Registry(
    "execution mode",
    "penstock.workloads",
    {
        "mini-batch": "penstock.plan.workloads.mini_batch:MINI_BATCH",
        "whole": "penstock.plan.workloads.whole:WHOLE",
    },
    WorkloadEntry,
)

__all__ = ["WORKLOADS", "ExecutionWorkload", "PlannedRun", "WorkloadEntry", "workload_of"]


def workload_of(sampler: str) -> WorkloadEntry:
    """The entry of the mode that jobs with a sampler are executed in."""
    entries, drawn = [WORKLOADS[mode] for mode in WORKLOADS.names()], SAMPLERS[sampler]
    own = [entry for entry in entries if entry.samplers is not None and entry.samplers(drawn)]
    return (own or [entry for entry in entries if entry.samplers is None])[0]
