"""Gradients summed and parameters handed out, bucket by bucket: coflows of rings over data ranks."""

from collections.abc import Sequence
from math import ceil, log2
from typing import NamedTuple

from penstock.simulate.building import Item
from penstock.simulate.llm.costs import Costs
from penstock.simulate.llm.draft import Draft
from penstock.simulate.llm.job import LlmJob


class Bucket(NamedTuple):
    """Layers whose gradients go together, on the devices that hold them (one for each simulated data rank)."""

    layers: range
    devices: Sequence[int]
    ready: Sequence[Item]  # what ends when a device's gradients are there
    awaited: Sequence[Item]  # what needs the parameters in the next step


def add_gradients(job: LlmJob, costs: Costs, draft: Draft, buckets: Sequence[Bucket]) -> None:
    """Reduce-scatter, update and all-gather of every bucket."""
    last = job.model.layers - 1
    summed = [_collective(job, costs.reduced(each.layers, last), draft, each, each.ready, True) for each in buckets]
    whole = None
    if job.reduction.clip == "norm":
        # One number of all gradients, which every update needs.
        flows = [flow for each in summed for flow in each]
        whole = draft.task("norm of all gradients", "edge", 0.0, 0, flows)
    for bucket, flows in zip(buckets, summed, strict=True):
        _hand_out(job, costs, draft, bucket, [*flows, whole] if whole else flows)


def _hand_out(job: LlmJob, costs: Costs, draft: Draft, bucket: Bucket, summed: list[Item]) -> None:
    seconds = len(bucket.layers) * job.compute.update_ms / 1e3 + _latency(job)
    updated = [
        draft.task(f"update {bucket.layers.start} {device}", "update", seconds, device, summed)
        for device in bucket.devices
    ]
    flows = _collective(job, costs.reduced(bucket.layers, job.model.layers - 1), draft, bucket, updated, False)
    for entry in bucket.awaited:
        for flow in flows or updated:
            draft.wait(flow, entry, 1)


def _collective(
    job: LlmJob, sizes: tuple[float, float], draft: Draft, bucket: Bucket, ready: Sequence[Item], reduce: bool
) -> list[Item]:
    """One coflow: the ring of all data ranks for what they share, that of every e-th for experts."""
    kind = "reduce" if reduce else "gather"
    name = f"{kind} {bucket.layers.start}"
    each = job.reduction.gradient_bytes if reduce else job.reduction.parameter_bytes
    # A reduction belongs to the last microbatch, a hand-out to the first of the next step.
    microbatch = job.parallel.microbatches - 1 if reduce else 0
    flows: list[Item] = []
    for shift, parameters, ring in ((1, sizes[0], "shared"), (job.parallel.expert, sizes[1], "experts")):
        if parameters == 0:
            continue
        for rank, device in enumerate(bucket.devices):
            for ends, after in _hops(job, draft, bucket.devices, rank, shift):
                title = f"{name} {ring} {device} {ends[0]}->{ends[1]}"
                flows.append(
                    draft.flow(
                        title, kind, ends, parameters * each, [ready[after]], name, microbatch, bucket.layers.start
                    )
                )
    return flows


def _hops(
    job: LlmJob, draft: Draft, devices: Sequence[int], rank: int, shift: int
) -> list[tuple[tuple[int, int], int]]:
    """Where a rank's part of a ring goes, and whose readiness that needs: to the next rank, or beyond those simulated
    to the fabric, and from there into the rank that comes round."""
    following = rank + shift
    if following < len(devices) or job.simulate == "all" or len(devices) == job.parallel.data:
        return [((devices[rank], devices[following % len(devices)]), rank)]
    into = following % len(devices)
    return [((devices[rank], draft.fabric), rank), ((draft.fabric, devices[into]), rank)]


def _latency(job: LlmJob) -> float:
    """Seconds of the hops of a reduce-scatter and an all-gather."""
    data = job.parallel.data
    hops = 2 * (data - 1) if job.reduction.shape == "ring" else 2 * ceil(log2(max(2, data)))
    return hops * job.reduction.latency_us / 1e6 if data > 1 else 0.0
