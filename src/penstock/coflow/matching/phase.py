"""A phase of an all-to-all: what is sent at the same time."""

from dataclasses import dataclass

import numpy as np

from penstock.graph.arrays import Array


@dataclass(frozen=True, eq=False)
class Phase:
    """`senders[k]` sends `sizes[k]` bytes to `peers[k]`, or nothing where that is -1.

    In a matching the senders are 0..n-1, each with one peer at most, and no two with the same. Only `fair` sends
    otherwise: its one phase has a flow for every pair that has bytes.
    """

    senders: Array
    """int32 [flows]"""
    peers: Array
    """int32 [flows]: who receives, or -1."""
    sizes: Array
    """int64 [flows]: bytes."""
    weight: float
    """How long the phase takes, in bytes at the line rate; a whole number for matchings."""

    @property
    def is_matching(self) -> bool:
        """Whether no port has more than one flow."""
        busy = self.peers >= 0
        peers, senders = self.peers[busy], self.senders[busy]
        return len(np.unique(peers)) == len(peers) and len(np.unique(senders)) == len(senders)


def matching(receivers: Array, sizes: Array, weight: int) -> Phase:
    """A matching's phase; senders without bytes have no peer."""
    peers = np.where(sizes > 0, receivers, -1).astype(np.int32)
    return Phase(np.arange(len(peers), dtype=np.int32), peers, sizes, weight)
