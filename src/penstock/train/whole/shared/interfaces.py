"""What training on the whole graph needs of a cluster."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch.nn import Parameter

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.nn.norm import Sum
from penstock.pipeline.schedule import Position
from penstock.sampling.block import MiniBatch
from penstock.train.session import Session

Rows = dict[str, Array]
"""Vertices by node type."""


class CutLists(Protocol):
    """A cut graph: whose vertices are whose, and their whole lists. Vertices go by their numbers in the cut graph."""

    types: list[str]
    """The node types, in the same order on every worker."""
    relations: list[EdgeType]
    """The relations, in the same order on every worker."""
    message_edges: int
    """Edges of all lists together: those that a task predicts are in none."""

    def own(self, node_type: str) -> Array:
        """This worker's vertices, ascending."""

    def ranks(self, node_type: str, vertices: Array) -> Array:
        """The workers that compute some vertices."""

    def numbers(self, node_type: str, original: Array) -> Array:
        """Numbers in the cut graph of vertices by original number."""

    def names(self, node_type: str, vertices: Array) -> Array:
        """Original numbers of some vertices."""

    def sample(self, number: int, rows: Rows) -> MiniBatch[Any]:
        """One block with the whole lists that a layer reads of some vertices."""


class ListExchange(Protocol):
    """An all-to-all of lists of numbers, which every worker keeps: one that was started again asks for them again."""

    rank: int
    world: int

    def exchange(self, name: str, lists: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Offer each worker its lists under a name; returns what every worker offers to this one, by rank."""


class Tag(NamedTuple):
    """Which rows a message holds."""

    backward: bool
    """Whether they are gradients, which go back to the owner of the rows."""
    level: int
    group: int
    """The group's number among those that the owner of the rows sends to the reader."""


class RowMail(Protocol):
    """Messages of rows between two workers. Raises RegroupError when a worker was lost."""

    def begin(self, position: Position) -> None:
        """Begin a step: what is sent and received from now on belongs to it."""

    def post(self, rank: int, tag: Tag, rows: Sequence[Array]) -> None:
        """Send rows to a worker, and return at once. Nobody may change them afterwards."""

    def take(self, rank: int, tag: Tag) -> list[Array] | None:
        """The rows that a worker has sent; None: they are not here yet."""

    def wait(self) -> None:
        """Return when something may have arrived since the last call of `take`."""

    def end(self) -> None:
        """End a step: all that was sent in it has been received."""


class WholeWorkers(Protocol):
    """The workers that train on one whole graph, as one of them sees them."""

    rank: int
    world: int
    cut: CutLists
    lists: ListExchange
    mail: RowMail
    beside: int
    """Workers on this worker's machine, which share its memory."""
    bandwidth: float
    """Bytes a second that this worker receives, as far as is known."""
    add: Sum | None
    """Sums over all workers; None: there is one."""

    def begin_round(self) -> None:
        """All workers have met: what is left of an earlier round is dropped."""

    def start_sum(self, parameters: Sequence[Parameter]) -> None:
        """Begin to sum the gradients of some parameters over all workers, which call it in the same order.

        Where it does that, the parameters have no gradients afterwards until `reduce_and_step`.
        """

    def reduce_and_step(self, session: Session, loss: float) -> float:
        """From every worker's gradients to the weights after the step; returns the step's loss."""
