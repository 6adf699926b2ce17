"""Features that reach a GPU along several paths: bit-equal losses, readings that overlap, memory as predicted."""

import json
import threading

import numpy as np
import pytest
import torch

from penstock.sampling.device.streams import stream_maker
from penstock.store.device.copies import page_locked
from penstock.store.device.divided import DividedTable
from penstock.store.device.host_paths import FastestDivision, FixedDivision, HostPaths
from penstock.store.device.tables import CachedTable, PinnedTable
from penstock.train import run as run_module
from training_graphs import InterruptAfter, assert_same_state, community_graph, lines_of, newest_checkpoint, trained

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]
FEW = {"fanouts": [5, 3], "hidden": 16, "batch_size": 32, "epochs": 3, "evaluate_every": 0, "device": "cuda"}
PINNED = {"features": "pinned"}
EVERY = ["cache", "pinned", "gathered"]
"""All paths by name: `auto` leaves out gathering where the device has most of the rows, as it has of these graphs."""


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few rows, so that small batches have many."""
    monkeypatch.setattr(DividedTable.__init__, "__defaults__", (256,))


def losses(run):
    return [line["loss"] for line in lines_of(run) if line["kind"] == "epoch"]


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize(
    ("paths", "rows"), [(["gathered"], 0), (["pinned", "gathered"], 0), (["cache", "gathered"], 150), (EVERY, 150)]
)
def test_losses_are_bit_equal_whatever_path_rows_took(capture, paths, rows, small_chunks, tmp_path):
    graph = community_graph(400)
    trained(graph, tmp_path / "pinned", **FEW, placement=PINNED, capture=capture)
    placement = {**PINNED, "cache_rows": rows} if rows else PINNED
    run = trained(graph, tmp_path / "paths", **FEW, placement=placement, capture=capture, feature_paths=paths)
    assert losses(tmp_path / "paths") == losses(tmp_path / "pinned")
    learned = (newest_checkpoint(tmp_path / name)["learned"] for name in ("paths", "pinned"))
    assert_same_state(*learned)
    came = run.result["feature_paths"]
    assert all(each["rows"] > 0 and each["bytes"] > 0 and each["seconds"] > 0 for each in came.values())
    assert {"pinned", "gathered", "cache"} >= set(came) >= ({"gathered"} if paths != EVERY else {"cache", "gathered"})
    json.dumps(came)


def test_a_batch_that_lacks_room_is_read_again(small_chunks, tmp_path, monkeypatch):
    from penstock.sampling.device.block import Room
    from penstock.train.device import decision

    graph, job = community_graph(400), {**FEW, "placement": PINNED}
    trained(graph, tmp_path / "roomy", **job)
    monkeypatch.setattr(decision, "presampled_room", lambda *_: Room((32, 96, 200), (128, 256)))
    trained(graph, tmp_path / "tight", **job, feature_paths=EVERY)
    for one, other in zip(losses(tmp_path / "tight"), losses(tmp_path / "roomy"), strict=True):
        assert one == pytest.approx(other, rel=1e-3)


def test_an_interrupted_run_ends_with_the_same_weights(small_chunks, tmp_path, monkeypatch):
    graph, job = community_graph(400), {**FEW, "checkpoint_steps": 5, "placement": PINNED, "feature_paths": EVERY}
    trained(graph, tmp_path / "whole", **job)
    monkeypatch.setattr(run_module, "polite_interrupt", lambda: InterruptAfter(3))
    trained(graph, tmp_path / "cut", **job)
    monkeypatch.undo()
    run_module.resume_run(tmp_path / "cut", graph)
    states = [newest_checkpoint(tmp_path / name) for name in ("whole", "cut")]
    assert_same_state(*(state["learned"] for state in states))
    assert_same_state(*(state["optimiser"] for state in states))


@pytest.mark.parametrize("paths", [["pinned"], EVERY], ids=["pinned", "every"])
def test_device_memory_is_predicted_with_the_buffers_of_the_paths(paths, tmp_path):
    # One run for each test: the matrix library keeps a run's workspaces until they are cleared before the next test.
    graph = community_graph(20_000, degree=12)
    job = {**FEW, "batch_size": 512, "hidden": 64, "epochs": 1, "placement": PINNED}
    result = trained(graph, tmp_path / "run", **job, feature_paths=paths).result
    assert result["device_predicted_mb"] == pytest.approx(result["device_peak_mb"], rel=0.25, abs=16)


def large_table(rows, width, device, cached=None):
    values = torch.randn(rows, width).half()
    pinned = page_locked((rows, width), torch.float16, device, lambda room: room.copy_(values))
    table = PinnedTable(pinned, device) if cached is None else CachedTable(pinned, cached, device)
    return values, table


@pytest.mark.parametrize("division", [FixedDivision(0.0), FixedDivision(0.3), FixedDivision(1.0), FastestDivision()])
def test_many_readings_one_after_the_other_have_the_right_bits(division, cuda_device):
    values, table = large_table(300_000, 128, cuda_device, torch.arange(0, 300_000, 5))
    table = DividedTable(table, HostPaths(cuda_device, 8, division, stream_maker(cuda_device)))
    rng = np.random.default_rng(0)
    for _ in range(12):
        ids = torch.from_numpy(rng.integers(0, 300_000, 100_000))
        assert torch.equal(table.gather(ids.to(cuda_device)).cpu(), values[ids])


def test_threads_may_read_at_once(cuda_device):
    values, table = large_table(100_000, 64, cuda_device)
    table = DividedTable(table, HostPaths(cuda_device, 4, FastestDivision(), stream_maker(cuda_device)))
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        with torch.cuda.stream(torch.cuda.Stream(cuda_device)):
            for _ in range(10):
                ids = torch.from_numpy(rng.integers(0, 100_000, 30_000))
                if not torch.equal(table.gather(ids.to(cuda_device)).cpu(), values[ids]):
                    wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
