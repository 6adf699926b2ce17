"""What training on the whole graph requires of a cluster (`train.whole.shared.interfaces`), over the run's own wire.

`PartedCutLists` reads the partitioned graph, `WireListExchange` exchanges lists while a plan is made, `WireRowMail`
sends rows and their gradients from worker to worker, and `ClusterWholeWorkers` joins them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.nn import Parameter

from penstock.cluster.layout import worker_rank
from penstock.cluster.member import Member
from penstock.cluster.worker.batch_norm import summing
from penstock.cluster.worker.collectives import CollectiveGroup
from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.layerwise import worker_ranges
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.nn.norm import Sum
from penstock.pipeline.schedule import Position
from penstock.sampling import ALL, BatchKey
from penstock.sampling.block import MiniBatch, unwrapping
from penstock.sampling.parts import parted_sampler
from penstock.train.session import Session
from penstock.train.steps.group import RegroupError
from penstock.train.whole.shared.interfaces import Tag
from penstock.wire.channel import PendingCall
from penstock.wire.coflows import ROWS, within_kind
from penstock.wire.message import Message

# The partitioned graph as training on the whole graph reads it.

_ANY = BatchKey(0, 0, 0)


class PartedCutLists:
    """Implements `CutLists`. Lists of parts that are not local are requested from their owners."""

    def __init__(self, session: Session, parts: Parts) -> None:
        self._partition, book = parts.partition, parts.partition.book
        self.types, self._rank = list(book.node_types), parts.member.setup.task.rank
        self.relations = list(parts.edge_types)
        self._ranges = {name: list(worker_ranges(parts.member.setup.layout, book, name)) for name in self.types}
        self._of_sampler, self._exclude = unwrapping(session.graph), None
        self.message_edges = session.graph.num_edges
        if parts.supervised is not None:
            pairs, self.message_edges = parts.supervised
            self._exclude = self._of_sampler(pairs)
        self._sampler: Any = parted_sampler(
            parts.partition,
            [ALL],
            weight=session.list_weight,
            totals=True,
            edges=bool(session.inputs.edges),
            local=parts.owned,
            channels=parts.lists,
            absent=parts.absent,
        )

    def own(self, node_type: str) -> Array:
        """This worker's vertices, ascending, read once."""
        parts = [np.arange(first, last) for first, last, rank in self._ranges[node_type] if rank == self._rank]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def ranks(self, node_type: str, vertices: Array) -> Array:
        ranges = self._ranges[node_type]
        ends, ranks = np.array([last for _, last, _ in ranges]), np.array([rank for *_, rank in ranges])
        return ranks[np.searchsorted(ends, vertices, "right")]

    def numbers(self, node_type: str, original: Array) -> Array:
        return self._partition.new_ids(original, node_type)

    def names(self, node_type: str, vertices: Array) -> Array:
        return np.asarray(self._partition.original(node_type)[vertices], np.int64)

    def sample(self, number: int, rows: dict[str, Array]) -> MiniBatch:
        """Whole lists: every layer follows all relations."""
        batch: MiniBatch = self._sampler.sample(self._of_sampler(rows), _ANY, exclude=self._exclude)
        return batch


# An all-to-all of lists that every worker keeps for restarted ones.

_AGAIN = 0.01
"""Seconds before a worker that is not ready yet is asked again."""


class WireListExchange:
    """Implements `Lists` over the wire. What a worker offers under a name is the same whenever it is asked."""

    def __init__(self, member: Member, check: Callable[[], None]) -> None:
        """`check` raises RegroupError where the round is over."""
        self._member, self._check = member, check
        self.rank, self.world = member.setup.task.rank, member.setup.layout.world
        self._offered: dict[str, Sequence[Sequence[Array]]] = {}
        self._lock = threading.Lock()
        member.endpoint.serve("whole-lists", self._give)

    def exchange(self, name: str, lists: Sequence[Sequence[Array]]) -> list[list[Array]]:
        with self._lock:
            self._offered[name] = [[np.ascontiguousarray(each, np.int64) for each in given] for given in lists]
        others = [rank for rank in range(self.world) if rank != self.rank]
        found = {self.rank: [np.asarray(each, np.int64) for each in lists[self.rank]]}
        while len(found) < self.world:
            asked = {rank: self._ask(rank, name) for rank in others if rank not in found}
            found |= {rank: lists for rank, lists in asked.items() if lists is not None}
            if len(found) < self.world:
                self._check()
                time.sleep(_AGAIN)
        return [found[rank] for rank in range(self.world)]

    def _ask(self, rank: int, name: str) -> list[Array] | None:
        channel = self._member.endpoint.channel(f"worker-{rank}", "state")
        pending = channel.start(Message("whole-lists", {"name": name}), self._member.setup.cluster.failure.patience)
        answer = pending.result()
        if answer.kind == "later":
            return None
        return [np.array(each, np.int64) for each in answer.arrays]

    def _give(self, message: Message, sender: str) -> Message:
        rank = worker_rank(sender, self.world, "ask for lists")
        with self._lock:
            offered = self._offered.get(str(message.body.get("name")))
        if offered is None:
            return Message("later")
        return Message("whole-lists", {}, tuple(offered[rank]))


