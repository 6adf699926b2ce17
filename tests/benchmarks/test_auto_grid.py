"""The plain arithmetic of the grid that compares `auto` with fixed choices."""

import importlib.util
import sys
from pathlib import Path

import pytest

from penstock.train.job import job_of

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def grid():
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("auto_grid", FOLDER / "auto_grid.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["auto_grid"] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("auto_grid", None)


@pytest.mark.parametrize("drawn", ["settings", "held_out"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_grid_has_thirty_settings_and_jobs_for_all_their_choices(grid, device, drawn):
    settings = getattr(grid, drawn)(device)
    assert len({setting.name for setting in settings}) == 30
    for setting in settings:
        choices = grid.fixed_choices(setting, device)
        assert choices and all(choice["first_layer"] != "auto" for choice in choices.values())
        for choice in (None, *choices.values()):
            job_of(grid.job_fields(setting, device, choice))
    assert job_of(grid.job_fields(settings[0], device, None)).first_layer == "auto"


def test_settings_that_are_held_out_are_none_of_the_grid_and_stay_as_they_were_drawn(grid):
    drawn = {device: grid.held_out(device) for device in ("cpu", "cuda")}
    for device, settings in drawn.items():
        known = [(each.vertices, each.columns, each.fields["model"]) for each in grid.settings(device)]
        assert not [each for each in settings if (each.vertices, each.columns, each.fields["model"]) in known]
    fields = {"model": "gin", "hidden": 64, "fanouts": [12, 12, 20], "batch_size": 256}
    assert drawn["cpu"][0] == grid.Setting("0-gin-16-64-12x12x20-host", 85846, 16, fields)


def test_turns_go_forwards_and_backwards(grid):
    asked = []
    runners = {name: lambda window, name=name: asked.append(name) or window for name in "ab"}
    assert grid.interleaved(runners, 0.5, 2) == {"a": [0.5, 0.5], "b": [0.5, 0.5]}
    assert asked == ["a", "b", "b", "a"]


def test_ratios(grid):
    assert grid.ratio_of_pairs([2.0, 3.0, 10.0], [1.0, 2.0, 10.0]) == 1.5
    assert grid.least([8.0, 1.0, 3.0, 9.0, 7.0, 7.0, 7.0, 7.0]) == 2.0 and grid.least([5.0]) == 5.0
    assert grid.noise_of([1.0, 2.0, 1.0, 2.0]) == 0.5 and grid.noise_of([3.0, 3.0]) == 0.0


def test_what_a_file_has_is_not_measured_again(grid):
    settings = grid.settings("cpu")
    rows = [{"setting": settings[0].name, "device": "cpu"}, {"setting": settings[1].name, "device": "cuda"}]
    assert grid.missing(settings, rows, "cpu", [""]) == settings[1:]
    assert {each.fields["model"] for each in grid.missing(settings, rows, "cpu", ["gat", "gin"])} == {"gat", "gin"}


def test_the_worst_setting_is_named(grid):
    rows = [{"setting": name, "ratio": ratio} for name, ratio in (("a", 1.01), ("b", 1.2), ("c", 0.9))]
    assert grid.summary(rows) == "3 settings, 1 above 1.03; the worst is b with 1.2."
