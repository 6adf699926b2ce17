"""Open fields are decided by trials that leave no trace in what is learned; a resumed run does not decide again."""

import pytest
import torch
import yaml

from operator_profiles import operator_profile
from penstock.api import train
from penstock.cost.model import VARIABLE
from penstock.cost.profile import write_profile
from penstock.train import finalists
from penstock.train.assembly import session_of
from penstock.train.auto_values import with_order_costs
from penstock.train.build import make_session
from penstock.train.finalists import OPEN_FIELDS, Finalist, closest, seconds_of_batches, settle, turns_of
from penstock.train.first_layer.aggregated import AggregatedReading
from penstock.train.job import job_of
from penstock.train.run_context import run_context
from penstock.train.session import OPERATOR_PROFILE, RULE, TIMED, state_kept
from refusals import refused
from training_graphs import assert_same_state, community_graph, facts_of, newest_checkpoint, trained

FIELDS = {"batch_size": 8, "fanouts": [4, 3], "hidden": 8, "device": "cpu", "threads": 1, "order": "aggregate"}


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    """No profile of this machine takes part."""
    monkeypatch.setenv(VARIABLE, "shipped")


@pytest.fixture
def long_runs(monkeypatch):
    """Every run is long enough for trials."""
    monkeypatch.setattr(finalists, "_SHARE", 1)


@pytest.fixture
def clock(monkeypatch):
    """Lets a test say what batches take, by the job of the session that trains them; keeps the jobs that were tried."""
    tried = []

    def let(seconds):
        def timed(session, batches):
            tried.append(session.job)
            return seconds(session.job)

        monkeypatch.setattr(finalists, "seconds_of_batches", timed)
        return tried

    return let


def written_job(run):
    return {
        **yaml.safe_load((run.path / "job.yaml").read_text()),
        **yaml.safe_load((run.path / "decided.yaml").read_text()),
    }


def test_a_trial_changes_nothing_that_is_learned(long_runs, tmp_path):
    fields = {**FIELDS, "epochs": 2, "dropout": 0.5, "norm": "batch"}
    timed = trained(community_graph(), tmp_path / "timed", **fields)
    plain = trained(community_graph(), tmp_path / "plain", **fields, timed_choices=[])
    settled = facts_of(timed.path)["settled"]["first_layer"]
    assert [each["value"] for each in settled["finalists"]] == ["auto", "gather"]
    assert all(each["timed_s"] > 0 and each["predicted_s"] > 0 for each in settled["finalists"])
    assert timed.result["settled"] == facts_of(timed.path)["settled"]
    assert facts_of(timed.path)["decided_by"]["first_layer"] == TIMED
    assert facts_of(plain.path)["settled"] == {}
    states = [newest_checkpoint(run.path) for run in (timed, plain)]
    for part in ("learned", "optimiser"):
        assert_same_state(*(state[part] for state in states))


@pytest.mark.parametrize(("faster", "chosen"), [("gather", "gather"), ("auto", "auto")])
def test_the_fastest_finalist_is_in_the_job(faster, chosen, long_runs, clock, tmp_path):
    clock(lambda job: 0.9 if job.first_layer == faster else 1.0)
    run = trained(community_graph(), tmp_path / "run", **FIELDS, epochs=2)
    assert written_job(run)["first_layer"] == chosen
    assert facts_of(run.path)["decided"] == {"first_layer": chosen}


def test_what_is_hardly_faster_is_not_taken(long_runs, clock, tmp_path):
    clock(lambda job: 0.99 if job.first_layer == "gather" else 1.0)
    run = trained(community_graph(), tmp_path / "run", **FIELDS, epochs=2)
    assert written_job(run)["first_layer"] == "auto" and facts_of(run.path)["decided_by"]["first_layer"] == TIMED


def test_a_resumed_run_does_not_decide_again(long_runs, clock, tmp_path):
    clock(lambda job: 0.9 if job.first_layer == "gather" else 1.0)
    whole = trained(community_graph(), tmp_path / "whole", **FIELDS, epochs=4)
    trained(community_graph(), tmp_path / "half", **FIELDS, epochs=2)
    tried = clock(lambda job: 1.0)
    tried.clear()
    resumed = train(graph=community_graph(), resume=tmp_path / "half", epochs=4)
    assert not tried
    assert_same_state(newest_checkpoint(whole.path)["learned"], newest_checkpoint(resumed.path)["learned"])
    assert resumed.result["settled"]["first_layer"]["chosen"] == "gather"


def test_short_runs_are_not_timed_and_say_so(clock, tmp_path):
    tried = clock(lambda job: 1.0)
    run = trained(community_graph(), tmp_path / "run", **FIELDS, epochs=1)
    settled = facts_of(run.path)["settled"]["first_layer"]
    assert not tried and settled["finalists"] == [] and "too short" in settled["reason"]
    assert facts_of(run.path)["decided_by"]["first_layer"] == RULE


