"""Amounts: their means, peaks, and independence of everything but seed, iteration and item."""

import numpy as np
import pytest

from penstock.simulate import GnnJob, PeakToMean, draw_amounts, gnn_workload
from penstock.simulate.workload import Constant, Quantiles

LOAD = gnn_workload(GnnJob(4, 5, 2, worker_seconds=2.0, pull_bytes=100.0, batch_bytes=7.0))
PULLS = np.array(LOAD.flow_kinds) == "pull"


@pytest.mark.parametrize("ratio", [1.0, 1.3, 2.0, 3.0])
def test_peak_to_mean(ratio):
    sizes = draw_amounts(LOAD, 500, 1, {"pull": PeakToMean(ratio)}).sizes[:, PULLS] / 25
    # u^(r-1) has variance 1/(2r-1) - 1/r^2, here times r^2.
    deviation = np.sqrt(max(0.0, ratio**2 / (2 * ratio - 1) - 1) / sizes.size)
    assert abs(sizes.mean() - 1) <= 5 * deviation + 1e-12
    assert 0.99 * ratio < sizes.max() <= ratio


def test_quantiles_follow_the_sample():
    sample = [1.0, 2.0, 4.0, 9.0]
    sizes = draw_amounts(LOAD, 500, 2, {"pull": Quantiles(sample)}).sizes[:, PULLS] / 25
    mean = (1.5 + 3 + 6.5) / 3
    assert sizes.min() >= 1 / mean and sizes.max() <= 9 / mean
    assert abs(sizes.mean() - 1) < 5 * sizes.std() / np.sqrt(sizes.size)
    assert np.quantile(sizes, 1 / 3) * mean == pytest.approx(2, abs=0.1)
    assert (draw_amounts(LOAD, 3, 2, {"pull": Quantiles([5.0])}).sizes[:, PULLS] == 25).all()


def test_an_amount_depends_on_seed_iteration_and_item_alone():
    spreads = {"pull": PeakToMean(2.0), "worker": PeakToMean(1.5)}
    long, short = draw_amounts(LOAD, 30, 4, spreads), draw_amounts(LOAD, 10, 4, spreads)
    assert (long.sizes[:10] == short.sizes).all() and (long.seconds[:10] == short.seconds).all()
    alone = draw_amounts(LOAD, 10, 4, {"pull": PeakToMean(2.0), "batch": Constant()})
    assert (alone.sizes == short.sizes).all()
    assert (draw_amounts(LOAD, 10, 5, spreads).sizes != short.sizes)[:, PULLS].all()
    assert (short.sizes[0] != short.sizes[1])[PULLS].all() and (short.sizes[:, ~PULLS] == alone.sizes[:, ~PULLS]).all()
