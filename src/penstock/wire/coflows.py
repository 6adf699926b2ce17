"""Coflows: the batch and coflow that a thread works for, and what the coflows of a process took."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem

# The batch and coflow that a thread works for; its requests carry them, so that shared links can order them.
#
# A coflow is what belongs together and is done when its last message is there: all that one worker pulls for one batch,
# one sum of gradients at all parameter servers, one push of embeddings to all their owners, the sums of a step's norms,
# the rows between layers that workers send each other in a step, what a sampler reads before the first batch, what an
# explanation of the model reads and tells to others.

BATCH, GRADIENTS, EMBEDDINGS, NORMS, ROWS = "batch", "gradients", "embeddings", "norms", "rows"
PREPARATION, EXPLANATIONS = "preparation", "explanations"
"""Kinds of coflows."""
_THREAD = threading.local()
_BATCHES = 32
"""Bits that hold a batch's number in its epoch."""


class Coflow(NamedTuple):
    """The name of a coflow. Without a kind it is none."""

    kind: str = ""
    owner: str = ""
    """The task that it is for; empty: whichever asks."""
    turn: int = 0
    """The batch it is for; lower ones are needed sooner, 0 at once."""


NO_COFLOW = Coflow()


@contextmanager
def within_coflow(coflow: Coflow) -> Iterator[None]:
    """What this thread asks for in the block belongs to a coflow."""
    before = current_coflow()
    _THREAD.coflow = coflow
    try:
        yield
    finally:
        _THREAD.coflow = before


def within_batch(turn: int) -> AbstractContextManager[None]:
    """What this thread asks for in the block belongs to a batch; 0: to none."""
    return within_coflow(Coflow(BATCH, "", turn) if turn else NO_COFLOW)


def within_kind(kind: str) -> AbstractContextManager[None]:
    """What this thread asks for in the block belongs to a coflow of that kind, and to the batch it belonged to.

    Without a batch it belongs to none: all that a run asks that way would look like one coflow that never ends.
    """
    turn = current_batch()
    return within_coflow(Coflow(kind, "", turn) if turn else NO_COFLOW)


def current_coflow() -> Coflow:
    """The coflow of the calling thread."""
    found: Coflow = getattr(_THREAD, "coflow", NO_COFLOW)
    return found


def current_batch() -> int:
    """The calling thread's; 0 if it works for no batch."""
    return current_coflow().turn


def batch_order(epoch: int, batch: int) -> int:
    """The turn of a batch."""
    return (epoch << _BATCHES) + batch + 1


# What the coflows of a process's calls took: bytes, messages, and seconds from first request to last answer.

_REMEMBERED = 256
"""Coflows that may still go on: a batch's calls come in several stages, with nothing under way between them."""
_FINENESS = 8
"""Classes of the histogram for every doubling: 9 % apart."""
_LEAST = 1e-6
_KINDS, _OTHERS = 16, "others"
_TAIL = 0.95
_MOST = 1 << 62


@dataclass
class Tally:
    """Coflows of one kind. Of their times there is a histogram, so that tallies of several processes can be added."""

    count: int = 0
    """Coflows of this process's own: those that it shares in for others are counted there."""
    bytes: int = 0
    messages: int = 0
    seconds: float = 0.0
    """Of all of them together."""
    times: Counter[int] = field(default_factory=Counter)
    """How many coflows by the logarithm of their seconds."""
    flows: Counter[str] = field(default_factory=Counter)
    """The bytes by the label of the channel that they went over."""

    def add_time(self, seconds: float) -> None:
        """One more coflow is done."""
        self.count += 1
        self.seconds += seconds
        self.times[round(_FINENESS * math.log2(max(seconds, _LEAST)))] += 1

    def plain(self) -> dict[str, Any]:
        """The tally as plain values for a message."""
        times = {str(each): count for each, count in self.times.items()}
        counts = {"count": self.count, "bytes": self.bytes, "messages": self.messages}
        return {**counts, "seconds": self.seconds, "times": times, "flows": dict(self.flows)}

    def add_plain(self, told: Mapping[str, Any]) -> None:
        """Add a tally that another process sent."""
        self.count += int(told.get("count", 0))
        self.bytes += int(told.get("bytes", 0))
        self.messages += int(told.get("messages", 0))
        self.seconds += float(told.get("seconds", 0.0))
        self.times.update({int(each): int(count) for each, count in dict(told.get("times", {})).items()})
        self.flows.update({str(label): int(size) for label, size in dict(told.get("flows", {})).items()})

    def copied(self) -> "Tally":
        """A tally that goes on by itself."""
        return replace(self, times=self.times.copy(), flows=self.flows.copy())

    def figures(self) -> dict[str, Any]:
        """The tally as results show it; the 95th percentile is within 5 %."""
        mean = self.seconds / self.count if self.count else 0.0
        seen, tail = 0, 0.0
        for each in sorted(self.times):
            seen += self.times[each]
            if seen >= _TAIL * self.count:
                tail = 2.0 ** (each / _FINENESS)
                break
        times = {"mean_cct_s": round(mean, 6), "p95_cct_s": round(tail, 6)}
        return {"count": self.count, "bytes": self.bytes, **times, "flows": dict(sorted(self.flows.items()))}


