"""The share of a GPU's throughput that steps are predicted to use."""

import pytest
import torch

from penstock.traced import Trace, launches, tracing
from penstock.train.job import make_job
from penstock.train.memory.forecast import forecast
from penstock.train.trace.allocations import META, Allocations
from penstock.train.trace.kernel_rates import KernelRates, kernel_rates
from penstock.train.trace.step_work import StepWork
from training_graphs import community_graph

RATES = KernelRates(bytes_s=1e12, cache_bytes=0, cached_bytes_s=1e12, flops_s=1e13, replayed_s=2e-6, launched_s=6e-6)


def test_bytes_products_and_starts_make_the_share():
    work = StepWork()
    assert work.share(RATES, True) is None
    work.note_kernel(2_000_000)
    # Two microseconds of memory behind two of a start; a launch takes six, and goes ahead of the GPU.
    assert work.share(RATES, True) == pytest.approx(0.5)
    assert work.share(RATES, False) == pytest.approx(1 / 3)
    work.note_kernel(18_000_000)
    assert work.share(RATES, True) == pytest.approx(20 / 24)
    assert work.share(RATES, False) == 1.0


def test_what_the_cache_holds_is_moved_at_its_rate():
    rates = RATES.model_copy(update={"cache_bytes": 3e6, "cached_bytes_s": 4e12})
    assert rates.seconds_of(2e6) == pytest.approx(0.5e-6)
    assert rates.seconds_of(4e6) == pytest.approx(4e-6)


def test_a_product_counts_by_what_limits_it():
    work, rows = StepWork(), torch.empty(1000, 100, device=META)
    square = torch.empty(100, 1000, device=META)
    product = torch.ops.aten.mm.default
    work.note(product, (rows, square), product(rows, square))
    filled = 2 * 1000 * 100 * 1000 / RATES.flops_s
    assert work.share(RATES, True) == pytest.approx(filled / (filled + RATES.replayed_s))


def test_kernels_are_noted_in_steps_alone_and_views_move_nothing():
    allocations = Allocations(on_device=True)
    trace = Trace(on_device=True, moves=allocations.moves)
    with allocations, tracing(trace):
        x = torch.empty(250, 1000, device=META)
        with allocations.during("validation"):
            assert not launches(x)
            _ = x + 1
        assert allocations.work.share(RATES, True) is None
        with allocations.during("step 1", step=True):
            _ = x.t()[:500].detach().contiguous()
            assert not launches(x, rows=10, of=x)
    moved = (1_000_000 + 40_000) / RATES.bytes_s
    copied = 2 * 500_000 / RATES.bytes_s
    share = allocations.work.share(RATES, True)
    assert share == pytest.approx((moved + copied) / (moved + copied + 2 * RATES.replayed_s))
    assert launches(x)


@pytest.mark.parametrize(
    "fields", [{"sampler": "whole"}, {"fanouts": [5, 5], "batch_size": 64}], ids=["whole", "drawn"]
)
def test_small_jobs_leave_most_of_a_gpu_and_large_ones_little(fields):
    shares = [_share(count, fields) for count in (300, 30_000)]
    assert 0 < shares[0] < 0.3
    assert shares[1] > shares[0]


def test_larger_graphs_fill_a_gpu():
    assert _share(200_000, {"sampler": "whole", "hidden": 128}) > 0.6


def test_what_is_known_of_a_gpu_is_kept_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    kernel_rates.cache_clear()
    try:
        assert kernel_rates().measured_on is None
        (tmp_path / "kernel_rates.json").write_text(RATES.model_copy(update={"measured_on": "a GPU"}).model_dump_json())
        kernel_rates.cache_clear()
        assert kernel_rates().bytes_s == RATES.bytes_s
    finally:
        kernel_rates.cache_clear()


def _share(count, fields):
    found = forecast(
        make_job({"model": "gcn", "hidden": 32, "epochs": 2, **fields}), community_graph(count), device="cuda"
    )
    assert found.method == "traced"
    return found.share
