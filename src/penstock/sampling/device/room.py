"""How much room a batch may take on the device: fixed before sampling, so that nothing waits for sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

_ROUND = 64
_SLACK = 0.004
_SPREADS = 5.0


@dataclass(frozen=True)
class Room:
    """`rows[h]` before hop h, `rows[-1]` after the last; `edges[h]` drawn in hop h."""

    rows: tuple[int, ...]
    edges: tuple[int, ...]

    def holds(self, other: "Room") -> bool:
        """Whether a batch of these sizes fits."""
        return self.holds_sizes(other.sizes)

    def holds_sizes(self, needed: Sequence[int]) -> bool:
        """Whether a batch fits that needs so much, in the order of `sizes`."""
        return all(need <= held for need, held in zip(needed, self.sizes, strict=True))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Edges and rows after each hop, hop by hop: the order in which the device counts them."""
        pairs = zip(self.edges, self.rows[1:], strict=True)
        return tuple(size for pair in pairs for size in pair)

    def enlarged(self, needed: Sequence[int], largest: "Room") -> "Room":
        """Room for what a batch `needed`, in the order of `sizes`; what came behind a cut may need more yet."""
        grown = [max(size, _rounded(1.25 * need)) for size, need in zip(self.sizes, needed, strict=True)]
        return _of_sizes(self.rows[0], grown, largest)


def largest_room(batch_size: int, fanouts: Sequence[int], vertices: int) -> Room:
    """The room that no batch can exceed."""
    rows, edges = [batch_size], []
    for fanout in fanouts:
        edges.append(rows[-1] * fanout)
        rows.append(min(vertices, rows[-1] + edges[-1]))
    return Room(tuple(rows), tuple(edges))


def room_for(samples: Sequence[Sequence[int]], batch_size: int, largest: Room) -> Room:
    """Room for batches like some that were drawn (each in the order of `sizes`).

    Sizes are sums over many vertices and so nearly normal: the mean and five standard deviations, and a little more as
    the deviation is itself measured from few batches.
    """
    sizes = []
    for values in zip(*samples, strict=True):
        mean = sum(values) / len(values)
        spread = (sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)) ** 0.5
        sizes.append(_rounded(max(max(values), mean + _SPREADS * spread) * (1 + _SLACK)))
    return _of_sizes(batch_size, sizes, largest)


def _of_sizes(batch_size: int, sizes: Sequence[int], largest: Room) -> Room:
    held = [min(size, most) for size, most in zip(sizes, largest.sizes, strict=True)]
    rows = [batch_size]
    for size in held[1::2]:
        rows.append(max(rows[-1], size))
    return Room(tuple(rows), tuple(held[0::2]))


def _rounded(size: float) -> int:
    return max(_ROUND, -(-int(size + 1) // _ROUND) * _ROUND)
