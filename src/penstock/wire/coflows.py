"""Coflows: the batch and coflow that a thread works for, and figures of a process's coflows."""

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

# The batch and coflow that a thread works for; its requests carry them, so that shared links can order them. A coflow
# is a set of messages that is done when its last one has arrived: all that one worker pulls for one batch, one sum of
# gradients at all parameter servers, one push of embeddings to all their owners, the sums of a step's norms, the rows
# between layers that workers send each other in a step, what a sampler reads before the first batch, what an
# explanation of the model reads and sends.

BATCH, GRADIENTS, EMBEDDINGS, NORMS, ROWS = "batch", "gradients", "embeddings", "norms", "rows"
PREPARATION, EXPLANATIONS = "preparation", "explanations"
"""Kinds of coflows."""
_THREAD = threading.local()
_BATCHES = 32
"""Bits of a batch's number in its epoch."""


class Coflow(NamedTuple):
    """The identity of a coflow. Without a kind it is none."""

    kind: str = ""
    owner: str = ""
    """The task that it is for; empty: the one that asks."""
    turn: int = 0
    """The batch it is for; lower ones are needed sooner, 0 at once."""


NO_COFLOW = Coflow()


@contextmanager
def within_coflow(coflow: Coflow) -> Iterator[None]:
    """Requests of this thread in the block belong to a coflow."""
    before = current_coflow()
    _THREAD.coflow = coflow
    try:
        yield
    finally:
        _THREAD.coflow = before


def within_batch(turn: int) -> AbstractContextManager[None]:
    """Requests of this thread in the block belong to a batch; 0: to none."""
    return within_coflow(Coflow(BATCH, "", turn) if turn else NO_COFLOW)


def within_kind(kind: str) -> AbstractContextManager[None]:
    """Requests of this thread in the block belong to a coflow of that kind, and to the current batch.

    Without a batch they belong to none: otherwise all such requests of a run would be one coflow that never ends.
    """
    turn = current_batch()
    return within_coflow(Coflow(kind, "", turn) if turn else NO_COFLOW)


def current_coflow() -> Coflow:
    """The coflow of the calling thread."""
    found: Coflow = getattr(_THREAD, "coflow", NO_COFLOW)
    return found


def current_batch() -> int:
    """The batch of the calling thread; 0 if it works for none."""
    return current_coflow().turn


def batch_order(epoch: int, batch: int) -> int:
    """The turn of a batch: a number that orders batches of all epochs."""
    return (epoch << _BATCHES) + batch + 1


# Figures of the coflows of a process's calls: bytes, messages, and seconds from first request to last answer.

_REMEMBERED = 256
"""Coflows that are remembered because they may continue: a batch's calls come in several stages, with pauses between
them.
"""
_FINENESS = 8
"""Classes of the histogram for every doubling: 9 % apart."""
_LEAST = 1e-6
_KINDS, _OTHERS = 16, "others"
_TAIL = 0.95
_MOST = 1 << 62


@dataclass
class Tally:
    """Figures of coflows of one kind. Their times are a histogram, so that tallies of several
    processes can be added.
    """

    count: int = 0
    """Coflows of this process's own; those in which it takes part for others are counted there."""
    bytes: int = 0
    messages: int = 0
    seconds: float = 0.0
    """The sum of all their times."""
    times: Counter[int] = field(default_factory=Counter)
    """The number of coflows by the logarithm of their seconds."""
    flows: Counter[str] = field(default_factory=Counter)
    """The bytes by the label of their channel."""

    def add_time(self, seconds: float) -> None:
        """Count a completed coflow and add its duration to the total."""
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
        """A copy that later messages do not change."""
        return replace(self, times=self.times.copy(), flows=self.flows.copy())

    def figures(self) -> dict[str, Any]:
        """The figures as results show them; the 95th percentile is within 5 %."""
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
    """A tally in a message."""

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
    """Validate the tallies that task `who` has sent (`Coflows.tallies`)."""
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
    """A coflow of this process that is in progress."""

    first: float
    last: float
    calls: int = 0
    answered: bool = False


class Coflows:
    """The coflows of the calls of one process. Any thread may use it. Times are seconds of `clock`."""

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
        """Count the beginning of a call of `size` bytes over the channel of this label."""
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
        """Count an answer, or a part of one."""
        if not coflow.kind:
            return
        with self._lock:
            self._count(coflow, size, label)
            under_way = self._under_way.get(coflow)
            if under_way is not None:
                under_way.last, under_way.answered = self._clock(), True

    def ended(self, coflow: Coflow) -> None:
        """Count the end of a call, whether it succeeded or not."""
        with self._lock:
            under_way = self._under_way.get(coflow)
            if under_way is not None:
                under_way.calls -= 1

    def tallies(self) -> dict[str, dict[str, Any]]:
        """Tallies by kind, as `coflow_figures` reads them; coflows without a call in progress count as done."""
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
        """The kind, or a collective name if peers use too many different ones."""
        return kind if kind in self._tallies or len(self._tallies) < _KINDS else _OTHERS

    def _settle(self) -> None:
        """Drop the oldest coflow that has no call in progress."""
        if len(self._under_way) <= _REMEMBERED:
            return
        for coflow, under_way in self._under_way.items():
            if not under_way.calls:
                if under_way.answered:
                    self._tally(coflow.kind).add_time(under_way.last - under_way.first)
                del self._under_way[coflow]
                return
