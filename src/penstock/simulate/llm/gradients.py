"""Gradients summed and parameters handed out, bucket by bucket: coflows of rings over data ranks."""

from collections.abc import Sequence
from math import ceil, log2
from typing import NamedTuple

from penstock.simulate.llm.device_workload import DeviceWorkload
from penstock.simulate.llm.job import Costs, LlmJob
from penstock.simulate.workload_builder import Item


class Bucket(NamedTuple):
    """Layers whose gradients go together, on the devices that hold them (one for each simulated data rank)."""

    layers: range
    devices: Sequence[int]
    ready: Sequence[Item]  # what ends when a device's gradients are there
    awaited: Sequence[Item]  # what needs the parameters in the next step
    images: Sequence[int]  # the first devices as others see them, where rings go on beyond those simulated


def add_gradients(job: LlmJob, costs: Costs, workload: DeviceWorkload, buckets: Sequence[Bucket]) -> None:
    """Reduce-scatter, update and all-gather of every bucket."""
    last = job.model.layers - 1
    summed = [
        # A single data rank has nothing to sum.
        _collective(job, costs.reduced(each.layers, last), workload, each, each.ready, True) or list(each.ready)
        for each in buckets
    ]
    whole = None
    if job.reduction.clip == "norm":
        # One number of all gradients, which every update needs.
        flows = [flow for each in summed for flow in each]
        whole = workload.task("norm of all gradients", "edge", 0.0, 0, flows)
    for bucket, flows in zip(buckets, summed, strict=True):
        _hand_out(job, costs, workload, bucket, [*flows, whole] if whole else flows)


def _hand_out(job: LlmJob, costs: Costs, workload: DeviceWorkload, bucket: Bucket, summed: list[Item]) -> None:
    start, first = bucket.layers.start, bucket.devices[0]
    # One task between many and many, for they would have a dependency for every pair.
    there = workload.task(f"hops {start}", "hops", _latency(job), first, summed)
    seconds = len(bucket.layers) * job.compute.update_ms / 1e3
    updated = [
        workload.task(f"update {start} {device}", "update", seconds, device, [there]) for device in bucket.devices
    ]
    flows = _collective(job, costs.reduced(bucket.layers, job.model.layers - 1), workload, bucket, updated, False)
    handed_out = workload.task(f"handed out {start}", "edge", 0.0, first, flows or updated)
    for entry in bucket.awaited:
        workload.wait(handed_out, entry, 1)


def _collective(
    job: LlmJob,
    sizes: tuple[float, float],
    workload: DeviceWorkload,
    bucket: Bucket,
    ready: Sequence[Item],
    reduce: bool,
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
            ends = (device, _next(bucket, rank + shift))
            title, size = f"{name} {ring} {ends[0]}->{ends[1]}", parameters * each
            flows.append(workload.flow(title, kind, ends, size, [ready[rank]], name, microbatch, bucket.layers.start))
    return flows


def _next(bucket: Bucket, rank: int) -> int:
    """The device of a rank; beyond those simulated, the one that stands for it, as seen from another server."""
    if rank < len(bucket.devices):
        return bucket.devices[rank]
    return (bucket.images or bucket.devices)[rank % len(bucket.devices)]


def _latency(job: LlmJob) -> float:
    """Seconds of the hops of a reduce-scatter and an all-gather."""
    data = job.parallel.data
    hops = 2 * (data - 1) if job.reduction.shape == "ring" else 2 * ceil(log2(max(2, data)))
    return hops * job.reduction.latency_us / 1e6 if data > 1 else 0.0
