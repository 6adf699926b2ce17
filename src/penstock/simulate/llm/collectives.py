"""Collectives of a training step, as flows between devices: all-to-alls of experts, and rings that sum gradients."""

from collections.abc import Iterable, Sequence
from functools import cache, partial
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from penstock.coflow.matching import bound, seconds
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key, unit_draws
from penstock.simulate.llm.fabric import PLACES, SERVER
from penstock.simulate.llm.job import Costs, LlmJob
from penstock.simulate.workload import Item, Workload, WorkloadBuilder

# The workload of one training step, by device: tasks on devices, and flows between them.


class DeviceWorkload:
    """Tasks and flows by device number; images of devices follow these, and then the virtual nodes of `fabric`."""

    def __init__(self, devices: int) -> None:
        """`devices` are all devices, including images of others."""
        self._builder, self._placement = WorkloadBuilder("llm"), list[int]()
        self._devices = devices
        self._places = [self.task(f"place {place}", "place", 0.0, place) for place in range(devices + len(PLACES))]

    def beyond(self, apart: int) -> int:
        """The virtual node for traffic to or from this distance (of `fabric`)."""
        return self._devices + apart

    def task(self, name: str, kind: str, seconds: float, device: int, after: Iterable[Item] = ()) -> Item:
        """A task of a device, when all of `after` have ended."""
        item = self._builder.task(name, kind, seconds, follows_itself=False)
        self._placement.append(device)
        for each in after:
            self._builder.wait(each, item)
        return item

    def flow(
        self, name: str, kind: str, ends: tuple[int, int], size: float, after: Iterable[Item], coflow: str,
        microbatch: int, layer: int,
    ) -> Item:  # fmt: skip
        """Bytes from one device to another."""
        source, target = self._places[ends[0]], self._places[ends[1]]
        item = self._builder.flow(
            source, target, size, kind, name=name, coflow=coflow, waits_for_source=False, awaited_by_target=False,
            microbatch=microbatch, layer=layer,
        )  # fmt: skip
        for each in after:
            self._builder.wait(each, item)
        return item

    def wait(self, before: Item, after: Item, lag: int = 0) -> None:
        """Make `after` wait for `before` of `lag` steps ago."""
        self._builder.wait(before, after, lag)

    def build(self) -> tuple[Workload, Array]:
        """The workload, and the device of every task."""
        return self._builder.build(), np.array(self._placement, np.int32)


# All-to-alls of expert groups in a workload. In pairs, every two ranks have a flow and all start at once, as under
# `fair`. In ports, a rank has one flow for all it sends and one for all it receives, so the whole takes as long as its
# busiest port, as under the best schedule; what a schedule takes longer than that (overheads of phases, ports that wait
# for each other) follows as a delay. A rank continues when all it sends and receives has arrived.

_PAIRS = 16
"""The largest number of ranks for which every pair has a flow of its own."""
_MOST_WORK = 2e9
"""The bound on layers times the fourth power of ranks, which the time to schedule their all-to-alls is proportional to:
a minute.
"""


def in_pairs(job: LlmJob) -> bool:
    """Whether every pair of ranks has a flow of its own in an all-to-all."""
    options = job.exchange
    few = job.parallel.expert <= _PAIRS or job.servers.routing == "ecmp"
    return options.detail == "pairs" or (options.could_be_pairs and few)


class Marks(NamedTuple):
    """The name of an all-to-all, and the factors by which it is ordered."""

    name: str
    kind: str
    microbatch: int
    layer: int


class Routing(NamedTuple):
    """The routing of a layer's tokens: bytes from rank to rank, and the distances (of `fabric`) between them."""

    sizes: Array  # int64 [ranks, ranks]; nothing to itself
    apart: Array  # int64 [ranks, ranks]
    delay: float  # seconds a schedule needs beyond its busiest port

    @property
    def back(self) -> "Routing":
        """The routing of the way back, from experts to tokens."""
        return Routing(self.sizes.T, self.apart.T, self.delay)