# Rows from worker to worker over the run's own authenticated and encrypted connections.

_LOOK = 0.5
"""Seconds between two checks whether the round is still valid."""
_PIECE = 16 << 20
"""Bytes of rows that are sent at a time: large arrays are sent in pieces, small ones together."""
_TOGETHER = 32
"""The most pieces in a message."""


class _Key(NamedTuple):
    position: tuple[int, int]
    rank: int
    tag: Tag


class _Arriving:
    """The pieces of one group that have arrived, by array and first row. A repeated piece is kept once."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.found = pieces, dict[tuple[int, int], Array]()

    def arrays(self) -> list[Array] | None:
        """All arrays, if every piece has arrived."""
        if len(self.found) < self.pieces:
            return None
        numbers = sorted({number for number, _ in self.found})
        parts = [[self.found[key] for key in sorted(self.found) if key[0] == number] for number in numbers]
        return [each[0] if len(each) == 1 else np.concatenate(each) for each in parts]


class RowInbox:
    """The rows that other workers have sent in the newest round, from its current step on."""

    def __init__(self, member: Member) -> None:
        self._world, self.changed = member.setup.layout.world, threading.Condition()
        self._generation, self._position, self._arrived = 0, (0, 0), 0
        self._groups: dict[_Key, _Arriving] = {}
        self.received = 0
        """Bytes of rows received."""
        self.minimum = 0
        """Bytes of rows received for the first time."""
        self.waited_s = 0.0
        """Seconds that this worker only waited for rows."""
        member.endpoint.serve("rows", self._receive, at_once=True)

    def begin_round(self, generation: int) -> None:
        """Drop what came in earlier rounds; some rows of this one may have arrived already."""
        with self.changed:
            self._turn_to(generation)

    def begin_step(self, position: Position) -> None:
        """Drop what belongs to earlier steps."""
        with self.changed:
            self._position = (position.epoch, position.batch)
            self._groups = {key: each for key, each in self._groups.items() if key.position >= self._position}

    def take(self, position: Position, rank: int, tag: Tag) -> list[Array] | None:
        """A group that has arrived completely; else None."""
        key = _Key((position.epoch, position.batch), rank, tag)
        with self.changed:
            found = self._groups.get(key)
            arrays = None if found is None else found.arrays()
            if arrays is not None:
                del self._groups[key]
            return arrays

    def count(self) -> int:
        """The number of messages that have come so far."""
        with self.changed:
            return self._arrived

    def wait(self, seen: int, seconds: float) -> bool:
        """Wait until more than `seen` messages have come; returns whether they have."""
        with self.changed:
            return self.changed.wait_for(lambda: self._arrived > seen, seconds)

    def _receive(self, message: Message, sender: str) -> Message:
        rank = worker_rank(sender, self._world, "send rows")
        body, places = message.body, message.body["places"]
        if not message.arrays or len(places) != len(message.arrays) or not all(map(_are_rows, message.arrays)):
            shapes = ", ".join(f"{rows.dtype} {rows.shape}" for rows in message.arrays) or "nothing"
            raise PenstockError(
                f"{sender} sent {shapes} for {len(places)} places: send an array of rows of numbers for each.",
                code="malformed-message",
            )
        generation, position = int(body["generation"]), (int(body["epoch"]), int(body["batch"]))
        key = _Key(position, rank, Tag(bool(body["backward"]), int(body["level"]), int(body["group"])))
        with self.changed:
            self._turn_to(generation)
            if generation == self._generation and position >= self._position:
                arriving = self._groups.setdefault(key, _Arriving(int(body["pieces"])))
                for (number, first), rows in zip(places, message.arrays, strict=True):
                    self.received += rows.nbytes
                    if (number, first) not in arriving.found:
                        self.minimum += rows.nbytes
                    # Copied: an array from the wire is a view of the message.
                    arriving.found[int(number), int(first)] = np.array(rows)
                self._arrived += 1
                self.changed.notify_all()
        return Message("heard")

    def _turn_to(self, generation: int) -> None:
        if generation > self._generation:
            self._generation, self._position, self._groups = generation, (0, 0), {}


class WireRowMail:
    """Implements `RowMail` over the wire."""

    def __init__(
        self, member: Member, inbox: RowInbox, generation: Callable[[], int], check: Callable[[], None]
    ) -> None:
        """`check` raises RegroupError where the round is over."""
        self._member, self._inbox, self._generation, self._check = member, inbox, generation, check
        self._patience, self._position = member.setup.cluster.failure.patience, Position(0, 0)
        self._sent: list[PendingCall] = []
        self._seen = -1

    def begin(self, position: Position) -> None:
        self._position, self._sent, self._seen = position, [], -1
        self._inbox.begin_step(position)

    def post(self, rank: int, tag: Tag, rows: Sequence[Array]) -> None:
        """Send rows in as few messages as possible; the wire's own thread encrypts and sends them."""
        messages = _messages([piece for number, array in enumerate(rows) for piece in _pieces(number, array)])
        body = {"generation": self._generation(), "epoch": self._position.epoch, "batch": self._position.batch}
        body |= {**tag._asdict(), "pieces": sum(map(len, messages))}
        channel = self._member.endpoint.channel(f"worker-{rank}", "rows", 0)
        with within_kind(ROWS):
            for pieces in messages:
                places = [[number, first] for number, first, _ in pieces]
                sent = Message("rows", {**body, "places": places}, tuple(piece for *_, piece in pieces))
                self._sent.append(channel.start(sent, self._patience))

    def take(self, rank: int, tag: Tag) -> list[Array] | None:
        return self._inbox.take(self._position, rank, tag)

    def wait(self) -> None:
        """Wait for a message; one that came since the last `take` counts, so check again then."""
        began = time.monotonic()
        while not self._inbox.wait(self._seen, _LOOK):
            self._check()
            if time.monotonic() > began + self._patience:
                raise RegroupError("a worker's rows did not arrive")
        self._seen = self._inbox.count()
        self._inbox.waited_s += time.monotonic() - began

    def end(self) -> None:
        """Wait until everything that was sent is received."""
        sent, self._sent = self._sent, []
        for call in sent:
            call.result()


