"""Features in the memories of several GPUs, which processes read as one table: here all of one GPU."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from cluster_runs import (
    JOB,
    assert_same_losses,
    at_report_of_epoch,
    one_gpu_for_all,
    recorded_starts,
    result_of,
)
from penstock import train
from penstock.store.device.shards import GpuGroup, Peers, map_shares, memory_of, own_bytes, shared_by_gpus, to_shares
from penstock.store.device.tables import ResidentTable
from penstock.wire.descriptors import Offer, fetch_descriptor
from refusals import refused
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

PAGE = 2 << 20
ROWS, WIDTH = 4000, 520
"""8.3 MB of features: four pages of a GPU, with rows that lie across their ends."""
LONG = {**JOB, "device": "cuda", "epochs": 6, "batch_size": 400, "checkpoint_steps": 3, "evaluate_every": 2}
SHARDED = {"topology": "device", "features": "sharded"}


@pytest.fixture
def holder():
    """A process that holds two pages of sevens, and the offer of its memory."""
    script = Path(__file__).parent / "share_holder.py"
    started = subprocess.Popen([sys.executable, str(script), str(2 * PAGE), "7"], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    address, token = started.stdout.readline().split()
    yield started, Offer(address, token)
    started.kill()
    started.communicate()


def test_a_share_outlives_the_process_that_made_it(holder):
    """Kernels, torch's operations and a recorded graph read across shares, before and after that process is killed."""
    process, offer = holder
    device = torch.device("cuda")

    def find(name, rank):
        return fetch_descriptor(offer) if rank else None

    def fill(part, first):
        assert first == 0 and len(part) == 2 * PAGE
        part.fill_(3)

    group = GpuGroup(2, peers=Peers(find, lambda name, rank, descriptor, size: os.close(descriptor)))
    mapped = map_shares(memory_of(device), group, "bytes", 4 * PAGE, fill)
    table = ResidentTable(mapped[: 4 * PAGE // 96 * 96].view(-1, 96))
    middle = 2 * PAGE // 96
    ids = torch.tensor([0, middle, middle + 1, len(table.table) - 1], device=device)
    found = torch.empty(4, 96, dtype=torch.uint8, device=device)
    table.gather(ids, found)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        table.gather(ids, found)

    def check():
        found.zero_()
        recorded.replay()
        cut = 2 * PAGE - middle * 96
        rows = found.cpu()
        assert (rows[0] == 3).all() and (rows[2:] == 7).all()
        assert (rows[1, :cut] == 3).all() and (rows[1, cut:] == 7).all()
        assert int((mapped == 7).sum()) == int((mapped == 3).sum()) == 2 * PAGE

    check()
    process.kill()
    process.wait()
    # Whatever frees and takes memory now must not get the pages of the share.
    taken = torch.full((64 * PAGE,), 9, dtype=torch.uint8, device=device)
    check()
    del taken


def test_a_process_alone_has_all_of_a_table():
    """Filled through staging, as converted numbers."""
    array = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    group = GpuGroup(1, peers=Peers(lambda *_: None, lambda name, rank, descriptor, size: os.close(descriptor)))
    with shared_by_gpus(group):
        for dtype in (torch.float32, torch.float16):
            table = to_shares(array, torch.device("cuda"), dtype)
            assert torch.equal(table.cpu(), torch.from_numpy(array).to(dtype))
            assert own_bytes(table.nbytes) == -(-table.nbytes // PAGE) * PAGE


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A graph whose features are in four pages of a GPU."""
    made = community_graph(ROWS)
    (nodes,) = made.nodes.values()
    noise = np.random.default_rng(3).normal(size=(ROWS, WIDTH - nodes.x.shape[1]))
    nodes.fields["x"] = np.hstack([nodes.x, noise]).astype(np.float32)
    return made.save(tmp_path_factory.mktemp("shards") / "graph")


@pytest.fixture(scope="module")
def on_gpus(graph, tmp_path_factory):
    """A run on so many GPUs, all of which are the same, made once."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def made(count, features, capture, killed):
        where = folder / f"{count}-{features}-{capture}-{killed}"
        fields = {**LONG, "placement": {"topology": "device", "features": features}, "capture": capture}
        with ExitStack() as around:
            around.enter_context(one_gpu_for_all())
            around.enter_context(patch("torch.cuda.device_count", lambda: count))
            if killed:
                handles = around.enter_context(recorded_starts())
                lost = at_report_of_epoch(3, lambda: os.kill(handles[killed].pid, signal.SIGKILL))
                around.enter_context(lost)
            return train(graph, gpus=count, run=str(where), **fields).path

    return lambda count, features, capture=True, killed="": made(count, features, capture, killed)


@pytest.mark.parametrize("count, capture", [(2, True), (2, False), (4, True)])
def test_losses_are_those_of_features_on_each_gpu(on_gpus, count, capture):
    """To the bit, in captured steps and in launched ones."""
    paths = on_gpus(count, "device", capture), on_gpus(count, "sharded", capture)
    assert_same_losses(*paths, 0)
    states = [newest_checkpoint(path) for path in paths]
    assert_same_state(*([state["learned"], state["optimiser"]] for state in states))
    whole, shared = map(result_of, paths)
    placement = shared["placement"]
    assert (whole["placement"]["features"], placement["features"]) == ("device", "sharded")
    assert any("captured" in sentence for sentence in placement["why"]) == capture
    assert any(f"on {count} GPUs" in sentence for sentence in placement["why"])
    assert shared["test"] == whole["test"]
    # What other GPUs hold is missing in what this one takes, and in what was predicted for it.
    elsewhere = (ROWS * WIDTH * 4 - 4 // count * PAGE) / (1 << 20)
    for name in ("device_predicted_mb", *["device_peak_mb"] * capture):
        assert whole[name] - shared[name] == pytest.approx(elsewhere, abs=1)


@pytest.mark.parametrize("count, killed", [(2, "worker-1"), (2, "worker-0"), (4, "worker-2")])
def test_a_killed_worker_finds_its_share_again(on_gpus, count, killed):
    calm, hit = on_gpus(count, "sharded"), on_gpus(count, "sharded", killed=killed)
    assert [each["task"] for each in result_of(hit)["recoveries"]] == [killed]
    assert_same_state(newest_checkpoint(hit), newest_checkpoint(calm))
    assert result_of(hit)["test"] == result_of(calm)["test"]


def test_features_are_sharded_over_several_gpus_only(graph, tmp_path):
    with refused("unsupported-combination sharded gpus"):
        trained(graph, tmp_path / "run", **LONG, placement=SHARDED)
