"""How the slots of captured steps are filled from the host: what a way of reading the first layer's inputs gives them.

A slot's batch is drawn by a recorded launch. Behind it the host learns what was drawn, does its part, and copies the
result to a fixed place, where the recorded step reads it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from penstock.graph.arrays import Array
from penstock.nn.first_rows import AggregatedRows
from penstock.sampling.device.hops import Slot
from penstock.sampling.device.room import Room
from penstock.store.device.host_paths import HostPaths
from penstock.store.device.tables import PinnedTable
from penstock.train.job import Job


class Filling(Protocol):
    """The memory with which one slot is filled, and a batch's passage through it: listed, fetched, begun, finished."""

    def attach(self, slot: Slot) -> None:
        """Have memory for what a slot has room for, and fill it from now on. Waits for what is under way."""

    def inputs(self) -> torch.Tensor | AggregatedRows:
        """What the model reads, from fixed places; recorded with the step."""

    def list(self) -> None:
        """The last of what a draw records: whatever makes it easier for the host."""

    def fetch(self, stream: Any) -> None:
        """Bring what was drawn to the host, on the stream that has drawn."""

    def begin(self) -> None:
        """Wait for what was drawn, and start to fill the slot."""

    def finish(self) -> None:
        """Wait until the host's part is done, and launch its copy."""

    def hold(self, stream: Any) -> None:
        """Let what is launched on a stream from now on wait until the slot is filled."""

    def abandon(self) -> None:
        """The batch that was begun is not wanted any more."""


class SlotFill(Protocol):
    """How all slots of a run are filled."""

    numbers_rows: bool
    """Whether neighbours of the last hop need rows of their own in the batch; else its lists name vertices."""
    paths: HostPaths

    def take(self) -> Filling:
        """Memory for one slot, until it is given back."""

    def give_back(self, filling: Filling) -> None:
        """The memory may be used again. What was launched with it may still be under way."""

    def release(self) -> None:
        """Free the memory that nobody uses: slots are filled in another way for now."""


class FillParts(NamedTuple):
    """What a fill is made from."""

    job: Job
    rows: Array
    """The features, as kernels of the host read them (`nn.stored_numbers`)."""
    dtype: torch.dtype
    """The type of their numbers."""
    table: PinnedTable | None
    """The same features as the device reads them, where it does."""
    paths: Callable[[float | None], HostPaths]
    """Makes paths on which the device has so large a share of the work; None: what is fastest, found by trying."""
    device: torch.device
    row_type: torch.dtype
    """The type in which features reach the model."""


@dataclass(frozen=True)
class Filler:
    """Makes fills for a way of reading the first layer's inputs."""

    make: Callable[[FillParts], SlotFill]
    reasons_against: Callable[[Job, Array], list[str]]
    """Why steps of a job whose features are this array cannot be filled so; empty where they can."""
    host_bytes: Callable[[Room, int, int], int]
    """`host_bytes(room, width, number)`: page-locked memory of one slot, for rows of `width` numbers of `number` bytes
    each."""


def fits(sizes: Any, room: Room) -> bool:
    """Whether a batch whose device counted these `sizes` has all of its lists: one that lacks room is not filled."""
    return all(size <= held for size, held in zip(sizes, room.sizes, strict=True))
