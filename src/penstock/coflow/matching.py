"""An all-to-all of known sizes as a sequence of phases, by the schedules of a table.

A matrix has the bytes from rank i to rank j; a phase (`Phase`) is a matching of senders and receivers, so that no port
has two flows. `schedule` gives the phases, `seconds` their time alone, `bound` a lower bound of any schedule.
`coflow.exchange` sends them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.registry import Registry

# The demand of an all-to-all (a matrix of bytes), the least time of any schedule, and its phases.

_LARGEST_LOAD = 2**62
"""The most bytes of a port, so that sums fit 64 bits."""


def checked_demand(matrix: Any) -> Array:
    """Bytes that rank i sends to rank j, int64 [n, n], a copy. The diagonal is 0: own data crosses no network."""
    try:
        given = np.asarray(matrix)
    except ValueError:
        raise PenstockError(
            "The rows of the all-to-all's matrix differ in length: give n rows of n sizes.", code="shape-mismatch"
        ) from None
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.shape[0] == 0:
        raise PenstockError(
            f"The all-to-all's matrix has the shape {given.shape}: give n rows of n sizes, row i what rank i sends.",
            code="shape-mismatch",
        )
    if given.dtype.kind not in "iu":
        raise PenstockError(
            f"The all-to-all's matrix holds {given.dtype}: give whole numbers of bytes.", code="wrong-type"
        )
    wrong = np.argwhere(given < 0)
    if len(wrong):
        sender, receiver = wrong[0]
        raise PenstockError(
            f"Rank {sender} cannot send {given[sender, receiver]:,} bytes to rank {receiver}: give 0 or more.",
            code="value-out-of-range",
        )
    rough = given.astype(np.float64)
    if max(rough.sum(0).max(), rough.sum(1).max()) >= _LARGEST_LOAD:
        raise PenstockError(
            "A rank of the all-to-all has 2^62 bytes or more to carry: give sizes in larger units.", code="too-large"
        )
    demand = given.astype(np.int64)
    np.fill_diagonal(demand, 0)
    return demand


def largest_load(demand: Array) -> int:
    """The most that any rank sends or receives, in bytes."""
    return int(max(demand.sum(0).max(), demand.sum(1).max()))


def bound(matrix: Any, rate: float) -> float:
    """A lower bound in seconds: the busiest port's bytes at the line rate (bytes/s)."""
    return largest_load(checked_demand(matrix)) / checked_rate(rate)


def checked_rate(rate: float) -> float:
    """A validated line rate, in bytes/s."""
    if not (rate > 0 and math.isfinite(rate)):
        raise PenstockError(f"The line rate is {rate} bytes/s: give a number above 0.", code="value-out-of-range")
    return rate


@dataclass(frozen=True, eq=False)
class Phase:
    """`senders[k]` sends `sizes[k]` bytes to `peers[k]`, or nothing where that is -1.

    In a matching the senders are 0..n-1, each with at most one peer, and no two with the same. Only `fair` differs: its
    one phase has a flow for every pair that has bytes.
    """

    senders: Array
    """int32 [flows]"""
    peers: Array
    """int32 [flows]: who receives, or -1."""
    sizes: Array
    """int64 [flows]: bytes."""
    weight: float
    """How long the phase takes, in bytes at the line rate; a whole number for matchings."""


def matching(receivers: Array, sizes: Array, weight: int) -> Phase:
    """A matching's phase; senders without bytes have no peer."""
    peers = np.where(sizes > 0, receivers, -1).astype(np.int32)
    return Phase(np.arange(len(peers), dtype=np.int32), peers, sizes, weight)


# Perfect matchings whose smallest entry is as large as can be, each grown from the one before.
#
# `receivers` [n] and `senders` [n] (int64) are the matching seen from both sides, -1 where there is none. A bipartite
# graph is a matrix of entries (int64): an edge counts while its entry is at least the `floor`, which falls only when no
# perfect matching is left above it. So the floor ends at the largest possible smallest entry, if it began at or above
# it.

NONE = -1


