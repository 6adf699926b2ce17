"""The workload of one training step, by device: tasks on devices, and flows between them."""

from collections.abc import Iterable

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.llm.fabric import PLACES
from penstock.simulate.workload import Workload
from penstock.simulate.workload_builder import Item, WorkloadBuilder


class DeviceWorkload:
    """Tasks and flows by device number; images of devices follow these, and then the places of `fabric`."""

    def __init__(self, devices: int) -> None:
        """`devices` are all devices, including images of others."""
        self._builder, self._placement = WorkloadBuilder("llm"), list[int]()
        self._devices = devices
        self._places = [self.task(f"place {place}", "place", 0.0, place) for place in range(devices + len(PLACES))]

    def beyond(self, apart: int) -> int:
        """The place for what goes so far (of `fabric`) from a device, or comes from there."""
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
        """Let `after` wait for `before` of `lag` steps ago."""
        self._builder.wait(before, after, lag)

    def build(self) -> tuple[Workload, Array]:
        """The workload, and the device of every task."""
        return self._builder.build(), np.array(self._placement, np.int32)
