"""`first_layer: auto` beside a device: rows of the host fill captured steps, and other captured ways are timed."""

import importlib.util

import numpy as np
import pytest
import torch

from device_steps import learned, placed_session
from interpreted_kernels import device_with_free_memory
from operator_profiles import gpu_profile
from penstock.cost.model import CostModel
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution.first_layer import rows_aggregated, rows_read_by_device
from penstock.trace.allocators import DevicePeak
from penstock.train import finalists as settlement
from penstock.train import finalists as trial
from penstock.train.finalists import PredictedSteps, group_bytes, seconds_of_batches, settle
from penstock.train.session import TIMED, state_kept
from training_graphs import community_graph, stored_as

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the host stands for a device"),
]
FEW = {"fanouts": [3, 2], "hidden": 8, "batch_size": 16, "epochs": 1, "device": "cpu", "threads": 2, "dropout": 0.2}
ON_HOST, PINNED = {"features": "host"}, {"features": "pinned"}
SAINT = {"sampler": "saint-walk", "layers": 2, "batch_size": 20, "sample_on": "host"}


@pytest.fixture(autouse=True)
def _made_device(monkeypatch):
    """The host stands for a device with plenty of memory, and every run is long enough for trials."""
    device_with_free_memory(monkeypatch, lambda: 1 << 40)
    monkeypatch.setattr(settlement, "_SHARE", 0.01)


def session_of(graph, **fields):
    """Paths of rows are not timed, but where a test asks for that."""
    fields = {"timed_choices": ["first_layer"], **fields}
    session = placed_session(graph, {**FEW, **fields})
    session.placed = session.execution.placed
    return session


def timed_by(monkeypatch, seconds):
    """Let batches take what the job's first layer says; returns the fields that were tried."""
    tried = []

    def timed(session, batches):
        fill = session.placed.fill
        tried.append((session.job.first_layer, None if fill is None else type(fill).__name__))
        return seconds[session.job.first_layer]

    monkeypatch.setattr(settlement, "seconds_of_batches", timed)
    return tried


def test_features_on_the_host_fill_captured_steps_without_being_asked_to():
    graph = stored_as(np.float16, 60)
    auto = session_of(graph, placement=ON_HOST)
    assert auto.placed.is_captured and auto.job.first_layer == "auto"
    assert any("captured once" in sentence for sentence in auto.placed.why)
    gathered, found = session_of(graph, first_layer="gather"), learned(auto)
    for name, values in learned(gathered)[1].items():
        assert torch.equal(found[1][name], values)
    assert set(auto.execution.facts()["feature_paths"]) == {"gathered"}


def test_features_that_must_be_converted_are_copied_for_launched_steps():
    placed = session_of(stored_as(np.float64, 100), placement=ON_HOST).placed
    assert not placed.is_captured and placed.fill is None


@pytest.mark.parametrize(
    ("placement", "fields", "finalists"),
    [
        (ON_HOST, {}, ["auto", "aggregate"]),
        (PINNED, {}, ["auto", "aggregate", "divided"]),
        pytest.param(PINNED, {"model": "gcn"}, ["auto", "aggregate"], marks=pytest.mark.long),
        (PINNED, {"input_dropout": 0.1}, []),
        ({"features": "device"}, {}, []),
    ],
    ids=str,
)
def test_captured_ways_are_finalists(placement, fields, finalists, monkeypatch):
    seconds = {"auto": 2.0, "aggregate": 1.0, "divided": 1.5}
    session, tried = session_of(community_graph(60), placement=placement, **fields), timed_by(monkeypatch, seconds)
    settle(session)
    assert list(dict.fromkeys(name for name, _ in tried)) == finalists
    assert session.job.first_layer == ("aggregate" if finalists else "auto")
    assert session.execution.placed.is_captured
    if finalists:
        assert session.decided_by["first_layer"] == TIMED and type(session.placed.fill).__name__ == "AggregatedSlots"
        # A run that goes on, or is started again, reads features from where these were timed.
        assert session.job.placed.features == placement["features"]


def test_the_usual_way_is_as_it_was_behind_the_trials(monkeypatch):
    session = session_of(community_graph(60), placement={"features": "pinned", "cache_rows": 30})
    fill, job = session.placed.fill, session.job
    tried = timed_by(monkeypatch, {"auto": 1.0, "aggregate": 2.0, "divided": 2.0})
    settle(session)
    assert len(tried) >= 3 and session.placed.fill is fill and session.job == job


@pytest.mark.parametrize(("divided", "chosen", "rows"), [(1.0, "auto", 30), (2.0, ["cache", "pinned"], 0)])
def test_the_device_reads_alone_where_that_is_faster(divided, chosen, rows, monkeypatch):
    fields = {"placement": {"features": "pinned", "cache_rows": rows}, "timed_choices": ["feature_paths"]}
    session = session_of(community_graph(60), **fields)
    tried = []

    def timed(session, batches):
        tried.append(session.placed.is_divided)
        assert (session.placed.fill is not None) == session.placed.is_divided
        return divided if session.placed.is_divided else 1.5

    monkeypatch.setattr(settlement, "seconds_of_batches", timed)
    settle(session)
    assert set(tried) == {True, False}
    assert session.job.feature_paths == chosen and session.decided["feature_paths"] == chosen
    assert session.placed.decision.gathers == session.placed.is_divided == (chosen == "auto")
    found, asked = (
        learned(session),
        learned(session_of(community_graph(60), **fields, feature_paths=["pinned", "cache"])),
    )
    for name, values in asked[1].items():
        assert torch.equal(found[1][name], values)