def _are_rows(array: Array) -> bool:
    return array.ndim == 2 and array.dtype in (np.float32, np.float64)


_Piece = tuple[int, int, Array]
"""(number of its array, first row, rows)."""


def _messages(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Pieces that are sent together, in order."""
    found: list[list[_Piece]] = []
    room = 0
    for piece in pieces:
        size = piece[2].nbytes
        if not found or size > room or len(found[-1]) == _TOGETHER:
            found.append([])
            room = _PIECE
        found[-1].append(piece)
        room -= size
    return found


def _pieces(number: int, array: Array) -> list[_Piece]:
    step = max(1, _PIECE // max(1, array[:1].nbytes))
    return [(number, first, array[first : first + step]) for first in range(0, max(1, len(array)), step)]


# The workers of a cluster run that train on one whole graph.

_GBPS = 10.0
"""The assumed bandwidth of a machine's network where the cluster file does not give it."""


class ClusterWholeWorkers:
    """Implements `WholeWorkers` for the workers of a cluster run."""

    def __init__(
        self,
        session: Session,
        parts: Parts,
        inbox: RowInbox,
        generation: Callable[[], int],
        collective: Callable[[], CollectiveGroup | None],
        start_sum: Callable[[Sequence[Parameter]], None],
        step: Callable[[Session, float], float],
    ) -> None:
        """`generation` is the number of the round, `collective` the group that sums in it."""
        self._member, self._inbox, self._generation, self._collective = parts.member, inbox, generation, collective
        setup = parts.member.setup
        self.rank, self.world = setup.task.rank, setup.layout.world
        self.cut = PartedCutLists(session, parts)
        self.lists = WireListExchange(parts.member, self._check)
        self.mail = WireRowMail(parts.member, inbox, generation, self._check)
        self.beside = sum(task.machine == setup.task.machine for task in setup.layout.of_kind("worker"))
        machine = next(each for each in setup.cluster.machines if each.name == setup.task.machine)
        self.bandwidth = (machine.nic_gbps or _GBPS) * 1e9 / 8 / self.beside
        self.start_sum, self.reduce_and_step = start_sum, step

    @property
    def add(self) -> Sum | None:
        """Sums over the workers of the round; None: there is one worker."""
        group = self._collective()
        return None if group is None else summing(group)

    def begin_round(self) -> None:
        """Drop rows of earlier rounds: all workers have met."""
        self._inbox.begin_round(self._generation())

    def _check(self) -> None:
        if self._member.is_over(self._generation()):
            raise RegroupError("a worker was lost")
