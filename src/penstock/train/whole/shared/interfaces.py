"""What training on the whole graph requires of a cluster."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch.nn import Parameter

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.nn.norm import Sum
from penstock.pipeline.schedule import Position
from penstock.sampling.block import MiniBatch
from penstock.train.session import Session

Rows = dict[str, Array]
"""Numbers of vertices by node type."""


class CutLists(Protocol):
    """A partitioned graph: the owners of vertices, and their whole lists. Vertices are given by number in the
    partitioned graph.
    """

    types: list[str]
    """The node types, in the same order on every worker."""
    relations: list[EdgeType]
    """The relations, in the same order on every worker."""
    message_edges: int
    """The number of edges in all lists; edges that a task predicts are in none."""

    def own(self, node_type: str) -> Array:
        """All vertices of this worker of a node type, ascending."""

    def ranks(self, node_type: str, vertices: Array) -> Array:
        """The ranks of the workers that compute some vertices."""

    def numbers(self, node_type: str, original: Array) -> Array:
        """The numbers in the partitioned graph of vertices given by original number."""

    def names(self, node_type: str, vertices: Array) -> Array:
        """The original numbers of some vertices."""

    def sample(self, number: int, rows: Rows) -> MiniBatch:
        """One block with the whole lists that a layer reads of some vertices."""


class ListExchange(Protocol):
    """An all-to-all of lists of numbers. Every worker keeps what it offers, so that a restarted one can ask for it
    again.
    """

    rank: int
    world: int

    def exchange(self, name: str, lists: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Offer each worker its lists under a name; returns what every worker offers to this one, by rank."""


class Tag(NamedTuple):
    """Identifies the rows of a message."""

    backward: bool
    """Whether they are gradients, which return to the owner of the rows."""
    level: int
    group: int
    """The group's number among those that the owner of the rows sends to the reader."""


class RowMail(Protocol):
    """Messages of rows between two workers. Methods raise RegroupError when a worker was lost."""

    def begin(self, position: Position) -> None:
        """Begin a step: later messages belong to it."""

    def post(self, rank: int, tag: Tag, rows: Sequence[Array]) -> None:
        """Send rows to a worker, and return at once. They must not be changed afterwards."""

    def take(self, rank: int, tag: Tag) -> list[Array] | None:
        """The rows that a worker has sent; None: they have not arrived yet."""

    def wait(self) -> None:
        """Return when something may have arrived since the last call of `take`."""

    def end(self) -> None:
        """End a step; returns when everything that was sent in it has been received."""


class WholeWorkers(Protocol):
    """The workers that train on one whole graph, from the view of one of them."""

    rank: int
    world: int
    cut: CutLists
    lists: ListExchange
    mail: RowMail
    beside: int
    """The number of workers on this worker's machine, which share its memory."""
    bandwidth: float
    """Bytes per second that this worker can receive, as far as is known."""
    add: Sum | None
    """Sums over all workers; None: there is one."""

    def begin_round(self) -> None:
        """Called when all workers have met; drops what is left of an earlier round."""

    def start_sum(self, parameters: Sequence[Parameter]) -> None:
        """Begin to sum gradients over all workers; where it does, parameters lack theirs until the update."""

    def reduce_and_step(self, session: Session, loss: float) -> float:
        """Sum every worker's gradients and update the weights; returns the step's loss."""