@njit(nogil=True, cache=True)
def widen(entries: Array, receivers: Array, senders: Array, floor: int) -> int:
    """Make the matching perfect; returns its floor. Pairs below the initial floor are matched anew.

    There must be a perfect matching of entries above 0.
    """
    ranks = len(receivers)
    for sender in range(ranks):
        receiver = receivers[sender]
        if receiver != NONE and entries[sender, receiver] < floor:
            receivers[sender] = NONE
            senders[receiver] = NONE
    tree = np.empty((3, ranks), np.int64)
    for sender in range(ranks):
        if receivers[sender] == NONE:
            floor = _join(entries, receivers, senders, sender, floor, tree)
    return floor


@njit(nogil=True, cache=True)
def _join(entries: Array, receivers: Array, senders: Array, root: int, floor: int, tree: Array) -> int:
    """Match one more sender, by the alternating path from it whose smallest entry is largest; returns the floor.

    When everything above the floor is reached and taken, the reached senders are one more than the receivers they have:
    every perfect matching uses an entry out of them, and the largest of those is the new floor.
    """
    best, through, outside = tree[0], tree[1], tree[2]
    # The largest entry by which a reached sender could reach a receiver, that sender, and receivers not yet reached.
    best[:] = NONE
    for receiver in range(len(receivers)):
        outside[receiver] = receiver
    reached, count = root, len(receivers)
    while True:
        widest, place = NONE, 0
        for k in range(count):
            receiver = outside[k]
            if entries[reached, receiver] > best[receiver]:
                best[receiver], through[receiver] = entries[reached, receiver], reached
            if best[receiver] > widest:
                widest, place = int(best[receiver]), k
                if widest >= floor and senders[receiver] == NONE:
                    break
        floor = min(floor, widest)
        last = outside[place]
        if senders[last] == NONE:
            break
        reached = senders[last]
        count -= 1
        outside[place] = outside[count]
    while last != NONE:
        sender = through[last]
        senders[last] = sender
        last, receivers[sender] = receivers[sender], last
    return floor


# `bvn`: the bottleneck Birkhoff-von Neumann decomposition. It takes exactly the bound, in at most n^2 - 2n + 2 phases.
#
# The matrix is padded until all rows and columns add up to the largest of them; padding stands for idling and carries
# no bytes. Such a matrix has a perfect matching among its positive entries. The one whose smallest entry is largest is
# sent for as long as that entry lasts, what is left has equal sums again, and so on. Every phase all ports are busy or
# idle by padding, so the weights add up to the largest sum: no schedule is faster. Every phase ends an entry, which
# bounds their number. All in whole numbers, so that every rank finds the same schedule and nothing is left by rounding.


def bvn_phases(demand: Array) -> list[Phase]:
    """The phases of the Birkhoff-von Neumann schedule, longest first."""
    ranks, left = len(demand), largest_load(demand)
    unsent, entries = demand.copy(), padded(demand)
    everyone = np.arange(ranks)
    receivers, senders = np.full(ranks, NONE), np.full(ranks, NONE)
    phases, floor = [], left
    while left > 0:
        # Entries only fall, and with them the largest smallest one: the last floor is high enough to start from.
        floor = weight = int(widen(entries, receivers, senders, floor))
        entries[everyone, receivers] -= weight
        sizes = np.minimum(unsent[everyone, receivers], weight)
        unsent[everyone, receivers] -= sizes
        phases.append(matching(receivers, sizes, weight))
        left -= weight
    return phases


def padded(demand: Array) -> Array:
    """The matrix with as much added as makes all rows and columns add up to the largest of them.

    What the emptiest sender lacks goes to the emptiest receiver first: large entries make few phases.
    """
    entries, load = demand.copy(), largest_load(demand)
    sending, receiving = load - demand.sum(1), load - demand.sum(0)
    while sending.any():
        sender, receiver = int(sending.argmax()), int(receiving.argmax())
        idle = min(sending[sender], receiving[receiver])
        entries[sender, receiver] += idle
        sending[sender] -= idle
        receiving[receiver] -= idle
    return entries


# `fair`: no schedule. Everything is sent at once, and the network shares its ports as it does.
#
# Its time alone is that of max-min fair sharing: n senders and n receivers at the line rate, rates anew whenever a flow
# ends. That is the network's best behaviour; incast, which loses packets, is not in it.
#
# It is the simulator's policy of the same name, and tests hold the two to each other. A full matrix is filled by a
# kernel of its own, because the simulator's lists of flows take 1.2 to 1.9 times as long for one.

