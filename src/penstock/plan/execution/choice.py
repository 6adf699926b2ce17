"""The choices of one machine's execution, and the sizes of a kind of batch, which decide between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.cost.model import BlockSizes, StepShape
from penstock.nn.operator_costs import Order

# What can be chosen of one machine's execution.

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
    """The device that computes the model."""
    sampled_by: Device
    features: Features
    """Where features lie: in the host's memory, pinned there for the device to read, or on the device."""
    first_layer: str
    order: tuple[Order, ...]
    """The order of every layer's products, the outermost first."""
    cache_rows: int = 0
    """Rows of pinned features that are cached on the device."""
    sample_threads: int = 1
    """Threads of the host that draw."""
    groups: int = 1
    """Batches that are drawn together before they are trained on; 1: each is drawn while others are trained."""

    launched: bool = False
    """Whether a device's steps are launched one by one, although they could be captured."""

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU computes the model."""
        return self.device == "cuda"

    @property
    def drawn_on_gpu(self) -> bool:
        """Whether a GPU draws the batches."""
        return self.sampled_by == "cuda"

    @property
    def words(self) -> str:
        """The execution of batches in a few words."""
        if not self.on_gpu:
            groups = "" if self.groups == 1 else f", groups of {self.groups}"
            return f"CPU, {self.first_layer}{groups}"
        drawn = "GPU" if self.drawn_on_gpu else "CPU"
        return f"GPU, drawn by {drawn}, features {self.features}"

    @property
    def can_be_filled(self) -> bool:
        """Whether a device's steps can be captured if the host fills their slots."""
        return self.on_gpu and self.drawn_on_gpu and self.groups == 1 and not self.launched

    @property
    def captured(self) -> bool:
        """Whether a device's steps can be captured without the host: it draws, and reads features by itself."""
        return self.can_be_filled and self.features != "host"


# A kind of batch: the sizes that decide how long its operators take.


@dataclass(frozen=True)
class BatchKind:
    """The batches of a job, all with mean sizes."""

    layer: str
    """Kind of layer, one that declares its calls."""
    blocks: tuple[BlockSizes, ...]
    """Outermost first."""
    widths: tuple[tuple[int, int], ...]
    """The widths in and out of every layer."""
    sample: Mapping[str, float]
    """The sizes of operator `sample`."""
    table_rows: int
    """Rows of the features' table."""
    number_bytes: int = 4
    """Bytes of a stored feature value."""
    batches: int = 1
    """The number of batches in an epoch."""
    heads: int = 4
    has_orders: bool = True
    """Whether layers may aggregate first or transform first."""
    own_rows: bool = True
    """Whether the first layer reads its destinations' own rows in addition to the aggregate."""
    host_share: float = 0.5
    """The host's share of the first block's edges, where host and device divide them."""
    gathered_share: float = 0.5
    """The share of uncached rows that the host gathers, where host and device divide them."""
    hit_rate: Callable[[int], float] = lambda rows: 0.0
    """The share of reads that a cache of so many of the most-read rows serves."""

    @property
    def rows(self) -> int:
        """Feature rows that a batch reads."""
        return self.blocks[0].src

    @property
    def width(self) -> int:
        """The width of a feature row."""
        return self.widths[0][0]

    @property
    def stored_width(self) -> float:
        """The size of a stored row in four-byte words."""
        return self.width * self.number_bytes / 4

    @property
    def list_bytes(self) -> float:
        """Bytes of a batch's blocks: neighbour indices and list bounds, of four and eight bytes."""
        return float(sum(4 * block.edges + 8 * (block.dst + 1) for block in self.blocks))

    def shape(self, order: Sequence[Order]) -> StepShape:
        """A step on such a batch, with the orders of its layers' products."""
        return StepShape(self.layer, self.blocks, self.widths, self.heads, order)


def mean_blocks(batches: Sequence[Sequence[BlockSizes]]) -> tuple[BlockSizes, ...]:
    """For every layer, the mean sizes of some batches' blocks; None where a batch has None."""
    return tuple(_mean(blocks) for blocks in zip(*batches, strict=True))


def _mean(blocks: Sequence[BlockSizes]) -> BlockSizes:
    columns = [*zip(*blocks, strict=True)]
    means = [None if None in column else sum(column) / len(column) for column in columns]
    return BlockSizes(*(round(mean) for mean in means[:3] if mean is not None), *means[3:])