class Experts:
    """The expert traffic of one job, for groups of devices on `servers` [devices], each of which
    sends so many bytes.
    """

    def __init__(self, job: LlmJob, workload: DeviceWorkload, sent: float, servers: Sequence[int]) -> None:
        self._job, self._workload, self._sent, self._servers = job, workload, round(sent), servers
        ranks = job.parallel.expert
        self._pairs = in_pairs(job)
        nics = job.servers.gbps * 1e9 / 8 / job.servers.gpus
        self._rate = nics * job.parallel.tensor
        self._apart: dict[int, Array] = {}
        self._sizes = cache(partial(token_bytes, ranks, self._sent, job.exchange.skew, job.seed))
        """Bytes from rank to rank, to itself too, by layer."""
        self._routings: dict[tuple[int, bytes], Routing] = {}
        drawn = job.model.layers if job.exchange.skew else 1
        if not self._pairs and drawn * ranks**4 > _MOST_WORK:
            raise PenstockError(
                f"All-to-alls of {ranks} ranks in {drawn} layers that differ would take too long to schedule: spread"
                " experts over fewer ranks, or let schedule be fair and detail pairs.",
                code="too-large",
            )

    def routing(self, layer: int, devices: Sequence[int]) -> Routing:
        """The routing of a layer in a group of devices; the same for all microbatches."""
        apart = self._distances(devices)
        layer = layer if self._job.exchange.skew else 0
        key = (layer, apart.tobytes())
        if key not in self._routings:
            options, sizes = self._job.exchange, self._sizes(layer).copy()
            np.fill_diagonal(sizes, 0)
            between = np.where(apart == SERVER, 0, sizes)
            delay = 0.0
            if not self._pairs and between.any():
                taken = seconds(between, options.schedule, self._rate, options.overhead_us / 1e6)
                delay = taken - bound(between, self._rate)
            self._routings[key] = Routing(sizes, apart, delay)
        return self._routings[key]

    def _distances(self, devices: Sequence[int]) -> Array:
        if devices[0] not in self._apart:
            servers = [self._servers[device] for device in devices]
            found = [[self._job.servers.apart(one, other) for other in servers] for one in servers]
            self._apart[devices[0]] = np.array(found)
        return self._apart[devices[0]]

    def load(self, layer: int) -> Array:
        """Tokens that each rank's experts have, relative to an equal share."""
        received = self._sizes(layer).sum(axis=0)
        return np.asarray(received / received.mean())

    def exchange(
        self, routing: Routing, devices: Sequence[int], ready: Sequence[Item], marks: Marks
    ) -> list[list[Item]]:
        """Add the flows of a group's all-to-all, each rank's after its own of `ready`; returns what each rank then
        waits for.
        """
        waits = self._in_pairs(routing, devices, ready, marks) if self._pairs else self._in_ports(
            routing, devices, ready, marks
        )  # fmt: skip
        if routing.delay > 0:
            workload = self._workload
            for rank, device in enumerate(devices):
                waits[rank] = [
                    workload.task(f"{marks.name} {device} phases", "phases", routing.delay, device, waits[rank])
                ]
        return waits

    def _in_pairs(
        self, routing: Routing, devices: Sequence[int], ready: Sequence[Item], marks: Marks
    ) -> list[list[Item]]:
        waits: list[list[Item]] = [[item] for item in ready]
        for source, target in zip(*(each.tolist() for each in np.nonzero(routing.sizes)), strict=True):
            ends = (devices[source], devices[target])
            flow = self._flow(marks, ends, int(routing.sizes[source, target]), [ready[source]])
            waits[source].append(flow)
            waits[target].append(flow)
        return waits

    def _in_ports(
        self, routing: Routing, devices: Sequence[int], ready: Sequence[Item], marks: Marks
    ) -> list[list[Item]]:
        workload = self._workload
        waits: list[list[Item]] = [[item] for item in ready]
        # What a rank receives counts as in flight from when the last of the others sends.
        all_ready = workload.task(f"{marks.name} {devices[0]} begins", "edge", 0.0, devices[0], ready)
        for apart in np.unique(routing.apart).tolist():
            sizes, middle = np.where(routing.apart == apart, routing.sizes, 0), workload.beyond(apart)
            for rank, device in enumerate(devices):
                sent, received = int(sizes[rank].sum()), int(sizes[:, rank].sum())
                if sent:
                    waits[rank].append(self._flow(marks, (device, middle), sent, [ready[rank]]))
                if received:
                    waits[rank].append(self._flow(marks, (middle, device), received, [all_ready]))
        return waits

    def _flow(self, marks: Marks, ends: tuple[int, int], size: int, after: list[Item]) -> Item:
        name = f"{marks.name} {ends[0]}->{ends[1]}"
        return self._workload.flow(name, marks.kind, ends, size, after, marks.name, marks.microbatch, marks.layer)


def token_bytes(ranks: int, sent: int, skew: float, seed: int, layer: int) -> Array:
    """int64 [ranks, ranks]: each rank sends `sent` bytes, to the ranks in proportion to their experts' popularity.

    The k-th most popular rank has a weight of 1 / k^skew; which are popular is drawn anew for every layer, and the
    tokens of each rank vary around that by up to a fifth. All microbatches are alike.
    """
    if skew == 0:
        return np.full((ranks, ranks), round(sent / ranks), np.int64)
    drawn = unit_draws(document_key(seed, "popular experts of layer {}", layer), ranks)
    spread = unit_draws(document_key(seed, "tokens of layer {}", layer), ranks * ranks)
    weights = 1.0 / (1.0 + np.argsort(np.argsort(drawn))) ** skew
    shares = weights * (0.8 + 0.4 * spread.reshape(ranks, ranks))
    return np.asarray(np.round(sent * shares / shares.sum(axis=1, keepdims=True)), np.int64)


# Gradients are summed and parameters distributed, bucket by bucket: coflows of rings over data ranks.


class Bucket(NamedTuple):
    """Layers whose gradients are sent together, on the devices that hold them (one for each simulated data rank)."""

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
        # Gradient clipping needs one number from all gradients before any update.
        flows = [flow for each in summed for flow in each]
        whole = workload.task("norm of all gradients", "edge", 0.0, 0, flows)
    for bucket, flows in zip(buckets, summed, strict=True):
        _hand_out(job, costs, workload, bucket, [*flows, whole] if whole else flows)


def _hand_out(job: LlmJob, costs: Costs, workload: DeviceWorkload, bucket: Bucket, summed: list[Item]) -> None:
    start, first = bucket.layers.start, bucket.devices[0]
    # One task between many and many, which would otherwise have a dependency for every pair.
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
    """One coflow: the ring of all data ranks for shared parameters, that of every e-th for experts."""
    kind = "reduce" if reduce else "gather"
    name = f"{kind} {bucket.layers.start}"
    each = job.reduction.gradient_bytes if reduce else job.reduction.parameter_bytes
    # A reduction belongs to the last microbatch, a gather to the first of the next step.
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
    """The device of a rank; beyond those simulated, its representative, as seen from another server."""
    if rank < len(bucket.devices):
        return bucket.devices[rank]
    return (bucket.images or bucket.devices)[rank % len(bucket.devices)]


def _latency(job: LlmJob) -> float:
    """Seconds of the hops of a reduce-scatter and an all-gather."""
    data = job.parallel.data
    hops = 2 * (data - 1) if job.reduction.shape == "ring" else 2 * ceil(log2(max(2, data)))
    return hops * job.reduction.latency_us / 1e6 if data > 1 else 0.0
