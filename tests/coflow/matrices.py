"""Random all-to-alls of every kind, and what a schedule of one must be."""

import numpy as np

from penstock.coflow import bound


def uniform(ranks, rng):
    """Every pair something."""
    return rng.integers(1, 1000, (ranks, ranks))


def skewed(ranks, rng):
    """Few pairs have nearly everything."""
    return np.minimum(rng.zipf(1.4, (ranks, ranks)), 10**9)


def hot_receiver(ranks, rng):
    """One receiver gets several times what others get."""
    matrix = uniform(ranks, rng)
    matrix[:, rng.integers(ranks)] *= 8
    return matrix


def sparse(ranks, rng):
    """Few pairs have anything."""
    return uniform(ranks, rng) * (rng.random((ranks, ranks)) < 0.25)


def zero_rows(ranks, rng):
    """Some have nothing to send, some nothing to receive."""
    matrix = uniform(ranks, rng)
    matrix[rng.random(ranks) < 0.4] = 0
    matrix[:, rng.random(ranks) < 0.2] = 0
    return matrix


def small(ranks, rng):
    """Many ties."""
    return rng.integers(0, 3, (ranks, ranks))


KINDS = (uniform, skewed, hot_receiver, sparse, zero_rows, small)


def assert_sends_all(matrix, phases):
    """Every byte once, no port twice in a phase, and nothing longer than its phase."""
    sent = np.zeros(np.shape(matrix), np.int64)
    for phase in phases:
        busy = phase.peers >= 0
        assert ((phase.sizes > 0) == busy).all()
        for ports in (phase.peers[busy], phase.senders[busy]):
            assert len(np.unique(ports)) == len(ports)
        assert phase.peers.dtype == phase.senders.dtype == np.int32 and phase.sizes.dtype == np.int64
        assert (phase.senders == np.arange(len(sent))).all() and phase.sizes.max() <= phase.weight
        sent[phase.senders[busy], phase.peers[busy]] += phase.sizes[busy]
    wanted = np.array(matrix)
    np.fill_diagonal(wanted, 0)
    assert (sent == wanted).all()
    assert sum(phase.weight for phase in phases) >= bound(matrix, 1.0)