_ROUNDING = 1e-12
"""The relative remainder of a flow's bytes that counts as nothing when it ends with another."""


def fair_phases(demand: Array) -> list[Phase]:
    """One phase with all flows, or none."""
    senders, peers = np.nonzero(demand)
    if not len(senders):
        return []
    weight = float(_shared_duration(demand.astype(np.float64)))
    return [Phase(senders.astype(np.int32), peers.astype(np.int32), demand[senders, peers], weight)]


@njit(nogil=True, cache=True)
def _shared_duration(sizes: Array) -> float:
    """How long all flows take together at a line rate of 1, from one flow's end to the next."""
    ranks, now = len(sizes), 0.0
    left, rates = sizes.copy(), np.zeros((ranks, ranks))
    flows = int(np.count_nonzero(left))
    while flows > 0:
        _fill(left, rates, flows)
        step = np.inf
        for sender in range(ranks):
            for receiver in range(ranks):
                if left[sender, receiver] > 0:
                    step = min(step, left[sender, receiver] / rates[sender, receiver])
        now += step
        for sender in range(ranks):
            for receiver in range(ranks):
                if left[sender, receiver] > 0:
                    left[sender, receiver] -= step * rates[sender, receiver]
                    if left[sender, receiver] <= _ROUNDING * sizes[sender, receiver]:
                        left[sender, receiver] = 0
                        flows -= 1
    return now


@njit(nogil=True, cache=True)
def _fill(left: Array, rates: Array, unsettled: int) -> None:
    """Max-min rates by progressive filling: the port that gives its flows least fixes their rates, and so on."""
    ranks = len(left)
    # Ports: the senders', then the receivers'.
    spare, crossing = np.ones(2 * ranks), np.zeros(2 * ranks, np.int64)
    for sender in range(ranks):
        for receiver in range(ranks):
            rates[sender, receiver] = 0.0
            crossing[sender] += left[sender, receiver] > 0
            crossing[ranks + receiver] += left[sender, receiver] > 0
    while unsettled > 0:
        least, tightest = np.inf, 0
        for port in range(2 * ranks):
            if crossing[port] > 0 and spare[port] < least * crossing[port]:
                least, tightest = spare[port] / crossing[port], port
        for other in range(ranks):
            sender, receiver = (tightest, other) if tightest < ranks else (other, tightest - ranks)
            if left[sender, receiver] > 0 and rates[sender, receiver] == 0.0:
                rates[sender, receiver] = least
                unsettled -= 1
                crossing[sender] -= 1
                crossing[ranks + receiver] -= 1
                spare[sender] -= least
                spare[ranks + receiver] -= least


# `matched`: our own schedule for phases with a cost: few phases, at most 5 % above the bound.
#
# A phase of duration w costs time if afterwards some port has more left than the largest load less w. A port that idles
# may do so for its slack (largest load less its own); a pair may be matched for what it has to send plus the smaller
# slack of its two ports. Each phase is a matching in which the shortest of these is as long as can be; it lasts for
# that and a twentieth more (or for its largest entry, if that is shorter), and pairs that are still free are added. The
# largest load falls by the first part, so all phases take at most 1.05 times the largest load there was.
#
# `bvn` fixes beforehand who idles with whom, and stops each phase at the first entry that ends; that is why it needs
# more phases. With no twentieth this one would take the bound too.

_PARTS = 20
"""One in this many parts by which a phase may last longer than without waste."""
_FREE = np.iinfo(np.int64).max
"""An entry that never bounds a phase."""


