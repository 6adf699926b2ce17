"""A trace of shuffles, as the public coflow benchmark has it: in memory, drawn, and as text."""

import io
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.files import open_regular, replace_whole
from penstock.graph.hashing import document_key, unit_draws
from penstock.kernels import njit
from penstock.simulate.traces.coflows import (
    MOST_BYTES,
    MOST_COFLOWS,
    MOST_FLOWS,
    MOST_PORTS,
    MOST_SECONDS,
    TraceCoflows,
    join_flows,
)

# A trace of shuffles, as the public coflow benchmark writes it, in memory.
#
# A coflow is a shuffle: every reducer receives its megabytes in even shares from all mappers. A location may be named
# more than once, and then counts as often. `made_trace` draws one by a hash with the shape of the public trace: most
# shuffles small, most bytes in a few wide ones.

MEGABYTE = 1e6  # bytes


@dataclass(frozen=True, eq=False)
class CoflowTrace:
    """C shuffles over the ports of one switch. Those of coflow c are `mappers[mapper_first[c] : mapper_first[c + 1]]`
    and likewise for reducers."""

    ports: int
    names: Array  # int64 [C]
    arrivals_ms: Array  # float64 [C]
    mapper_first: Array  # int64 [C + 1]
    mappers: Array  # int32: port
    reducer_first: Array  # int64 [C + 1]
    reducers: Array  # int32: port
    megabytes: Array  # float64, of every reducer

    @property
    def count(self) -> int:
        """The number of coflows: C of the shapes above."""
        return len(self.names)

    @cached_property
    def coflows(self) -> TraceCoflows:
        """The flows of all shuffles, those between the same ports joined."""
        each = np.diff(self.mapper_first) * np.diff(self.reducer_first)
        if each.sum() > MOST_FLOWS:
            raise PenstockError(
                f"The trace has {each.sum():,} flows: at most {MOST_FLOWS:,} can be simulated; use a part of it.",
                code="too-large",
            )
        sources, targets = np.empty(each.sum(), np.int32), np.empty(each.sum(), np.int32)
        sizes = np.empty(each.sum())
        _spread(
            self.mapper_first, self.mappers, self.reducer_first, self.reducers, self.megabytes, sources, targets, sizes
        )
        owners = np.repeat(np.arange(self.count), each)
        return join_flows(self.ports, self.names, self.arrivals_ms / 1e3, owners, sources, targets, sizes * MEGABYTE)


@njit(nogil=True, cache=True)
def _spread(
    mapper_first: Array,
    mappers: Array,
    reducer_first: Array,
    reducers: Array,
    megabytes: Array,
    sources: Array,
    targets: Array,
    sizes: Array,
) -> None:
    """Every reducer's megabytes in even shares over the mappers."""
    flow = 0
    for coflow in range(mapper_first.shape[0] - 1):
        shares = mapper_first[coflow + 1] - mapper_first[coflow]
        for mapper in range(mapper_first[coflow], mapper_first[coflow + 1]):
            for reducer in range(reducer_first[coflow], reducer_first[coflow + 1]):
                sources[flow] = mappers[mapper]
                targets[flow] = reducers[reducer]
                sizes[flow] = megabytes[reducer] / shares
                flow += 1


_NARROW = 0.68  # share of shuffles with one reducer or a few
_NARROW_WIDTH = 14  # ports at most on a side of these
_TAIL = 1.2  # exponent of a flow's megabytes: finite mean, no variance
_LONGEST = 500.0  # megabytes of a flow


