"""Bins that read the level below where it stands, and gradients that are pulled bin by bin."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from penstock.pipeline.schedule import START, Position, Schedule
from penstock.sampling.device.block import device_block
from penstock.train.build import make_session
from penstock.train.job import job_of
from penstock.train.layerwise.host import Reach
from penstock.train.whole import in_place, plan
from penstock.train.whole import plan as neighbour_lists
from penstock.train.whole.memory import Decision, LayerSize, decide
from penstock.train.whole.plan import list_offsets, placed_lists, reads_in_place, turned_round, vertices_by_level
from refusals import refused
from training_graphs import community_graph, typed_graph

ROUNDING = 2e-5
WHOLE = {"sampler": "whole", "layers": 3, "hidden": 8, "threads": 1, "dropout": 0.3, "device": "cpu", "epochs": 3}


def session_of(graph=None, bins=4, in_place=True, **fields):
    job = job_of({"graph": "g", "run": "r", **WHOLE, "bins": bins, **fields})
    session = make_session(job, graph or community_graph(120))
    if in_place:
        decision = Decision([bins] * job.layers, "host", False, False, 0, in_place=True)
        session.execution.restore([asdict(decision)] * job.steps_per_epoch)
    return session


def steps_of(session, start=START):
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, session.job.epochs)
    return session.execution.steps(schedule, start, lambda _: 1, lambda *_: None)


def trained(**how):
    """Losses, and the weights at the end."""
    session = session_of(**how)
    with steps_of(session) as steps:
        losses = [step.loss for each in steps for step in each]
    assert session.execution.facts()["in_place"] == how.get("in_place", True)
    return losses, [weight.detach().clone() for weight in session.learned.parameters()]


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "sage"},
        {"model": "sage", "aggregate": "sum", "norm": "layer", "scope": "all"},
        {"model": "gcn", "activation": "elu", "layers": 2},
        {"model": "gin", "scope": "all"},
        {"model": "sage", "layers": 1},
        pytest.param({"model": "gcn", "steps_per_epoch": 3}, marks=pytest.mark.long),
        {"model": "sage", "task": "link-prediction", "scorer": "mlp"},
    ],
    ids=str,
)
def test_losses_are_those_of_bins_with_rows_of_their_own(fields):
    found, expected = trained(**fields), trained(**fields, in_place=False)
    np.testing.assert_allclose(found[0], expected[0], rtol=ROUNDING)


def test_two_runs_and_one_that_goes_on_have_the_same_bits():
    losses, weights = trained()
    again = trained()
    assert losses == again[0]
    session = session_of()
    with steps_of(session) as steps:
        taken = iter(steps)
        first = [next(taken)[0].loss for _ in range(2)]
    state = session.execution.state()
    later = session_of(in_place=False)
    later.learned.load_state_dict(session.learned.state_dict())
    later.optimiser.load_state_dict(session.optimiser.state_dict())
    later.execution.restore(state)
    with steps_of(later, Position(2, 0)) as steps:
        assert first + [step.loss for each in steps for step in each] == losses
    for mine, theirs in zip(later.learned.parameters(), weights, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("model", ["sage", "gcn"])
def test_kernels_of_a_device_give_the_same_losses(monkeypatch, device, model):
    """Under the interpreter blocks are a device's and rows the host's."""
    expected = trained(model=model, layers=2)[0]
    made = in_place.block_of
    monkeypatch.setattr(in_place, "block_of", lambda *given: device_block(made(*given), device))
    np.testing.assert_allclose(trained(model=model, layers=2)[0], expected, rtol=ROUNDING)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "gat"},
        {"aggregate": "max"},
        {"residual": True},
        {"jump": "cat"},
        {"norm": "batch"},
        {"input_dropout": 0.2},
        {"order": "transform"},
        {"hidden": 1},
        {"keep_type": "bfloat16"},
    ],
    ids=str,
)
def test_some_jobs_need_rows_of_their_own(fields):
    assert reads_in_place(session_of(in_place=False)) == "mean"
    assert reads_in_place(session_of(in_place=False, **fields)) is None
    with refused("damaged-file in place"), steps_of(session_of(**fields)):
        pass


def test_graphs_of_several_types_need_rows_of_their_own():
    assert reads_in_place(session_of(typed_graph(), in_place=False, model="rgcn", embedding=8)) is None


def test_lists_and_their_readers(monkeypatch):
    monkeypatch.setattr(neighbour_lists, "_PIECE", 50)
    monkeypatch.setattr(neighbour_lists, "_WORK", 16)
    (edges,) = community_graph(90).edges.values()
    order = np.random.default_rng(1).permutation(90)
    rows, turned = 70, 40
    offsets = list_offsets(edges, order[:rows])
    lists, kept = placed_lists(edges, order, offsets, turned, torch.device("cpu"))
    named = [edges.indices[edges.indptr[v] : edges.indptr[v + 1]] for v in order[:rows]]
    indices = lists.indices.numpy()
    for row, sources in enumerate(named):
        np.testing.assert_array_equal(order[indices[offsets[row] : offsets[row + 1]]], sources)
    np.testing.assert_array_equal(kept, indices[: offsets[turned]])
    readers = turned_round(offsets[: turned + 1], kept, 90, torch.device("cpu"))
    targets = np.repeat(np.arange(turned), np.diff(offsets[: turned + 1]))
    for place in range(90):
        found = readers.indices.numpy()[readers.indptr[place] : readers.indptr[place + 1]]
        np.testing.assert_array_equal(found, targets[kept == place])


@pytest.mark.parametrize("everything", [False, True])
def test_one_bin_of_each_layer_has_the_lists_that_a_sampler_gives(monkeypatch, everything):
    graph = community_graph(90)
    reach = Reach(graph, [list(graph.edges)] * 3)
    order, counts = vertices_by_level(reach, 3, {"node": np.arange(0, 90, 9)}, everything)
    found = plan.make_plan(reach, 3, order, counts, [1] * 3)
    monkeypatch.setattr(plan, "_has_plain_lists", lambda reach: False)
    for mine, sampled in zip(found.bins, plan.make_plan(reach, 3, order, counts, [1] * 3).bins, strict=True):
        ((mine,), (sampled,)) = mine, sampled
        assert mine.rows == sampled.rows and mine.inputs == sampled.inputs
        assert mine.block.num_src == sampled.block.num_src
        np.testing.assert_array_equal(mine.names["node"], sampled.names["node"])
        np.testing.assert_array_equal(mine.block.indptr, sampled.block.indptr)
        np.testing.assert_array_equal(mine.block.indices, sampled.block.indices)
        read = np.union1d(mine.block.indices, np.arange(mine.block.num_dst))
        np.testing.assert_array_equal(mine.block.totals[read], sampled.block.totals[read])


SIZES = [LayerSize(1000, 2000, 9000, 16, 16), LayerSize(500, 1000, 4000, 16, 8)]


def decided(fits, bins=0, keep="auto", allowed=True):
    """The decision where only what `fits` says fits, and all that was tried."""
    tried = []

    def predict(decision):
        tried.append(decision)
        return 0 if fits(decision) else 1 << 40

    return decide(SIZES, bins, keep, 4, 1 << 30, 1 << 30, True, predict=predict, in_place=allowed), tried


def test_bins_are_in_place_where_one_does_not_fit():
    found, tried = decided(lambda decision: decision.bins[0] >= 8)
    assert found.in_place and found.bins == [8, 8] and found.keep == "device"
    assert all(each.in_place or each.retain for each in tried)
    assert not decided(lambda decision: True)[0].in_place
    assert not decided(lambda decision: decision.bins[0] >= 8, allowed=False)[0].in_place


def test_bins_have_rows_of_their_own_where_levels_wait_elsewhere():
    found, _ = decided(lambda decision: decision.bins[0] >= 8 and not decision.in_place, keep="host")
    assert not found.in_place and found.keep == "host"
    assert not decided(lambda decision: False, bins=3)[0].in_place
