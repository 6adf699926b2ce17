"""`penstock profile --operators`: what is shown of a machine that was measured, and what is refused."""

import pytest

from in_process import answer, command, refusal
from operator_profiles import operator_profile
from penstock.cost import operator_cache
from penstock.cost import operator_profile as profiles
from penstock.cost.machine import this_machine
from penstock.cost.profile import read_profile, write_profile
from refusals import check_refusal


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A machine whose profile is in the cache."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    made = operator_profile(machine=this_machine())
    path = operator_cache.cached_path(this_machine())
    path.parent.mkdir(parents=True)
    write_profile(made, path)
    return made


def test_a_measured_machine_is_not_measured_again(measured, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(profiles, "measure_machine", lambda *given: pytest.fail("measured again"))
    found = answer(monkeypatch, capsys, "profile", "--operators", "-o", tmp_path / "mine.json")
    assert found["skipped"] == ["cuda: none"]
    assert found["seconds"] == 12.0
    assert {each["name"] for each in found["operators"]} >= {"sample", "gather", "aggregate", "dense", "all_reduce"}
    assert found["operators"][0]["p95_error"] == 0.1
    assert read_profile(tmp_path / "mine.json") == measured
    code, said, _ = command(monkeypatch, capsys, "profile", "--operators")
    assert code == 0
    assert "Skipped: cuda: none." in said
    assert "aggregate_backward" in said


def test_it_is_when_asked_for(measured, monkeypatch, capsys):
    other = operator_profile(rate=7.0, machine=this_machine())
    monkeypatch.setattr(profiles, "measure_machine", lambda *given: other)
    answer(monkeypatch, capsys, "profile", "--operators", "--refit")
    assert operator_cache.cached_profile(this_machine()) == other


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--operators", "--hidden", "8"], "unsupported-combination --operators --hidden"),
        (["--operators", "job.yaml"], "unsupported-combination job"),
        (["--refit"], "unsupported-combination --refit --operators"),
    ],
)
def test_what_does_not_go_together_is_refused(flags, said, monkeypatch, capsys):
    refused = refusal(monkeypatch, capsys, "profile", *flags)
    check_refusal(refused.code, refused, said)
