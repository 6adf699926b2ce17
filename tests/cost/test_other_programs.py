"""Cores that others used while operators were measured, from made times; and a profile that a graph refines."""

import pytest

from operator_profiles import HERE, operator_profile
from penstock.cost import operator_profile as other_programs
from penstock.cost import operator_profile as profiles
from penstock.cost.operator_profile import CpuTimes, cpu_times, others_warning, share_of_others
from penstock.cost.operators import OPERATORS
from penstock.cost.operators.entry import RUNGS, made_graph, rung_of, rungs_on
from penstock.cost.profile import read_profile, write_profile
from refusals import refused
from training_graphs import typed_graph


@pytest.mark.parametrize(
    ("idle", "own", "share"), [(0, 20, 0.0), (10, 10, 0.0), (0, 10, 0.5), (4, 10, 0.3), (0, 30, 0.0)]
)
def test_what_is_neither_idle_nor_ours_is_others(idle, own, share):
    """Of two cores over ten seconds."""
    before = CpuTimes(1000.0, 400.0, 5.0)
    assert share_of_others(before, CpuTimes(1020.0, 400.0 + idle, 5.0 + own)) == pytest.approx(share)
    assert share_of_others(None, before) == share_of_others(before, before) == 0.0


def test_a_busy_machine_is_warned_of():
    assert others_warning(0.05) == []
    (said,) = others_warning(0.37)
    assert "37 %" in said and "--refit" in said


def test_times_of_the_system(tmp_path, monkeypatch):
    monkeypatch.setattr(other_programs, "STAT", tmp_path / "stat")
    assert cpu_times() is None
    (tmp_path / "stat").write_text("cpu  100 0 50 700 30 5 5 10 0 0\ncpu0 1 2\n")
    found = cpu_times()
    assert found.idle / found.total == pytest.approx(730 / 900)
    (tmp_path / "stat").write_text("cpu 1 2\n")
    assert cpu_times() is None


@pytest.fixture
def quick(monkeypatch):
    """A ladder of small rungs and two operators, with a clock that tells always the same."""
    small = rung_of(made_graph(60, 4), 16, (3, 2), 0, 8, 6)
    step = operator_profile().fits[0].model_copy(update={"name": "step"})
    monkeypatch.setattr(profiles, "made_ladder", lambda progress: [small] * RUNGS)
    monkeypatch.setattr(profiles, "OPERATORS", {name: OPERATORS[name] for name in ("sample", "dense")})
    monkeypatch.setattr(profiles, "seconds_of_runs", lambda run, device: (1.0, [1.0] * 5))
    monkeypatch.setattr(profiles, "fit_steps", lambda model, rungs, device: step)
    turns = iter([CpuTimes(0, 0, 0), CpuTimes(20, 0, 10)])
    monkeypatch.setattr(profiles, "cpu_times", lambda: next(turns))
    monkeypatch.setattr(profiles.torch.cuda, "is_available", lambda: False)


def test_a_graph_refines_a_profile(quick, tmp_path):
    graph = made_graph(50, 3)
    more = len(list(rungs_on(graph)))
    found = profiles.measure_machine(HERE, graph)
    assert more == RUNGS
    fitted, held_out = found.fits[0].fitted, found.fits[0].held_out
    assert (fitted, held_out) == (10 + 2 * RUNGS // 3 + 1, 6 + RUNGS // 3)
    assert found.job == {"graph": graph.name}
    assert found.others == 0.5 and "50 %" in found.warnings[0]
    write_profile(found, tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json").warnings == found.warnings


def test_a_graph_of_several_types_refines_nothing():
    with refused("unsupported-combination --graph type"):
        profiles.machine_profile(graph=typed_graph())
