"""A first layer that host and device divide: the same is learned, however large the host's share is."""

import importlib.util

import numpy as np
import pytest
import torch

from interpreted_kernels import device_with_free_memory
from penstock.pipeline.schedule import START, Schedule
from penstock.sampling.block import Block
from penstock.store.device.moments import Moment
from penstock.train.build import make_session
from penstock.train.execution_modes import choose_execution
from penstock.train.first_layer.aggregated import DividedReading, HostShare
from penstock.train.job import job_of
from refusals import refused
from training_graphs import carrying_graph, community_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU itself is tested in test_library_on_gpu"),
]
FEW = {"fanouts": [3, 2], "hidden": 8, "batch_size": 30, "epochs": 1, "device": "cpu", "threads": 1, "capture": False}
DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def _made_device(monkeypatch):
    """The host stands for a device with plenty of memory."""
    plenty = 1 << 40
    device_with_free_memory(monkeypatch, lambda: plenty)


def placed_session(graph, **fields):
    """A session of the host's whose graph is placed as if the host were a device."""
    from penstock.train.device.placement import place

    session = make_session(job_of({**FEW, "first_layer": "divided", **fields}), graph)
    session.execution = choose_execution(session, place(session, True))
    return session


def trained(session):
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, 1)
    with session.execution.steps(schedule, START, lambda position: 1, lambda *_: None) as steps:
        losses = [step.loss for done in steps for step in done]
    return losses, {name: values.clone() for name, values in session.learned.state_dict().items()}


def assert_learns_what_the_host_does(graph, **fields):
    session = placed_session(graph, **fields)
    assert not session.execution.placed.is_captured
    facts = session.execution.placed.facts()
    assert facts["features"] == "pinned" and any("capture is off" in sentence for sentence in facts["why"])
    left_out = {"first_layer": "gather", "host_share": None, "placement": "auto", "order": "aggregate"}
    found, expected = trained(session), trained(make_session(job_of({**FEW, **fields, **left_out}), graph))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    for name, values in found[1].items():
        torch.testing.assert_close(values, expected[1][name], rtol=1e-3, atol=1e-4)
    return session


@pytest.mark.parametrize(
    ("model", "share"),
    [
        ("sage", 0.4),
        ("sage", 1.0),
        ("gcn", 0.4),
        pytest.param("sage", 0.0, marks=pytest.mark.long),
        pytest.param("gin", 0.4, marks=pytest.mark.long),
    ],
)
def test_any_share_learns_the_same(model, share):
    session = assert_learns_what_the_host_does(community_graph(80), host_share=share, model=model)
    assert session.inputs.reader.share.last == share


def test_batches_that_the_host_draws_with_rows_cached_in_float16():
    graph = community_graph(80)
    (nodes,) = graph.nodes.values()
    nodes.fields["x"] = nodes.x.astype(np.float16)
    placement = {"topology": "host", "features": "pinned", "cache_rows": 40}
    session = assert_learns_what_the_host_does(graph, placement=placement, aggregate="sum", host_share=0.5)
    assert session.execution.placed.facts()["hit_rate"] > 0


def test_features_of_bfloat16_are_read_by_both():
    graph = community_graph(80)
    (nodes,) = graph.nodes.values()
    nodes.fields["x"] = torch.from_numpy(nodes.x).bfloat16().float().numpy()
    assert_learns_what_the_host_does(graph, feature_type="bfloat16", host_share=0.5)


def test_shares_follow_what_batches_took():
    session = placed_session(community_graph(80))
    trained(session)
    share = session.inputs.reader.share
    assert share._host and (share._device or share._reads)
    assert 0 < share.last < 1


def test_weighted_lists_are_divided(monkeypatch):
    """Totals and weights belong to their destinations on both sides."""
    filled, fill = [], DividedReading.fill
    monkeypatch.setattr(DividedReading, "fill", lambda self, arrays: filled.append(fill(self, arrays)))
    assert_learns_what_the_host_does(carrying_graph(), edge_weight="edge_weight", model="gcn", host_share=0.5)
    assert filled


@pytest.mark.parametrize("features", ["host", "device"])
def test_features_that_both_cannot_read_are_refused(features):
    with refused("unsupported-combination first_layer divided pinned features"):
        placed_session(community_graph(80), placement={"features": features})
    with refused("unsupported-combination feature_paths gathered divided"):
        placed_session(community_graph(80), feature_paths="pinned,gathered")


def block_of(lists):
    indptr = np.cumsum([0, *map(len, lists)])
    indices = np.concatenate([np.array(each, np.int32) for each in lists])
    return Block(indptr, indices, int(indices.max()) + 1)


def test_destinations_of_a_share():
    block = block_of([[4], [5, 6, 7], [8], [9]])
    counts = {share: HostShare(share).of_device(block, 8, 100) for share in (0.0, 0.3, 0.34, 0.8, 1.0)}
    assert counts == {0.0: 4, 0.3: 3, 0.34: 2, 0.8: 2, 1.0: 0}


def test_the_slower_side_gets_less(monkeypatch):
    monkeypatch.setenv("PENSTOCK_OPERATORS", "shipped")
    block, share = block_of([[4, 5], [6, 7], [8, 9], [10, 11]]), HostShare(None)
    share.of_device(block, 8, 100)
    first = share.last
    for _ in range(9):
        share.host_took(8, 8e-3)
        before, after = Moment(DEVICE), Moment(DEVICE)
        before._at, after._at = 0.0, 12e-6
        share._reads.append((before, after, 12))
    share.of_device(block, 8, 100)
    assert share.last < first
    for _ in range(9):
        share.host_took(8, 8e-9)
    share.of_device(block, 8, 100)
    assert share.last == 0.98
