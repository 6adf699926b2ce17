"""`penstock profile --operators`: what is shown of a machine that was measured, and what is refused."""

import pytest

from in_process import answer, command, refusal
from operator_profiles import operator_profile
from penstock.cost import model as operator_cache
from penstock.cost import operator_profile as profiles
from penstock.cost.profile import FittedOperator, read_profile, this_machine, write_profile
from refusals import check_refusal

BATCH = FittedOperator(
    name="batch", rates={"batches": 0.002}, fitted=3, held_out=1, mean_error=0.1, p95_error=0.1
)  # fmt: skip


def with_batches(profile):
    """A profile that has what batches of runs take."""
    return profile.model_copy(update={"fits": [*profile.fits, BATCH]})


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A machine whose profile is in the cache."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    made = with_batches(operator_profile(machine=this_machine()))
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
    other = with_batches(operator_profile(rate=7.0, machine=this_machine()))
    monkeypatch.setattr(profiles, "measure_machine", lambda *given: other)
    answer(monkeypatch, capsys, "profile", "--operators", "--refit")
    assert operator_cache.cached_profile(this_machine()) == other


def test_batches_of_runs_are_measured_where_a_profile_lacks_them(measured, monkeypatch, capsys):
    """A profile of an earlier release has operators alone: they are kept."""
    earlier = operator_profile(machine=this_machine())
    write_profile(earlier, operator_cache.cached_path(this_machine()))
    monkeypatch.setattr(profiles, "measure_machine", lambda *given: pytest.fail("measured again"))
    monkeypatch.setattr("penstock.train.execution_plan.fit_batches", lambda model, device, progress: [BATCH])
    answer(monkeypatch, capsys, "profile", "--operators")
    assert operator_cache.cached_profile(this_machine()).fits == [*earlier.fits, BATCH]


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