@pytest.mark.parametrize("value", [pytest.param("aggregate", marks=pytest.mark.long), "divided"])
def test_a_way_that_is_taken_learns_as_if_the_job_had_asked_for_it(value, monkeypatch):
    graph, fields = community_graph(60), {"placement": {"features": "pinned", "cache_rows": 0}, "host_share": 0.5}
    slow = dict.fromkeys(("auto", "aggregate", "divided"), 2.0)
    session = session_of(graph, **fields)
    timed_by(monkeypatch, {**slow, value: 1.0})
    settle(session)
    found, asked = learned(session), learned(session_of(graph, first_layer=value, **fields))
    for name, values in asked[1].items():
        torch.testing.assert_close(found[1][name], values, rtol=1e-5, atol=1e-6)


def test_what_the_host_fills_is_not_predicted_by_what_one_thread_prepares():
    session = session_of(community_graph(60), placement=PINNED)
    profile = gpu_profile()
    known = PredictedSteps(session, CostModel(profile))
    assert known.seconds(rows_aggregated, "aggregate") > 0
    fits = [fit for fit in profile.fits if fit.name != "host_gather"]
    lacking = PredictedSteps(session, CostModel(profile.model_copy(update={"fits": fits})))
    assert lacking.seconds(rows_aggregated, "aggregate") is None
    assert lacking.seconds(rows_read_by_device, "device", features="pinned") > 0


def test_a_trial_of_captured_steps_times_bursts(monkeypatch):
    # Otherwise bursts become shorter where kernels are interpreted slowly.
    monkeypatch.setattr("penstock.train.steps.update.BURST_SECONDS", 1e9)
    session = session_of(community_graph(60), placement=ON_HOST, batch_size=1)
    batches = Schedule(session.task.items, session.task.batch_size, session.job.seed).batches
    monkeypatch.setattr(trial, "BURST", burst := 4)
    assert batches > 2 * burst
    readings = iter([0.0, 100.0, 100.0 + 2 * burst, 100.0 + 3 * burst])
    with state_kept(session):
        # The first burst is not counted, and of the others the fastest is.
        assert seconds_of_batches(session, 2 * burst + 1, clock=lambda: next(readings)) == pytest.approx(1.0)


def test_a_way_that_has_no_room_on_the_device_is_no_finalist(monkeypatch):
    session = session_of(community_graph(60), placement=PINNED)
    steps = DevicePeak(1 << 20, 1 << 20, "captured step", {"activations": 1 << 20})
    monkeypatch.setattr("penstock.train.device.traced.TracedMemory.traced", lambda *_: steps)
    monkeypatch.setattr("penstock.train.device.placement.device_memory_of", lambda _: (1 << 10, 1 << 10))
    tried = timed_by(monkeypatch, {"auto": 1.0})
    settle(session)
    assert not tried and session.job.first_layer == "auto"


@pytest.mark.parametrize("faster, size", [(1, 1), (16, 16)])
def test_batches_that_the_host_draws_are_timed_in_groups(monkeypatch, faster, size):
    saint = {**SAINT, "epochs": 40, "timed_choices": ["groups"]}
    session = session_of(stored_as(np.float16, 60), **saint)
    tried = []

    def timed(session, batches):
        tried.append((session.job.groups, batches))
        return 1.0 if session.job.groups == faster else 2.0

    monkeypatch.setattr(settlement, "seconds_of_batches", timed)
    settle(session)
    # Two threads, eight batches each, and three groups of a trial.
    assert {each for each, _ in tried} == {1, 16} and min(batches for _, batches in tried) >= 3 * 16 + 1
    assert session.decided["groups"] == session.job.groups == size and session.decided_by["groups"] == "timed"
    assert group_bytes(session) > 0


def test_groups_are_not_timed_where_a_device_draws_or_memory_is_short(monkeypatch):
    plain = session_of(stored_as(np.float16, 60), timed_choices=["groups"], capture=False)
    settle(plain)
    assert plain.job.groups == 1 and "groups" not in plain.settled and group_bytes(plain) == 0
    monkeypatch.setattr(settlement, "available_mb", lambda: 0)
    saint = {**SAINT, "epochs": 40, "timed_choices": ["groups"]}
    short = session_of(stored_as(np.float16, 60), **saint)
    settle(short)
    assert short.job.groups == 1 and "one finalist" in short.settled["groups"]["reason"]


def test_groups_change_no_bit_of_what_a_device_learns():
    saint = {**SAINT, "epochs": 3}
    one, grouped = (session_of(stored_as(np.float16, 60), **saint, groups=size) for size in (1, 4))
    (alone, weights), (together, others) = learned(one), learned(grouped)
    assert [step.loss for step in alone] == [step.loss for step in together]
    assert all(torch.equal(weights[name], others[name]) for name in weights)
