"""What can be chosen of one machine's execution."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.nn.order_costs import Order

Device = Literal["cpu", "cuda"]
Features = Literal["host", "pinned", "device"]


class PipelineDepths(NamedTuple):
    """Batches that may be ready ahead of the next stage."""

    sample: int = 2
    gather: int = 2
    transfer: int = 1


USUAL_DEPTHS = PipelineDepths()


@dataclass(frozen=True)
class ExecutionChoice:
    """One way to execute a job's batches."""

    device: Device
    """That computes the model."""
    sampled_by: Device
    features: Features
    """Where they lie: in the host's memory, pinned there for the device to read, or on the device."""
    first_layer: str
    order: tuple[Order, ...]
    """Of every layer's products, the outermost first."""
    cache_rows: int = 0
    """Rows of pinned features that the device has too."""
    sample_threads: int = 1
    """Threads of the host that draw."""
    groups: int = 1
    """Batches that are drawn together before they are trained on; 1: each beside the training of others."""

    launched: bool = False
    """Whether a device's steps are launched one by one, although they could be captured."""

    @property
    def can_be_filled(self) -> bool:
        """Whether a device's steps can be captured if the host fills their slots."""
        return self.device == self.sampled_by == "cuda" and self.groups == 1 and not self.launched

    @property
    def captured(self) -> bool:
        """Whether a device's steps can be captured: it draws, and reads features by itself."""
        return self.can_be_filled and self.features != "host"
