"""The phases of an all-to-all from the view of one rank: which rows it sends to whom, and receives from whom.

Schedules are made in units of rows, so that no row is cut. With a granularity of g rows a unit, a phase sends whole
units and the last of a pair may be smaller: fewer different sizes make fewer phases, and every pair rounded up makes
them a little longer.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from penstock.coflow.matching import schedule
from penstock.errors import PenstockError
from penstock.graph.arrays import Array

_KEPT = 128
"""Schedules that are remembered: sizes of static layers come again every step."""


@dataclass(frozen=True)
class Slice:
    """Rows `[first, last)` of what one rank has for another."""

    peer: int
    first: int
    last: int


@dataclass(frozen=True)
class RankPhase:
    """What a rank does in one phase."""

    phase: int
    """Its number, the same for all ranks."""
    sends: tuple[Slice, ...]
    receives: tuple[Slice, ...]


def phases_of_rank(
    rows: Array, rank: int, name: str, granularity: int = 1, max_phases: int | None = None
) -> tuple[RankPhase, ...]:
    """The turns of a rank in which it has something to do; `rows` [n, n] is what rank i has for rank j."""
    if granularity < 1:
        raise PenstockError(
            f"granularity is {granularity}: give 1 row or more.",
            code="value-out-of-range",
        )
    rows = rows.astype(np.int64)
    return _phases_of_rank(rows.tobytes(), len(rows), rank, name, granularity, max_phases)


@lru_cache(_KEPT)
def _phases_of_rank(
    rows: bytes, ranks: int, rank: int, name: str, granularity: int, max_phases: int | None
) -> tuple[RankPhase, ...]:
    matrix = np.frombuffer(rows, np.int64).reshape(ranks, ranks)
    if name == "fair":
        return _at_once(matrix, rank)
    if max_phases is not None:
        granularity = _coarse_enough(matrix, name, granularity, max_phases)
    sent, received = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    turns = []
    for number, phase in enumerate(schedule(_units(matrix, granularity), name)):
        sends, receives = list[Slice](), list[Slice]()
        for flow in np.flatnonzero(((phase.senders == rank) | (phase.peers == rank)) & (phase.peers >= 0)):
            sender, receiver = int(phase.senders[flow]), int(phase.peers[flow])
            so_far, peer, side = (sent, receiver, sends) if sender == rank else (received, sender, receives)
            first = int(so_far[peer])
            last = min(first + int(phase.sizes[flow]) * granularity, int(matrix[sender, receiver]))
            so_far[peer] = last
            side.append(Slice(peer, first, last))
        if sends or receives:
            turns.append(RankPhase(number, tuple(sends), tuple(receives)))
    return tuple(turns)


def _at_once(matrix: Array, rank: int) -> tuple[RankPhase, ...]:
    """Everything in one turn. Who comes next goes first, so that not all begin with the same receiver."""
    others = [(rank + shift) % len(matrix) for shift in range(1, len(matrix))]
    sends = tuple(Slice(peer, 0, int(matrix[rank, peer])) for peer in others if matrix[rank, peer])
    receives = tuple(Slice(peer, 0, int(matrix[peer, rank])) for peer in reversed(others) if matrix[peer, rank])
    return (RankPhase(0, sends, receives),) if sends or receives else ()


def _units(matrix: Array, granularity: int) -> Array:
    return -(-matrix // granularity)


def _coarse_enough(matrix: Array, name: str, granularity: int, max_phases: int) -> int:
    """The granularity, doubled until there are so few phases."""
    while len(schedule(_units(matrix, granularity), name)) > max_phases:
        if granularity >= matrix.max():
            raise PenstockError(
                f"Schedule {name!r} needs more than {max_phases} phases even with one for each pair's rows: "
                "allow as many as a rank has peers, or send everything at once with 'fair'.",
                code="value-out-of-range",
            )
        granularity *= 2
    return granularity
