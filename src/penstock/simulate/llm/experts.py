"""All-to-alls of expert groups in a workload.

In pairs, every two ranks have a flow and all start at once: what `fair` does. In ports, a rank has one flow for all it
sends and one for all it receives, so the whole takes what its busiest port needs, as the best schedule does; what a
schedule takes longer than that (phases' overheads, ports that wait for each other) follows as a delay. A rank goes on
when all it sends and receives is through.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.coflow.matching import bound, seconds
from penstock.graph.arrays import Array
from penstock.simulate.building import Item
from penstock.simulate.llm.draft import Draft
from penstock.simulate.llm.job import LlmJob
from penstock.simulate.llm.tokens import token_bytes

_PAIRS = 16
"""Ranks up to which every pair has a flow of its own."""


class Marks(NamedTuple):
    """What an all-to-all is called and ordered by."""

    name: str
    kind: str
    microbatch: int
    layer: int


class Routing(NamedTuple):
    """Where a layer's tokens go: bytes inside a server, and between servers, from rank to rank."""

    inside: Array  # int64 [ranks, ranks]
    between: Array  # int64 [ranks, ranks]
    delay: float  # seconds a schedule needs beyond its busiest port

    @property
    def back(self) -> "Routing":
        """The way back."""
        return Routing(self.inside.T, self.between.T, self.delay)


class Experts:
    """Of one job, for expert groups of the same shape: `servers` are those of a group's ranks."""

    def __init__(self, job: LlmJob, draft: Draft, sent: float, servers: Sequence[int]) -> None:
        self._job, self._draft, self._sent = job, draft, round(sent)
        self._inside = np.equal.outer(servers, servers)
        options = job.exchange
        few = len(servers) <= _PAIRS
        self._pairs = options.detail == "pairs" or (options.detail == "auto" and options.schedule == "fair" and few)
        nics = job.servers.nics * job.servers.nic_gbps * 1e9 / 8 / job.servers.gpus
        self._rate = nics * job.parallel.tensor
        self._layers: dict[int, Routing] = {}

    def routing(self, layer: int) -> Routing:
        """A layer's; the same for all microbatches and stages."""
        if layer not in self._layers:
            options, ranks = self._job.exchange, len(self._inside)
            sizes = token_bytes(ranks, self._sent, options.skew, self._job.seed, layer)
            np.fill_diagonal(sizes, 0)
            between = np.where(self._inside, 0, sizes)
            delay = 0.0
            if not self._pairs and between.any():
                taken = seconds(between, options.schedule, self._rate, options.overhead_us / 1e6)
                delay = taken - bound(between, self._rate)
            self._layers[layer] = Routing(np.where(self._inside, sizes, 0), between, delay)
        return self._layers[layer]

    def load(self, layer: int) -> Array:
        """Tokens that each rank's experts have, over an equal part."""
        sizes = token_bytes(len(self._inside), self._sent, self._job.exchange.skew, self._job.seed, layer)
        received = sizes.sum(axis=0)
        return np.asarray(received / received.mean())

    def exchange(
        self, routing: Routing, devices: Sequence[int], ready: Sequence[Item], marks: Marks
    ) -> list[list[Item]]:
        """The flows of a group's all-to-all, each rank's after its own of `ready`; what each rank then waits for."""
        waits = self._in_pairs(routing, devices, ready, marks) if self._pairs else self._in_ports(
            routing, devices, ready, marks
        )  # fmt: skip
        if routing.delay > 0:
            draft = self._draft
            for rank, device in enumerate(devices):
                waits[rank] = [
                    draft.task(f"{marks.name} {device} phases", "phases", routing.delay, device, waits[rank])
                ]
        return waits

    def _in_pairs(
        self, routing: Routing, devices: Sequence[int], ready: Sequence[Item], marks: Marks
    ) -> list[list[Item]]:
        waits: list[list[Item]] = [[item] for item in ready]
        sizes = routing.inside + routing.between
        for source, target in zip(*(each.tolist() for each in np.nonzero(sizes)), strict=True):
            ends = (devices[source], devices[target])
            flow = self._flow(marks, ends, int(sizes[source, target]), [ready[source]])
            waits[source].append(flow)
            waits[target].append(flow)
        return waits

    def _in_ports(
        self, routing: Routing, devices: Sequence[int], ready: Sequence[Item], marks: Marks
    ) -> list[list[Item]]:
        draft = self._draft
        waits: list[list[Item]] = [[item] for item in ready]
        # What a rank receives is on its way from when the last of the others sends.
        all_ready = draft.task(f"{marks.name} {devices[0]} begins", "edge", 0.0, devices[0], ready)
        for sizes, middle in ((routing.between, draft.fabric), (routing.inside, draft.switch)):
            for rank, device in enumerate(devices):
                sent, received = int(sizes[rank].sum()), int(sizes[:, rank].sum())
                if sent:
                    waits[rank].append(self._flow(marks, (device, middle), sent, [ready[rank]]))
                if received:
                    waits[rank].append(self._flow(marks, (middle, device), received, [all_ready]))
        return waits

    def _flow(self, marks: Marks, ends: tuple[int, int], size: int, after: list[Item]) -> Item:
        name = f"{marks.name} {ends[0]}->{ends[1]}"
        return self._draft.flow(name, marks.kind, ends, size, after, marks.name, marks.microbatch, marks.layer)
