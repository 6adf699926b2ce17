"""The division of rows between two paths, on a simulated clock: both end together, also when one becomes slower."""

import numpy as np
import pytest

from penstock.store.device.path_division import GATHERED, PINNED, FixedDivision, MeasuredDivision

CHUNKS = 400


class TwoPaths:
    """A pinned and a gathering path that serve one chunk after the other, and batches that are asked for ahead."""

    def __init__(self):
        self.now = 1.0
        self.division = MeasuredDivision(clock=lambda: self.now)
        self.rng = np.random.default_rng(0)

    def speed(self, batches, chunk_seconds, noise=0.0, chunks=CHUNKS):
        """Batches a second over those of the best division; a batch is divided when the one before last is gathered."""
        began, ends = self.now, [[self.now] * 3, [self.now] * 3]
        under_way = []
        for _ in range(batches):
            self.now = max(self.now, ends[GATHERED][-2], ends[PINNED][-3])
            self._complete(under_way, self.now)
            divided = self.division.divide(chunks)
            for path, seconds in enumerate(chunk_seconds):
                busy = divided.chunks[path] * seconds * self.rng.uniform(1 - noise, 1 + noise)
                ends[path].append(max(ends[path][-1], self.now) + busy)
                under_way.append((ends[path][-1], path, self.now, busy, divided))
            self.share = divided.chunks[PINNED] / chunks
        self.now = max(ends[PINNED][-1], ends[GATHERED][-1])
        self._complete(under_way, self.now)
        pinned, gathered = chunk_seconds
        return batches / (self.now - began) * chunks * pinned * gathered / (pinned + gathered)

    def _complete(self, under_way, until):
        for item in sorted(under_way, key=lambda item: item[:2]):
            if item[0] <= until:
                under_way.remove(item)
                end, path, asked, busy, divided = item
                self.division.completed(divided, path, end - asked, busy)


FAST, SLOW, SLOWEST = 15e-6, 60e-6, 300e-6


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_both_paths_end_together_and_the_division_moves_when_one_becomes_slow(noise):
    paths = TwoPaths()
    paths.speed(20, (25e-6, FAST), noise)
    for pinned, gathered in [(25e-6, FAST), (25e-6, SLOW), (25e-6, SLOWEST), (25e-6, FAST), (100e-6, FAST)]:
        # A few batches until the change is known.
        paths.speed(20, (pinned, gathered), noise)
        assert paths.speed(100, (pinned, gathered), noise) >= 0.9
        assert abs(paths.share - gathered / (pinned + gathered)) < (0.02 if noise == 0 else 0.2)
    assert paths.division._selector.in_progress == 0


def test_a_small_batch_may_come_along_one_path():
    paths = TwoPaths()
    paths.speed(20, (25e-6, FAST))
    for chunks in (0, 1, 3):
        divided = paths.division.divide(chunks)
        assert sum(divided.chunks) == chunks
        for path in (PINNED, GATHERED):
            paths.division.forget(divided, path)
    assert paths.division._selector.in_progress == 0


def test_fixed_shares():
    assert FixedDivision(0.25).divide(8).chunks == (2, 6)
    assert FixedDivision(1.0).divide(3).chunks == (3, 0)