def test_trials_take_one_batch_in_a_hundred(clock, tmp_path):
    clock(lambda job: 1.0)
    job = job_of({**FIELDS, "batch_size": 1, "epochs": 30})
    session = make_session(job, community_graph())
    settle(session)
    steps = len(session.task.items) * 30
    settled = session.settled["first_layer"]
    assert settled["batches"] >= 8 and settled["batches"] * len(settled["finalists"]) <= steps / 100


@pytest.mark.parametrize("fields", [{"model": "gat", "order": "auto"}, {"order": "transform"}, {"input_dropout": 0.1}])
def test_nothing_is_timed_where_nothing_is_open(fields, long_runs, clock):
    tried = clock(lambda job: 1.0)
    session = make_session(job_of({**FIELDS, "epochs": 2, **fields}), community_graph())
    settle(session)
    assert not tried and session.job.first_layer == "auto"


def test_groups_are_timed_against_none(long_runs, clock, tmp_path):
    fields = {**FIELDS, "epochs": 8, "groups": "auto", "first_layer": "gather"}
    clock(lambda job: 1.0 if job.groups == 1 else 2.0)
    alone = trained(community_graph(), tmp_path / "alone", **fields)
    assert written_job(alone)["groups"] == 1 and facts_of(alone.path)["decided_by"] == {"groups": TIMED}
    clock(lambda job: 2.0 if job.groups == 1 else 1.0)
    grouped = trained(community_graph(), tmp_path / "grouped", **fields)
    assert grouped.result["groups"]["size"] == written_job(grouped)["groups"] == 8
    assert_same_state(*(newest_checkpoint(run.path)["learned"] for run in (alone, grouped)))


def test_a_profile_decides_groups_that_are_not_timed(monkeypatch, tmp_path):
    write_profile(operator_profile(), tmp_path / "operators.json")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "operators.json"))
    session = make_session(job_of({**FIELDS, "epochs": 2, "groups": "auto"}), community_graph())
    settle(session)
    assert session.decided_by["groups"] == session.settled["groups"]["decided_by"] == OPERATOR_PROFILE


def test_the_order_of_products_is_timed_if_asked_for(long_runs, clock, tmp_path):
    fields = {**FIELDS, "epochs": 2, "order": "auto", "model": "gcn"}
    tried = clock(lambda job: 0.5 if job.order == "transform" else 1.0)
    run = trained(community_graph(), tmp_path / "run", **fields, timed_choices=["order"])
    assert len({str(job.order) for job in tried}) > 1
    given = trained(community_graph(), tmp_path / "given", **{**fields, "order": "transform"}, timed_choices=[])
    assert written_job(run)["order"] == "transform"
    assert_same_state(*(newest_checkpoint(each.path)["learned"] for each in (run, given)))


def test_a_trial_that_fails_leaves_the_failure_to_the_run(long_runs, monkeypatch):
    session = make_session(job_of({**FIELDS, "epochs": 2}), community_graph())

    def fail(self, arrays):
        raise OSError("the disk is gone")

    monkeypatch.setattr(AggregatedReading, "fill", fail)
    settle(session)
    assert "failed" in session.settled["first_layer"]["reason"]
    assert session.decided_by["first_layer"] == RULE and session.job.first_layer == "auto"


def test_steps_that_are_timed_are_steps():
    job = with_order_costs(job_of({**FIELDS, "optimiser": "SGD", "optimiser_options": {"momentum": 0.9}}))
    with run_context(job):
        session = make_session(job, community_graph())
        before = {name: values.clone() for name, values in session.learned.state_dict().items()}
        with state_kept(session):
            ends = iter(range(100))
            assert seconds_of_batches(session, 12, clock=lambda: float(next(ends))) == 1.0
            assert not torch.equal(before["model.convolutions.0.own.weight"], session.model.convolutions[0].own.weight)
        assert_same_state(before, session.learned.state_dict())
        assert session.optimiser.state_dict()["state"] == {}


def test_finalists_that_are_far_slower_are_left_out():
    found = [Finalist("a", 4.0), Finalist("b", 1.0), Finalist("c", 1.7), Finalist("d", 1.2), Finalist("e", 1.1)]
    assert [each.value for each in closest(found)] == ["a", "b", "e"]
    assert [each.value for each in closest([Finalist("a"), Finalist("b")])] == ["a", "b"]
    assert [each.value for each in closest([Finalist("a", 1.0), Finalist("b", 3.9), Finalist("c", 4.1)], 4.0)] == [
        "a",
        "b",
    ]


def test_long_trials_take_turns():
    assert turns_of(15, 8) == [15] and turns_of(16, 8) == [8, 8] and turns_of(33, 8) == [16, 16]


def test_fields_that_can_be_timed_are_known_to_the_job():
    assert job_of({"timed_choices": "none"}).timed_choices == []
    assert set(job_of({"timed_choices": "order,groups,first_layer,feature_paths"}).timed_choices) == set(OPEN_FIELDS)
    with refused("invalid-document timed_choices hidden first_layer"):
        job_of({"timed_choices": "hidden"})


def test_a_session_that_was_not_placed_has_no_device():
    assert session_of(job_of(FIELDS), torch.device("cpu"), community_graph()).placed is None
