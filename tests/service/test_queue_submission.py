"""What may be submitted: fields that are right, paths that the owner allowed, code only where that was allowed."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.service.operations import SubmissionRules, accepted_job, allowed_path
from refusals import refused


@pytest.fixture
def rules(tmp_path):
    (tmp_path / "data" / "graph").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    return SubmissionRules(
        (tmp_path / "data",), modules=False, threads=3, reserved=tmp_path / "data" / "queue", kinds=("cpu",)
    )


def accepted(fields, rules):
    return accepted_job("", {}, fields, 0, rules)


def test_what_is_left_open_is_decided(rules, tmp_path):
    found = accepted({"graph": str(tmp_path / "data/graph")}, rules)
    assert found["document"]["threads"] == found["cores"] == 3
    assert found["document"]["device"] == found["kind"] == "cpu"
    assert accepted({"graph": "synthetic-arxiv", "threads": 1}, rules)["cores"] == 1


def test_jobs_that_differ_only_in_their_learning_rate_are_alike(rules):
    one, other, wider = (accepted(fields, rules) for fields in ({"lr": 0.1}, {"lr": 0.2}, {"hidden": 7}))
    assert one["likeness"] == other["likeness"] != wider["likeness"]


@pytest.mark.parametrize("field", ["graph", "clusters", "run"])
def test_a_path_outside_of_what_is_allowed_is_refused(field, rules, tmp_path):
    with refused("not-permitted --allow"):
        accepted({field: str(tmp_path / "secret")}, rules)
    with refused("not-permitted"):
        accepted({field: str(tmp_path / "data" / ".." / "secret")}, rules)
    with refused("invalid-value absolute"):
        accepted({field: "some/where"}, rules)


def test_no_job_takes_the_run_folder_of_another(rules, tmp_path):
    for place in ("queue", "queue/jobs/3/run", "queue/jobs", "queue/mine", "queue/../queue/jobs/9"):
        with refused("not-permitted queue run"):
            accepted({"run": str(tmp_path / "data" / place)}, rules)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "data" / "queue")
    with refused("not-permitted run"):
        accepted({"run": str(tmp_path / "data" / "link" / "jobs" / "3" / "run")}, rules)
    assert accepted({"run": str(tmp_path / "data" / "queue-of-mine")}, rules)["run"]


def test_a_link_that_leads_outside_is_refused(rules, tmp_path):
    (tmp_path / "data" / "link").symlink_to(tmp_path / "secret")
    with refused("not-permitted"):
        accepted({"graph": str(tmp_path / "data" / "link")}, rules)
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data" / "loop")
    with refused("invalid-value"):
        accepted({"graph": str(tmp_path / "data" / "loop" / "x")}, rules)


def test_addresses_below_one_that_is_allowed_are_taken(rules):
    """With its options only: those may name another store."""
    rules = replace(rules, addresses=("s3://lab/graphs", "s3://other?region=here"))
    for given, taken in (
        ("s3://lab/graphs/shop", "s3://lab/graphs/shop"),
        ("s3:/lab//graphs/shop/", "s3://lab/graphs/shop"),
        ("s3://other/shop?region=here", "s3://other/shop?region=here"),
    ):
        assert accepted({"graph": given}, rules)["document"]["graph"] == taken
    for given in (
        "s3://lab/secret",
        "s3://lab/graphs-of-others/shop",
        "s3://lab/graphs/../secret",
        "s3://lab/graphs/%2e%2e/secret",
        "s3://lab/graphs/shop?endpoint_override=elsewhere",
        "s3://other/shop",
        "gs://lab/graphs/shop",
    ):
        with refused("not-permitted --allow"):
            accepted({"graph": given}, rules)
    with refused("invalid-value run"):
        accepted({"run": "s3://lab/graphs/run"}, rules)


def test_odd_paths_are_a_sentence(rules):
    for odd in ("/data/\0graph", "~nobody-of-that-name/graph"):
        with refused("invalid-value"):
            accepted({"graph": odd}, rules)


def test_home_is_resolved_before_it_is_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert allowed_path("~/x", [tmp_path.resolve()]) == tmp_path.resolve() / "x"
    with refused("not-permitted"):
        allowed_path("~/x", [Path("/elsewhere")])


def test_code_is_refused_unless_it_was_allowed(rules):
    with refused("untrusted-code --allow-modules"):
        accepted({"module": "os:system"}, rules)
    allowing = replace(rules, modules=True)
    assert accepted({"module": "os:system"}, allowing)["document"]["module"] == "os:system"


def test_wrong_fields_vanished_graphs_missing_devices_and_existing_runs_are_refused(rules, tmp_path):
    with refused("unknown-name hiden hidden"):
        accepted({"hiden": 3}, rules)
    with refused("invalid-document lr"):
        accepted({"lr": -1}, rules)
    with refused("graph-not-found"):
        accepted({"graph": str(tmp_path / "data" / "gone")}, rules)
    with refused("device-not-found cuda cpu"):
        accepted({"device": "cuda"}, rules)
    with refused("file-exists"):
        accepted({"run": str(tmp_path / "data" / "graph")}, rules)
    with refused("too-large"):
        accepted({"optimiser_options": {"a": "x" * 70_000}}, rules)
