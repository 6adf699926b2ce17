"""The profile of a job that trains on the whole graph: bins are computed on this host, by one process.

Rows, edges and inputs decide what a bin takes, and a plan counts them in its own parts. So one process is measured, and
the profile serves clusters of every size. Messages are measured between two endpoints of that process, which take the
time of both ends.
"""

from penstock.cluster.message_profile import measure_messages
from penstock.cost.profile import CostSpread, MemoryUse, OperatorCost, Profile, TransferCost, deciding
from penstock.memory import resident_mb
from penstock.plan.workloads import workload_of
from penstock.plan.workloads.bin_cost import BACKWARD, FORWARD, operator_name
from penstock.plan.workloads.message_cost import MESSAGE
from penstock.progress import Progress
from penstock.train.build import make_session
from penstock.train.job import Job
from penstock.train.run_context import run_context
from penstock.train.whole.measured import MeasuredBin, measure_bins

_MOST_REPEATS = 5
"""Computations of a bin, however many iterations are asked for."""


def profile_whole(job: Job, device: str, iterations: int, progress: Progress) -> Profile:
    """Forward and backward passes of some bins of every layer, and messages of rows, by their sizes."""
    measured = job.model_copy(update={"threads": 1, "device": device, "epochs": max(job.epochs, 1)})
    repeats = min(iterations, _MOST_REPEATS)
    with run_context(measured), progress.step("measuring bins"):
        session = make_session(measured)
        messages = list(measure_messages(repeats))
        found = {(each.layer, each.rows, each.edges): each for each in measure_bins(session, repeats)}
        weights = sum(each.numel() * each.element_size() for each in session.learned.parameters())
        held = resident_mb() / 1024
    operators = [cost for each in found.values() for cost in _operators(each, device, repeats)]
    operators += [
        OperatorCost(name=MESSAGE, sizes={"bytes": float(size)}, iterations=repeats, seconds=CostSpread(mean=seconds))
        for size, seconds in messages
    ]
    return Profile(
        mode=workload_of(job.sampler).mode,
        job=deciding(job.model_dump(mode="json")),
        iterations=repeats,
        batches=job.steps_per_epoch,
        parts=1,
        workers=1,
        operators=operators,
        transfers=[TransferCost(name="gradients", source="model", target="model", bytes=[[float(weights)]])],
        memory=[MemoryUse(process="worker", gb=held)],
    )


def _operators(measured: MeasuredBin, device: str, repeats: int) -> list[OperatorCost]:
    at = {name: float(getattr(measured, name)) for name in ("rows", "edges", "inputs", "width_in", "width_out")}
    return [
        OperatorCost(
            name=operator_name(way, measured.layer),
            device=device,
            sizes=at,
            iterations=repeats,
            seconds=CostSpread(mean=seconds),
            cores=1,
        )
        for way, seconds in ((FORWARD, measured.forward_s), (BACKWARD, measured.backward_s))
    ]