def matched_phases(demand: Array) -> list[Phase]:
    """The phases in the order in which they are sent."""
    ranks, left, phases = len(demand), demand.copy(), list[Phase]()
    everyone = np.arange(ranks)
    # A virtual receiver represents a sender's idling, a virtual sender a receiver's.
    entries = np.full((2 * ranks, 2 * ranks), _FREE)
    receivers, senders = np.full(2 * ranks, NONE), np.full(2 * ranks, NONE)
    floor = _FREE
    while left.any():
        _set_entries(left, left.sum(1), left.sum(0), entries)
        # Starting from the last floor gives a little less than the best if that has risen, but is much faster.
        floor = int(widen(entries, receivers, senders, floor))
        chosen = np.where(receivers[:ranks] < ranks, receivers[:ranks], NONE)
        _add_pairs(left, chosen)
        waiting = np.where(chosen == NONE, 0, left[everyone, chosen])
        weight = min(floor + floor // _PARTS, int(waiting.max()))
        sizes = np.minimum(waiting, weight)
        left[everyone, chosen] -= sizes
        phases.append(matching(chosen, sizes, weight))
    return phases


@njit(nogil=True, cache=True)
def _set_entries(left: Array, sending: Array, receiving: Array, entries: Array) -> None:
    """How long each pair could be matched and each port could idle without costing time."""
    ranks = len(left)
    load = max(sending.max(), receiving.max())
    entries[:ranks, :] = 0
    entries[ranks:, :ranks] = 0
    for sender in range(ranks):
        entries[sender, ranks + sender] = load - sending[sender]
        entries[ranks + sender, sender] = load - receiving[sender]
        for receiver in range(ranks):
            if left[sender, receiver] > 0:
                slack = load - max(sending[sender], receiving[receiver])
                entries[sender, receiver] = left[sender, receiver] + slack


@njit(nogil=True, cache=True)
def _add_pairs(left: Array, chosen: Array) -> None:
    """Match free senders with free receivers, each with the one it has most for."""
    ranks = len(left)
    taken = np.zeros(ranks, np.bool_)
    for sender in range(ranks):
        if chosen[sender] != NONE:
            taken[chosen[sender]] = True
    for sender in range(ranks):
        most = 0
        if chosen[sender] == NONE:
            for receiver in range(ranks):
                if not taken[receiver] and left[sender, receiver] > most:
                    most, chosen[sender] = left[sender, receiver], receiver
            if most > 0:
                taken[chosen[sender]] = True


# `printed`: Algorithm 3 of the Hermod thesis as it is printed, for comparison.
#
# Each phase is a matching that has the most bytes left, and lasts for the smallest positive entry of the whole matrix,
# matched or not. Neither is that time optimal ([[0,1,1],[1,0,1],[0,0,0]] takes 3 where 2 is possible) nor are the
# phases few: one small entry that is matched late cuts everything before it to its size. It is printed for real
# numbers, whose rounding may leave entries of almost nothing; on whole numbers it ends, if not soon.

LIMIT = 20_000
"""The most phases; beyond them an error is raised."""


def printed_phases(demand: Array, limit: int = LIMIT) -> list[Phase]:
    """The phases, all as long as what is left allows."""
    # Imported here, as that takes longer than making most schedules.
    from scipy.optimize import linear_sum_assignment

    left, phases = demand.copy(), list[Phase]()
    while left.any():
        if len(phases) == limit:
            raise PenstockError(
                f"The printed schedule of {len(demand)} ranks has sent {demand.sum() - left.sum():,} of "
                f"{demand.sum():,} bytes after {limit:,} phases: use 'bvn', or larger units than bytes.",
                code="too-large",
            )
        rows, columns = linear_sum_assignment(left, maximize=True)
        weight = int(left[left > 0].min())
        sizes = np.minimum(left[rows, columns], weight)
        left[rows, columns] -= sizes
        phases.append(matching(columns, sizes, weight))
    return phases


SCHEDULES: Registry[Callable[[Array], list[Phase]]] = Registry(
    "all-to-all schedule",
    "penstock.all_to_all_schedules",
    {"fair": fair_phases, "printed": printed_phases, "matched": matched_phases, "bvn": bvn_phases},
    Callable,
)


def schedule(matrix: Any, name: str = "bvn") -> list[Phase]:
    """The phases in which rank i's matrix[i, j] bytes (whole numbers) reach rank j; own data, i = j, is in none."""
    return SCHEDULES[name](checked_demand(matrix))


def seconds(matrix: Any, name: str, rate: float, overhead_s: float = 0.0) -> float:
    """What the all-to-all takes alone at a line rate (bytes/s), with so many seconds more for every phase."""
    if not (overhead_s >= 0 and math.isfinite(overhead_s)):
        raise PenstockError(f"overhead_s is {overhead_s}: give 0 or more.", code="value-out-of-range")
    checked_rate(rate)
    phases = schedule(matrix, name)
    return sum(phase.weight for phase in phases) / rate + overhead_s * len(phases)
