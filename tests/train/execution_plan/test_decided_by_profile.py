"""What a measured machine decides by its operator profile, with made profiles; without one the rules decide as ever."""

from dataclasses import replace
from weakref import WeakKeyDictionary

import pytest
import torch

from operator_profiles import gpu_profile, operator_profile
from penstock.cost.model import VARIABLE, CostModel
from penstock.cost.profile import write_profile
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution.search import fastest_place, knows_transfers
from penstock.sampling.device.block import Room
from penstock.train import job_batches
from penstock.train.assembly import session_of
from penstock.train.auto_values import decide_groups
from penstock.train.device.decision import decide, presampled_room
from penstock.train.device.memory import NOTHING, loaded_working
from penstock.train.job import job_of
from penstock.train.job_batches import kind_of_batches
from penstock.train.run_context import assumed_memory
from penstock.train.session import OPERATOR_PROFILE, RULE
from training_graphs import community_graph, facts_of, trained

FIELDS = {"batch_size": 16, "fanouts": [4, 3], "hidden": 8, "device": "cpu", "threads": 2}
SLOW_DRAWING = operator_profile(rate=1e-15, sample=1e-6)
"""Two threads that draw halve the time of a batch."""


@pytest.fixture
def session():
    return session_of(job_of({**FIELDS, "groups": "auto"}), torch.device("cpu"), community_graph())


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Lets this machine have a profile."""

    def let(profile):
        write_profile(profile, tmp_path / "operators.json")
        monkeypatch.setenv(VARIABLE, str(tmp_path / "operators.json"))

    monkeypatch.setenv(VARIABLE, "shipped")
    return let


@pytest.mark.parametrize(("profile", "size"), [(SLOW_DRAWING, 16), (operator_profile(), 1)])
def test_groups_are_as_large_as_pays(session, profile, size):
    decide_groups(session, CostModel(profile))
    assert (session.job.groups, session.decided["groups"]) == (size, size)
    assert session.decided_by == {"groups": OPERATOR_PROFILE}


def test_without_a_profile_the_rule_decides(session, measured):
    decide_groups(session)
    assert (session.job.groups, session.decided_by) == (0, {"groups": RULE})
    assert "groups" not in session.decided


def test_runs_say_what_decided(measured, tmp_path):
    fields = {**FIELDS, "epochs": 1, "groups": "auto", "first_layer": "gather"}
    ruled = trained(community_graph(), tmp_path / "ruled", **fields)
    assert facts_of(ruled.path)["decided_by"] == {"groups": RULE}
    assert ruled.result["groups"]["size"] == 16
    measured(operator_profile())
    decided = trained(community_graph(), tmp_path / "decided", **fields)
    assert facts_of(decided.path)["decided_by"] == {"groups": OPERATOR_PROFILE}
    assert "groups" not in decided.result
    assert facts_of(trained(community_graph(), tmp_path / "given", **{**fields, "groups": 3}).path)["decided_by"] == {}


class SmallSteps:
    """Steps that need next to nothing of a device."""

    method, untraced = "traced", ""

    def working(self, room, captured, in_place, features=None, gathers=False):
        return loaded_working(NOTHING, None, 0, 1, 0, torch.float32)

    def predicted(self, decision):
        return 0


def decision_of(session):
    """On a GPU that has room for the lists and half of the features."""
    session.inputs.device = torch.device("cuda")
    schedule = Schedule(session.task.items, session.task.batch_size, 0)
    (edges,), (nodes,) = session.graph.edges.values(), session.graph.nodes.values()
    graph = edges.indptr.nbytes + edges.indices.nbytes + nodes.x.nbytes // 2
    room = SmallSteps().working(None, False, False).bytes + graph
    with assumed_memory(int(room / session.job.device_share)):
        return decide(session, schedule, SmallSteps())


@pytest.fixture
def on_gpu():
    """A session whose features are most of what it would place."""
    graph = community_graph(count=3000, classes=64)
    return session_of(job_of({**FIELDS, "device": "auto", "capture": True}), torch.device("cpu"), graph)


def test_rows_that_come_along_every_path_stay_pinned(on_gpu, measured):
    """The host gathers as many of them as is fastest, so that nothing is gained by keeping them elsewhere."""
    assert on_gpu.job.feature_paths == "auto"
    ruled = decision_of(on_gpu)
    measured(gpu_profile(of_gpu={"pinned_read": 1e-6}))
    decided = decision_of(on_gpu)
    assert (decided.residence, decided.captured) == (ruled.residence, ruled.captured)
    assert decided.decided_by == OPERATOR_PROFILE


def test_features_lie_where_batches_are_fastest(on_gpu, measured):
    on_gpu.job = on_gpu.job.model_copy(update={"feature_paths": ["cache", "pinned"]})
    ruled = decision_of(on_gpu)
    assert (ruled.residence.features, ruled.decided_by) == ("pinned", RULE)
    measured(gpu_profile(of_gpu={"pinned_read": 1e-6}))
    moved = decision_of(on_gpu)
    assert (moved.residence.features, moved.decided_by) == ("host", OPERATOR_PROFILE)
    assert any("operator profile" in sentence for sentence in moved.why)
    assert moved.captured
    measured(gpu_profile(of_gpu={"copy_up": 1e-6}))
    kept = decision_of(on_gpu)
    assert (kept.residence, kept.captured, kept.decided_by) == (ruled.residence, ruled.captured, OPERATOR_PROFILE)
    measured(operator_profile())
    assert decision_of(on_gpu) == ruled


def test_a_cache_that_serves_more_reads_is_faster(session):
    model, kind = CostModel(gpu_profile(of_gpu={"pinned_read": 1e-6})), kind_of_batches(session)
    best, usual = fastest_place(model, kind, "cuda", [("pinned", 0), ("pinned", kind.table_rows)])
    assert (best.cache_rows, usual.cache_rows) == (kind.table_rows, 0)
    assert best.seconds < usual.seconds
    assert knows_transfers(model) and not knows_transfers(CostModel(operator_profile()))


def test_hit_rates_are_found_by_some_of_the_neighbours(session, monkeypatch):
    kind = kind_of_batches(session)
    rows = kind.table_rows // 4
    exact = kind.hit_rate(rows)
    monkeypatch.setattr(job_batches, "_COUNTED", session.graph.num_edges // 2)
    monkeypatch.setattr(job_batches, "_RUN", 16)
    monkeypatch.setattr(job_batches, "_KINDS", WeakKeyDictionary())
    found = kind_of_batches(session)
    assert found.hit_rate(rows) == pytest.approx(exact, abs=0.1)
    assert replace(found, hit_rate=None) == replace(kind, hit_rate=None)
    assert kind_of_batches(session) is found
    (edges,) = session.graph.edges.values()
    assert len(job_batches.some_neighbours(edges.indices)) < len(edges.indices)


def test_who_draws_is_predicted(on_gpu, measured):
    assert decision_of(on_gpu).drawn_by == RULE
    measured(gpu_profile(of_gpu={"sample": 1e-3}))
    moved = decision_of(on_gpu)
    assert (moved.residence.topology, moved.captured, moved.drawn_by) == ("host", False, OPERATOR_PROFILE)
    assert any("if the host draws" in sentence for sentence in moved.why)
    measured(gpu_profile(sample=1e-3))
    kept = decision_of(on_gpu)
    assert (kept.residence.topology, kept.captured, kept.drawn_by) == ("device", True, OPERATOR_PROFILE)
    on_gpu.job = on_gpu.job.model_copy(update={"sample_on": "device"})
    measured(gpu_profile(of_gpu={"sample": 1e-3}))
    assert (decision_of(on_gpu).residence.topology, decision_of(on_gpu).drawn_by) == ("device", RULE)


def slow_calls(profile, seconds):
    """A GPU whose operators take so long to launch."""
    fits = [
        each.model_copy(update={"rates": {**each.rates, "calls": seconds}})
        if each.device == "cuda" and "calls" in each.rates
        else each
        for each in profile.fits
    ]
    return profile.model_copy(update={"fits": fits})


def test_steps_are_captured_where_launching_takes_longer_than_padding(on_gpu, measured, monkeypatch):
    def roomy(*given):
        room = presampled_room(*given)
        return Room((room.rows[0], *(4 * rows for rows in room.rows[1:])), tuple(4 * edges for edges in room.edges))

    monkeypatch.setattr("penstock.train.device.decision.presampled_room", roomy)
    on_gpu.job = on_gpu.job.model_copy(update={"capture": "auto"})
    ruled = decision_of(on_gpu)
    assert ruled.captured and ruled.captured_by == RULE
    # What is computed takes long and is launched at no cost.
    work = dict.fromkeys(("dense", "dense_weight_gradient", "aggregate", "add"), 1e-7)
    quick = gpu_profile(of_gpu={**work, "sample": 1e-12}, sample=1.0)
    measured(slow_calls(quick, 0.0))
    launched = decision_of(on_gpu)
    assert (launched.captured, launched.captured_by) == (False, OPERATOR_PROFILE)
    assert any("if steps are launched" in sentence for sentence in launched.why)
    measured(slow_calls(quick, 1.0))
    captured = decision_of(on_gpu)
    assert (captured.captured, captured.captured_by) == (True, OPERATOR_PROFILE)
    on_gpu.job = on_gpu.job.model_copy(update={"capture": True})
    measured(slow_calls(quick, 0.0))
    assert decision_of(on_gpu).captured
