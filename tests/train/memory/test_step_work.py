"""The share of a GPU's throughput that a run is predicted to use."""

from functools import cache

import numpy as np
import pytest
import torch

from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.trace.allocations import META, Allocations
from penstock.trace.kernel_rates import KernelRates, StepWork, kernel_rates
from penstock.traced import Trace, launches, tracing
from penstock.train.job import make_job
from penstock.train.memory import process_memory
from penstock.train.memory.forecast import forecast

RATES = KernelRates(
    bytes_s=1e12,
    cache_bytes=0,
    cached_bytes_s=1e12,
    flops_s=1e13,
    replayed_s=2e-6,
    launched_s=6e-6,
    measured_on=None,
)
ENDLESS = 10**12
"""Steps of a run beside which nothing else counts."""
WAYS = {"whole": {"sampler": "whole"}, "drawn": {"fanouts": [5, 5], "batch_size": 64}}


@pytest.fixture(autouse=True)
def assumed_rates(tmp_path, monkeypatch):
    """Whatever was measured on this machine, the stated rates count, and what a process takes is not measured."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(process_memory, "_known", lambda *_: process_memory.ProcessMemory(resident=400 << 20, files=0))
    kernel_rates.cache_clear()
    yield
    kernel_rates.cache_clear()


def test_starts_and_bytes_make_the_share_of_a_run():
    work = StepWork()
    assert work.share(RATES, True, 10) is None
    work.note_kernel(2_000_000)
    work.steps = 1
    # Two microseconds of memory behind two of a start, in a run that is all steps; a launch takes six.
    assert work.share(RATES, True, ENDLESS) == pytest.approx(0.5, rel=1e-3)
    assert work.share(RATES, False, ENDLESS) == pytest.approx(1 / 3, rel=1e-3)
    work.note_kernel(18_000_000)
    assert work.share(RATES, True, ENDLESS) == pytest.approx(20 / 24, rel=1e-3)
    # Launches go ahead of what takes longer than they do.
    assert work.share(RATES, False, ENDLESS) == pytest.approx(1, rel=1e-3)


def test_a_short_run_hardly_uses_a_gpu():
    work = StepWork()
    work.note_kernel(2_000_000)
    work.steps = 1
    shares = [work.share(RATES, True, steps) for steps in (1, 1000, 10**6)]
    assert shares == sorted(shares) and shares[0] < 1e-5 and shares[2] > 0.3
    # Of two steps that were traced, each has one of the kernels.
    work.note_kernel(2_000_000)
    work.steps = 2
    assert work.share(RATES, True, 1000) == pytest.approx(shares[1])


def test_picked_rows_take_longer_than_rows_in_order():
    plain, picked = StepWork(), StepWork()
    plain.note_kernel(10_000_000)
    picked.note_kernel(0, 10_000_000)
    plain.steps = picked.steps = 1
    assert picked.share(RATES, True, ENDLESS) > plain.share(RATES, True, ENDLESS)


def test_of_a_table_only_the_rows_count_that_are_picked():
    work, table = StepWork(), torch.empty(1_000_000, 256, device=META)
    ids = torch.empty(1000, dtype=torch.int64, device=META)
    picks = torch.ops.aten.index_select.default
    work.note(picks, [table, ids], [picks(table, 0, ids)])
    work.steps = 1
    filled = 3.5 * 1000 * 256 * 4 / RATES.bytes_s
    assert work.share(RATES, True, ENDLESS) == pytest.approx(filled / (filled + RATES.replayed_s), rel=1e-3)


def test_kernels_that_stand_for_others_count_as_often():
    once, often = StepWork(), StepWork()
    often.times = 4.0
    for work in (once, often):
        work.note_kernel(2_000_000)
        work.steps = 1
    assert often.share(RATES, True, 1000) == pytest.approx(once.share(RATES, True, 4000))


@pytest.mark.parametrize("bins", [4, 8])
def test_bins_that_are_not_traced_count_as_well(bins):
    fields = {"sampler": "whole", "model": "gat", "keep": "recompute", "epochs": 1000}
    one, several = (_share(3000, {**fields, "bins": count}) for count in (2, bins))
    assert several == pytest.approx(one, rel=0.5)


def test_rows_that_come_through_the_link_have_no_share():
    fields = {"fanouts": [5, 5], "batch_size": 64, "placement": {"features": "pinned"}}
    assert _share(300, fields) is None


def test_validations_of_the_host_need_its_cores():
    job = {"model": "gcn", "hidden": 32, "fanouts": [5, 5], "batch_size": 64}
    pinned = {**job, "placement": {"topology": "pinned", "features": "device"}}
    assert forecast(make_job(job), _graph(300), device="cuda").cores == 1
    assert forecast(make_job(pinned), _graph(300), device="cuda").cores is None


def test_what_the_cache_holds_is_moved_at_its_rate():
    rates = RATES.model_copy(update={"cache_bytes": 3e6, "cached_bytes_s": 4e12})
    assert rates.seconds_of(2e6) == pytest.approx(0.5e-6)
    assert rates.seconds_of(4e6) == pytest.approx(4e-6)


def test_a_product_counts_by_what_limits_it():
    work, rows = StepWork(), torch.empty(1000, 100, device=META)
    square = torch.empty(100, 1000, device=META)
    product = torch.ops.aten.mm.default
    work.note(product, [rows, square], [product(rows, square)])
    work.steps = 1
    filled = 2 * 1000 * 100 * 1000 / RATES.flops_s
    assert work.share(RATES, True, ENDLESS) == pytest.approx(filled / (filled + RATES.replayed_s), rel=1e-3)


def test_kernels_are_noted_in_steps_alone_and_views_move_nothing():
    allocations = Allocations(on_device=True)
    trace = Trace(on_device=True, moves=allocations.moves)
    with allocations, tracing(trace):
        x = torch.empty(250, 1000, device=META)
        with allocations.during("validation"), allocations.updating():
            assert not launches(x)
            _ = x + 1
        assert allocations.work.share(RATES, True, 10) is None
        with allocations.during("step 1", step=True), allocations.updating():
            _ = x.t()[:500].detach().contiguous()
            assert not launches(x)
    filled = (1_000_000 + 2 * 500_000) / RATES.bytes_s
    share = allocations.work.share(RATES, True, ENDLESS)
    assert share == pytest.approx(filled / (filled + 2 * RATES.replayed_s), rel=1e-3)
    assert launches(x)


@pytest.mark.parametrize("way", WAYS)
def test_small_jobs_leave_most_of_a_gpu(way):
    small, large = (_share(count, {**WAYS[way], "epochs": 10_000}) for count in (300, 30_000))
    assert 0 < small < 0.3
    assert large > small
    assert _share(300, {**WAYS[way], "epochs": 10}) < small


def test_large_jobs_fill_a_gpu():
    assert _share(200_000, {"sampler": "whole", "hidden": 128, "epochs": 100_000}) > 0.6


def test_what_is_known_of_a_gpu_is_kept_in_a_file(tmp_path):
    assert kernel_rates().measured_on is None
    (tmp_path / "kernel_rates.json").write_text(RATES.model_copy(update={"measured_on": "a GPU"}).model_dump_json())
    kernel_rates.cache_clear()
    assert kernel_rates().bytes_s == RATES.bytes_s


def _share(count, fields):
    found = forecast(make_job({"model": "gcn", "hidden": 32, **fields}), _graph(count), device="cuda")
    assert found.method == "traced"
    return found.share


@cache
def _graph(count):
    """Eight neighbours for each vertex, made at once."""
    rng = np.random.default_rng(0)
    edges = EdgeSet(8 * np.arange(count + 1), rng.integers(0, count, 8 * count).astype(np.int32))
    fields = {"x": rng.standard_normal((count, 16), np.float32), "y": rng.integers(0, 4, count)}
    splits = {"train": np.arange(count // 2), "val": np.arange(count // 2, count)}
    return Graph({"node": NodeSet(count, fields, splits)}, {("node", "to", "node"): edges}, "made")
