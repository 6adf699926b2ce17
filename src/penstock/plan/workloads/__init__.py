"""Workload builders: how each execution mode turns measurements into tasks and flows for the simulator.

`entry` is the interface of a builder. `mini_batch` is the builder of mini-batch training on a cluster with its tasks
and flows. `whole` is that of training on the whole graph; `whole_section` has the setup of a run and the costs of bins
and messages. `gradient_sums` are tasks and flows that both have. A new execution mode is one file that defines a
`WorkloadEntry` and one line in `WORKLOADS` (docs/planning.md, "How to add a workload builder").
"""

from importlib import import_module

from penstock.errors import PenstockError, nearest
from penstock.plan.workloads.entry import ExecutionWorkload, PlannedRun, WorkloadEntry

WORKLOADS = {
    "mini-batch": "penstock.plan.workloads.mini_batch:MINI_BATCH",
    "whole": "penstock.plan.workloads.whole:WHOLE",
}
"""For each execution mode, the module and the name of its entry. Modules are imported when their mode is used."""

__all__ = ["WORKLOADS", "ExecutionWorkload", "PlannedRun", "WorkloadEntry", "workload_entry", "workload_of"]


def workload_entry(mode: str) -> WorkloadEntry:
    """The entry of an execution mode."""
    if mode not in WORKLOADS:
        raise PenstockError(f"No execution mode is called {mode!r}{nearest(mode, WORKLOADS)}", code="unknown-name")
    module, _, attribute = WORKLOADS[mode].partition(":")
    entry: WorkloadEntry = getattr(import_module(module), attribute)
    return entry


def workload_of(sampler: str) -> WorkloadEntry:
    """The entry of the mode that jobs with a sampler are executed in."""
    entries = [workload_entry(mode) for mode in WORKLOADS]
    own = [entry for entry in entries if entry.samplers is not None and sampler in entry.samplers]
    return (own or [entry for entry in entries if entry.samplers is None])[0]
