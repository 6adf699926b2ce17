"""Workload builders: how each execution mode turns what was measured into tasks and flows for the simulator.

`entry` is what a builder brings, `mini_batch` is the builder of mini-batch training on a cluster, `mini_batch_template`
the tasks and flows of it. A new execution mode is one file that defines a `WorkloadEntry` and one line in `WORKLOADS`
(docs/planning.md, "How to add a workload builder").
"""

from importlib import import_module

from penstock.errors import PenstockError, nearest
from penstock.plan.workloads.entry import ExecutionWorkload, WorkloadEntry

WORKLOADS = {"mini-batch": "penstock.plan.workloads.mini_batch:MINI_BATCH"}
"""For each execution mode, the module and the name of its entry. Modules are imported when their mode is asked for."""

__all__ = ["WORKLOADS", "ExecutionWorkload", "WorkloadEntry", "workload_entry"]


def workload_entry(mode: str) -> WorkloadEntry:
    """The entry of an execution mode."""
    if mode not in WORKLOADS:
        raise PenstockError(f"No execution mode is called {mode!r}{nearest(mode, WORKLOADS)}", code="unknown-name")
    module, _, attribute = WORKLOADS[mode].partition(":")
    entry: WorkloadEntry = getattr(import_module(module), attribute)
    return entry