def made_trace(ports: int = 150, coflows: int = 526, seconds: float = 3600.0, seed: int = 0) -> CoflowTrace:
    """A trace with Poisson arrivals over about so many seconds (0: all at once), in whole milliseconds.

    Widths are skewed and sizes heavy-tailed. With the given numbers it is about as large as the public trace.
    """
    if not (1 <= ports <= MOST_PORTS and 1 <= coflows <= MOST_COFLOWS and 0 <= seconds <= 1e8):
        raise PenstockError(
            f"A trace cannot have {coflows} coflows over {ports} ports and {seconds:g} s: give 1 or more coflows and"
            " ports, and 0 s or more.",
            code="value-out-of-range",
        )
    gaps = -np.log1p(-_draws(seed, "gaps", coflows)) * seconds / coflows
    arrivals = np.floor(1e3 * (np.cumsum(gaps) - gaps[0]))
    narrow = _draws(seed, "narrow", coflows) < _NARROW
    mapper_counts = _widths(narrow, ports, _draws(seed, "mappers", coflows), 2.0)
    reducer_counts = _widths(narrow, ports, _draws(seed, "reducers", coflows), 4.0)
    mapper_first, mappers = _locations(seed, "from", ports, mapper_counts)
    reducer_first, reducers = _locations(seed, "to", ports, reducer_counts)
    share = np.minimum(_LONGEST, (1 - _draws(seed, "sizes", coflows)) ** (-1 / _TAIL)).round()
    waves = 1 + np.floor(4 * _draws(seed, "waves", len(reducers)) ** 3)
    return CoflowTrace(
        ports=ports,
        names=np.arange(1, coflows + 1),
        arrivals_ms=arrivals,
        mapper_first=mapper_first,
        mappers=mappers,
        reducer_first=reducer_first,
        reducers=reducers,
        megabytes=np.repeat(share * mapper_counts, reducer_counts) * waves,
    )


def _widths(narrow: Array, ports: int, uniform: Array, skew: float) -> Array:
    """Ports on one side: few, skewed to one, of narrow shuffles; any number of the others."""
    few = 1 + np.floor(min(_NARROW_WIDTH, ports) * uniform**skew)
    return np.minimum(ports, np.where(narrow, few, 1 + np.floor(ports * uniform))).astype(np.int64)


def _locations(seed: int, purpose: str, ports: int, counts: Array) -> tuple[Array, Array]:
    """Different ports for every shuffle, ascending, and where each shuffle's begin."""
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    out = np.empty(first[-1], np.int32)
    for coflow, count in enumerate(counts.tolist()):
        order = np.argsort(_draws(seed, purpose, ports, coflow * ports), kind="stable")
        out[first[coflow] : first[coflow + 1]] = np.sort(order[:count])
    return first, out


def _draws(seed: int, purpose: str, count: int, start: int = 0) -> Array:
    return unit_draws(document_key(seed, "trace {}", purpose), count, start)


# The text format of the public coflow benchmark, read with an error message for every invalid line, and written. The
# first line holds the number of ports and of coflows; every further line one coflow: its number, its arrival in
# milliseconds, the number of mappers and their locations, the number of reducers and `location:megabytes` for each.
# Locations count from 0.

_LONGEST_LINE = 16 << 20  # characters
_LARGEST_NAME = 2**63 - 1
_MOST_MS, _MOST_MB = MOST_SECONDS * 1e3, MOST_BYTES / MEGABYTE


def read_trace(path: Path | str) -> CoflowTrace:
    """Read a trace in the text format of the coflow benchmark."""
    path = Path(path)
    if "\0" in str(path):
        raise PenstockError(f"{str(path)!r} is not the name of a file: give the file of a trace.", code="invalid-value")
    try:
        with io.TextIOWrapper(open_regular(path), "ascii", "replace") as file:
            return _Reader(path, file).trace()
    except OSError as error:
        raise PenstockError(
            f"{path} cannot be read ({error.strerror or error}): give the file of a trace.", code="file-not-found"
        ) from None


def write_trace(trace: CoflowTrace, path: Path | str) -> None:
    """Write a trace, so that reading it gives the same numbers."""

    def write(file: BinaryIO) -> None:
        file.write(f"{trace.ports} {trace.count}\n".encode("ascii"))
        for coflow in range(trace.count):
            file.write(_line(trace, coflow).encode("ascii"))

    replace_whole(Path(path), write)


def _line(trace: CoflowTrace, coflow: int) -> str:
    mappers = trace.mappers[trace.mapper_first[coflow] : trace.mapper_first[coflow + 1]].tolist()
    mine = slice(trace.reducer_first[coflow], trace.reducer_first[coflow + 1])
    pairs = zip(trace.reducers[mine].tolist(), trace.megabytes[mine].tolist(), strict=True)
    reducers = [f"{location}:{size!r}" for location, size in pairs]
    arrival = float(trace.arrivals_ms[coflow])
    start = [int(trace.names[coflow]), int(arrival) if arrival.is_integer() else repr(arrival)]
    return " ".join(map(str, [*start, len(mappers), *mappers, len(reducers), *reducers])) + "\n"


