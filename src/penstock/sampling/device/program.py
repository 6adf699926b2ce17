"""What a device does to draw a sampler's batches: a stage that begins a batch, and a rule for each hop.

A sampler's entry makes its program (`SamplerEntry.device`); nothing here knows of samplers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from penstock.errors import PenstockError
from penstock.sampling.block import MiniBatch
from penstock.sampling.device.block import Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import (
    BatchMemory,
    Hop,
    Tables,
    Topology,
    UniformHop,
    blocks,
    fresh_place,
    hop_kernels,
    power,
)
from penstock.sampling.draws import SCANNED


class HopRule(Protocol):
    """How the rows of one hop choose neighbours."""

    can_exclude: ClassVar[bool] = False
    """Whether it leaves out the edges that a batch excludes (`BatchMemory.excluded`)."""

    @property
    def longest(self) -> int | None:
        """A bound on what a row chooses; None: the length of its list."""

    def most(self, rows: int, entries: int) -> int:
        """The most edges that so many rows choose in a graph of so many edges."""
        return entries if self.longest is None else rows * self.longest

    def make(self, memory: BatchMemory, number: int) -> Hop:
        """The hop of a batch, with its memory."""


@dataclass(frozen=True)
class UniformRule(HopRule):
    """Each row draws `fanout` neighbours, all equally likely."""

    can_exclude: ClassVar[bool] = True

    fanout: int
    replace: bool = False

    @property
    def longest(self) -> int:
        return self.fanout

    def make(self, memory: BatchMemory, number: int) -> Hop:
        return UniformHop(memory, number, self.fanout, self.replace)


def uniform_rules(fanouts: Sequence[int], replace: bool = False) -> tuple[HopRule, ...]:
    """The rules of uniform draws; refuses fan-outs that only the host draws."""
    if not fanouts or any(not 0 < fanout <= SCANNED for fanout in fanouts):
        raise PenstockError(
            f"A device can sample fan-outs of 1 to {SCANNED}, not {list(fanouts)}: sample on the host.",
            code="value-out-of-range",
        )
    return tuple(UniformRule(fanout, replace) for fanout in fanouts)


class Beginning(Protocol):
    """The stage that begins a batch: it gives the first rows and copies the batch's keys."""

    def launch(self, epoch: DeviceEpoch) -> None:
        """Launch the beginning of the epoch's next batch."""


class GivenSeeds(Beginning):
    """A batch begins with some vertices of the epoch's order."""

    def __init__(self, memory: BatchMemory) -> None:
        self._memory = memory

    def launch(self, epoch: DeviceEpoch) -> None:
        memory, size = self._memory, min(1024, power(epoch.batch_size))
        hop_kernels().start[(blocks(epoch.batch_size, size),)](
            epoch.order, epoch.cursor, epoch.counts, epoch.batch_size, memory.vertices, memory.known, memory.place,
            memory.keys, epoch.keys, KEYS=epoch.keys.shape[1], B=size,
        )  # fmt: skip


@dataclass(frozen=True)
class DeviceProgram:
    """How a device draws batches: from given vertices, hop by hop."""

    rules: tuple[HopRule, ...]
    stages: ClassVar[int] = 0
    """Stages before the first hop whose vertices are drawn and numbered as those of a hop are."""

    @property
    def hops(self) -> int:
        """The number of hops."""
        return len(self.rules)

    @property
    def purposes(self) -> list[str]:
        """What a batch has keys for, in the order in which hops read them."""
        return [str(hop) for hop in range(self.hops)]

    def largest_room(self, batch_size: int, vertices: int, entries: int) -> Room:
        """The room that no batch can exceed, in a graph of so many vertices and edges."""
        rows, edges = [batch_size], []
        for rule in self.rules:
            edges.append(rule.most(rows[-1], entries))
            rows.append(min(vertices, rows[-1] + edges[-1]))
        return Room(tuple(rows), tuple(edges))

    def sizes(self, batch: MiniBatch) -> list[int]:
        """The sizes that a batch of the host's needs, in the order of `Room.sizes`."""
        return [size for block in batch.blocks[::-1] for size in (block.num_edges, block.num_src)]

    def tables(self, topology: Topology, device: torch.device) -> Tables:
        """Tables that slots share."""
        return {"place": fresh_place(topology.count, device)}

    def begin(self, memory: BatchMemory) -> Beginning:
        """The stage that begins a batch."""
        return GivenSeeds(memory)
