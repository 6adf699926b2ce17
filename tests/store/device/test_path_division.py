"""The division of rows between two paths, on a simulated clock: it finds the fastest share, also when that changes."""

import numpy as np
import pytest

from penstock.store.device.host_paths import GATHERED, PINNED, SHARES, FastestDivision, FixedDivision

CHUNKS = 400
SWEEP = 24 * 7
"""Batches in which the fastest share has been looked for."""


class TwoPaths:
    """A pinned and a gathering path that serve one batch after the other, and batches that are asked for ahead.

    A batch takes `fixed` seconds of a path that brings some of it, and `chunk` seconds for each chunk.
    """

    def __init__(self, division=None, noise=0.0):
        self.now = 1.0
        self.division = division or FastestDivision(clock=lambda: self.now)
        self.rng, self.noise = np.random.default_rng(0), noise

    def speed(self, batches, chunk, fixed=(0.0, 0.0)):
        """Batches a second: one is divided when the one before last has arrived."""
        began, free, ends = self.now, [self.now, self.now], [self.now, self.now]
        for _ in range(batches):
            self.now = max(self.now, ends[-2])
            counts = self.division.divide(CHUNKS)
            for path in (PINNED, GATHERED):
                if counts[path]:
                    busy = fixed[path] + counts[path] * chunk[path] * self.rng.uniform(1 - self.noise, 1 + self.noise)
                    free[path] = max(free[path], self.now) + busy
            ends.append(max(free))
            self.share = counts.pinned / CHUNKS
        self.now = ends[-1]
        return batches / (self.now - began)


def best_speed(chunk, fixed):
    """Of all shares that are tried."""
    return max(TwoPaths(FixedDivision(share)).speed(200, chunk, fixed) for share in SHARES)


EVEN, FAST, SLOW, SLOWEST = 25e-6, 15e-6, 60e-6, 300e-6


@pytest.mark.covering(1)
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("fixed", [(0.0, 0.0), (0.0, 2e-3), (1e-3, 0.0)], ids=str)
def test_the_fastest_share_is_found_and_found_again_when_a_path_changes(noise, fixed):
    paths = TwoPaths(noise=noise)
    for chunk in [(EVEN, FAST), (EVEN, SLOW), (EVEN, SLOWEST), (EVEN, FAST), (4 * EVEN, FAST)]:
        # Until the change is noticed, and all shares were tried again.
        paths.speed(4 * SWEEP, chunk, fixed)
        assert paths.speed(1000, chunk, fixed) >= 0.9 * best_speed(chunk, fixed)


def test_a_path_alone_is_taken_where_it_is_the_fastest():
    """Cores that others use make gathering so slow that any share of it is worse than none."""
    paths = TwoPaths()
    paths.speed(3 * SWEEP, (EVEN, FAST), (0.0, 20e-3))
    assert paths.share == 1.0


def test_a_pause_changes_nothing():
    paths = TwoPaths()
    paths.speed(SWEEP, (EVEN, FAST))
    for _ in range(8):
        paths.speed(17, (EVEN, FAST))
        paths.now += 30.0
    paths.speed(2, (EVEN, FAST))
    assert 0.3 <= paths.share <= 0.5


def test_small_batches():
    division = FastestDivision()
    for chunks in (0, 1, 3) * 100:
        assert sum(division.divide(chunks)) == chunks


def test_fixed_shares():
    assert FixedDivision(0.25).divide(8) == (2, 6)
    assert FixedDivision(1.0).divide(3) == (3, 0)