class _Reader:
    """Reads one file line by line, and names the line in errors."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file, self._number = path, file, 0
        self._words: list[str] = []
        self._at = 0

    def trace(self) -> CoflowTrace:
        """The trace that the file holds; an error names the line that is wrong."""
        if not self._next_line():
            self._refuse("the file is empty", "begin with the numbers of ports and coflows")
        ports = self._whole("the number of ports", 1, MOST_PORTS)
        count = self._whole("the number of coflows", 1, MOST_COFLOWS)
        self._end()
        names: dict[int, None] = {}
        arrivals: list[float] = []
        mappers: list[int] = []
        reducers: list[int] = []
        sizes: list[float] = []
        mapper_first, reducer_first, flows = [0], [0], 0
        for _ in range(count):
            if not self._next_line():
                self._refuse(f"only {len(names)} of {count} coflows are there", "copy it again, or correct line 1")
            name = self._whole("the coflow's number", 0, _LARGEST_NAME)
            if name in names:
                self._refuse(f"coflow {name} is there twice", "give each a number of its own")
            names[name] = None
            arrivals.append(self._amount("the arrival in milliseconds", _MOST_MS))
            width = self._whole("the number of mappers", 1, MOST_FLOWS)
            mappers += [self._whole("a mapper's location", 0, ports - 1) for _ in range(width)]
            height = self._whole("the number of reducers", 1, MOST_FLOWS)
            for _ in range(height):
                location, size = self._reducer(ports)
                reducers.append(location)
                sizes.append(size)
            self._end()
            mapper_first.append(len(mappers))
            reducer_first.append(len(reducers))
            flows += width * height
            if flows > MOST_FLOWS:
                self._refuse(f"more than {MOST_FLOWS:,} flows", "take a part of the trace")
        if self._next_line():
            self._refuse(f"more than the {count} coflows of the first line", "correct the first line")
        return CoflowTrace(
            ports=ports,
            names=np.array([*names], np.int64),
            arrivals_ms=np.array(arrivals),
            mapper_first=np.array(mapper_first),
            mappers=np.array(mappers, np.int32),
            reducer_first=np.array(reducer_first),
            reducers=np.array(reducers, np.int32),
            megabytes=np.array(sizes),
        )

    def _next_line(self) -> bool:
        """Go to the next line that is not blank; False at the end."""
        while True:
            line = self._file.readline(_LONGEST_LINE)
            if not line:
                return False
            self._number += 1
            if len(line) == _LONGEST_LINE:
                self._refuse(f"a line of {_LONGEST_LINE:,} characters or more", "give the text of a trace")
            self._words, self._at = line.split(), 0
            if self._words:
                return True

    def _word(self, what: str) -> str:
        if self._at == len(self._words):
            self._refuse(f"{what} is missing", "complete the line")
        self._at += 1
        return self._words[self._at - 1]

    def _whole(self, what: str, least: int, most: int, word: str | None = None) -> int:
        word = self._word(what) if word is None else word
        # 20 digits are more than any bound; longer ones take Python ever longer to read.
        if not (word.isdigit() and len(word) <= 20 and least <= int(word) <= most):
            self._refuse(f"{what} is {word[:40]!r}", f"give a whole number from {least} to {most}")
        return int(word)

    def _amount(self, what: str, most: float, word: str | None = None) -> float:
        word = self._word(what) if word is None else word
        try:
            out = float(word.replace("_", "?"))
        except ValueError:
            out = -1.0
        if not (isfinite(out) and 0 <= out <= most):
            self._refuse(f"{what} is {word[:40]!r}", f"give a number from 0 to {most:g}")
        return out

    def _reducer(self, ports: int) -> tuple[int, float]:
        word = self._word("a reducer")
        location, colon, size = word.partition(":")
        if not colon:
            self._refuse(f"a reducer is {word[:40]!r}", "write location:megabytes")
        return (
            self._whole("a reducer's location", 0, ports - 1, location),
            self._amount("a reducer's megabytes", _MOST_MB, size),
        )

    def _end(self) -> None:
        if self._at < len(self._words):
            self._refuse(f"{self._words[self._at][:40]!r} is one word too many", "correct the counts in the line")

    def _refuse(self, what: str, mend: str) -> NoReturn:
        raise PenstockError(f"{self._path}, line {max(self._number, 1)}: {what}; {mend}.", code="invalid-document")