class _TallyDocument(StrictDocument):
    """A tally as it comes over the wire."""

    count: int = Field(ge=0, le=_MOST)
    bytes: int = Field(ge=0, le=_MOST)
    messages: int = Field(ge=0, le=_MOST)
    seconds: float = Field(ge=0, allow_inf_nan=False)
    times: dict[Annotated[str, Field(pattern=r"^-?[0-9]{1,3}$")], Annotated[int, Field(ge=0, le=_MOST)]]
    flows: dict[Annotated[str, Field(max_length=128)], Annotated[int, Field(ge=0, le=_MOST)]] = Field(
        max_length=_KINDS + 1
    )


_TOLD: TypeAdapter[dict[str, _TallyDocument]] = TypeAdapter(
    Annotated[dict[Annotated[str, Field(max_length=128)], _TallyDocument], Field(max_length=_KINDS + 1)]
)


def read_tallies(told: object, who: str) -> dict[str, dict[str, Any]]:
    """What task `who` has told of its coflows, as `Coflows.tallies` says it; refused if it cannot be that."""
    try:
        found = _TOLD.validate_python(told, strict=True)
    except ValidationError as error:
        raise PenstockError(
            f"{who} reported coflows that are not valid ({first_problem(error)}): run the same release on all"
            " machines.",
            code="malformed-message",
        ) from None
    return {kind: tally.model_dump() for kind, tally in found.items()}


def coflow_figures(told: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each kind of coflow, from the tallies of several processes."""
    tallies: dict[str, Tally] = {}
    for each in told:
        for kind, plain in each.items():
            tallies.setdefault(kind, Tally()).add_plain(plain)
    return [{"kind": kind, **tally.figures()} for kind, tally in sorted(tallies.items())]


@dataclass
class _UnderWay:
    """A coflow of this process that has begun."""

    first: float
    last: float
    calls: int = 0
    answered: bool = False


class Coflows:
    """Of the calls of one process. Any thread may tell. Times are seconds of `clock`."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._under_way: dict[Coflow, _UnderWay] = {}
        self._tallies: dict[str, Tally] = {}
        self._lock = threading.Lock()

    def own(self) -> Coflow:
        """The coflow of the calling thread, with its full name."""
        coflow = current_coflow()
        return coflow if coflow.owner or not coflow.kind else coflow._replace(owner=self._name)

    def asked(self, coflow: Coflow, size: int, label: str) -> None:
        """A call of `size` bytes begins, over the channel of this label."""
        if not coflow.kind:
            return
        with self._lock:
            self._count(coflow, size, label)
            if coflow.owner == self._name:
                now = self._clock()
                under_way = self._under_way.setdefault(coflow, _UnderWay(now, now))
                under_way.calls += 1
                self._settle()

    def answered(self, coflow: Coflow, size: int, label: str) -> None:
        """An answer, or a part of one."""
        if not coflow.kind:
            return
        with self._lock:
            self._count(coflow, size, label)
            under_way = self._under_way.get(coflow)
            if under_way is not None:
                under_way.last, under_way.answered = self._clock(), True

    def ended(self, coflow: Coflow) -> None:
        """A call is over, one way or the other."""
        with self._lock:
            under_way = self._under_way.get(coflow)
            if under_way is not None:
                under_way.calls -= 1

    def tallies(self) -> dict[str, dict[str, Any]]:
        """By kind, as `coflow_figures` reads them; what has no call under way at the moment counts as done."""
        with self._lock:
            found = {kind: tally.copied() for kind, tally in self._tallies.items()}
            for coflow, under_way in self._under_way.items():
                if not under_way.calls and under_way.answered:
                    found[self._known(coflow.kind)].add_time(under_way.last - under_way.first)
        return {kind: tally.plain() for kind, tally in found.items()}

    def _count(self, coflow: Coflow, size: int, label: str) -> None:
        tally = self._tally(coflow.kind)
        tally.bytes += size
        tally.messages += 1
        tally.flows[label if label in tally.flows or len(tally.flows) < _KINDS else _OTHERS] += size

    def _tally(self, kind: str) -> Tally:
        kind = self._known(kind)
        if kind not in self._tallies:
            self._tallies[kind] = Tally()
        return self._tallies[kind]

    def _known(self, kind: str) -> str:
        """Peers may name what they like; here they are so many at most."""
        return kind if kind in self._tallies or len(self._tallies) < _KINDS else _OTHERS

    def _settle(self) -> None:
        """Forget the oldest that has no call under way."""
        if len(self._under_way) <= _REMEMBERED:
            return
        for coflow, under_way in self._under_way.items():
            if not under_way.calls:
                if under_way.answered:
                    self._tally(coflow.kind).add_time(under_way.last - under_way.first)
                del self._under_way[coflow]
                return
