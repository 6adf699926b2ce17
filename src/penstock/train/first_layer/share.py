"""Which destinations of a batch the host takes: as many as make host and device end together, by what they took."""

from collections import deque
from statistics import median
from typing import Any

import torch

from penstock.cost.machine_model import machine_model
from penstock.cost.step_prediction import BlockSizes
from penstock.plan.execution.host_share import DivisionRates, balanced_share, predicted_rates
from penstock.sampling.block import Block
from penstock.store.device.moments import Moment

_REMEMBERED = 9
"""Batches whose median time counts."""
_UNKNOWN = 0.5
"""The host's share of the first batches, where nothing predicts another."""
_LEAST = 0.02
"""Of every batch that each side has, so that what it takes stays known."""


class HostShare:
    """The host's share of a batch's edges, corrected by what the last batches took; or a share that stays."""

    def __init__(self, fixed: float | None, threads: int = 1) -> None:
        """`threads` of the host aggregate batches beside each other."""
        self._fixed, self._threads = fixed, threads
        self._host: deque[float] = deque(maxlen=_REMEMBERED)
        self._device: deque[float] = deque(maxlen=_REMEMBERED)
        self._reads: deque[tuple[Moment, Moment, int]] = deque()
        self._predicted: DivisionRates | None = None
        self._asked = False
        self.last = 0.0
        """Of the last batch."""

    def of_device(self, block: Block, width: int, table_rows: int) -> int:
        """How many of the block's first destinations the device takes."""
        sizes = BlockSizes(block.num_src, block.num_dst, block.num_edges)
        self.last = self._fixed if self._fixed is not None else self._balanced(sizes, width, table_rows)
        wanted = (1 - self.last) * block.num_edges
        # Lists are not cut: the one that crosses the boundary is the device's.
        return min(block.num_dst, int(block.indptr.searchsorted(wanted, side="left")))

    def host_took(self, edges: int, seconds: float) -> None:
        """The host has added up so many rows."""
        if edges:
            self._host.append(seconds / edges)

    def device_reads(self, rows: int, device: torch.device) -> "DeviceRead":
        """Around a read of so many rows, on the stream that it is launched on."""
        return DeviceRead(self._reads, rows, device)

    def _balanced(self, block: BlockSizes, width: int, table_rows: int) -> float:
        if not self._asked:
            self._asked, self._predicted = True, predicted_rates(machine_model(), block, width, table_rows)
        while self._reads and self._reads[0][1].has_passed():
            before, after, rows = self._reads.popleft()
            self._device.append(before.seconds_to(after) / max(1, rows))
        known = self._predicted
        if self._host and self._device:
            known = DivisionRates(median(self._host), median(self._device))
        if known is None:
            return _UNKNOWN
        share = balanced_share(block, known._replace(host=known.host / self._threads))
        return min(1 - _LEAST, max(_LEAST, share))


class DeviceRead:
    """Two moments on a device's stream; how far they are apart is read when both have passed."""

    def __init__(self, reads: deque[tuple[Moment, Moment, int]], rows: int, device: torch.device) -> None:
        self._reads, self._rows, self._device = reads, rows, device
        self._before, self._after = Moment(device, True), Moment(device, True)

    def __enter__(self) -> None:
        self._before.mark_on(self._stream())

    def __exit__(self, kind: object, *_: object) -> None:
        self._after.mark_on(self._stream())
        if kind is None:
            self._reads.append((self._before, self._after, self._rows))

    def _stream(self) -> Any:
        return torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
