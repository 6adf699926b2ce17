"""The profile: what is kept of what was measured, and whose it is."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cost.profile import DECIDING, CostSpread, Profile, TaskCost, deciding, read_profile, write_profile
from penstock.sampling.options import SamplerOptions
from refusals import refused


def profile(**changes) -> Profile:
    cost = TaskCost(seconds=CostSpread(mean=0.01))
    fields = {
        "job": {"graph": "g", "fanouts": [4, 3]},
        "iterations": 5,
        "batches": 7,
        "parts": 2,
        "workers": 3,
        "tasks": dict.fromkeys(("store", "sampler", "gather", "worker"), cost),
        "lists": [[1.0, 2.0, 3.0]] * 2,
        "features": [[10.0, 20.0, 30.0]] * 2,
        "blocks": [5.0] * 3,
        "gradients": 100.0,
    }
    return Profile.model_validate({**fields, **changes})


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_a_spread_keeps_the_mean(values: list[float]) -> None:
    spread = CostSpread.of(values)
    assert spread.mean == pytest.approx(np.mean(values))
    assert np.mean(spread.shape) == pytest.approx(1, abs=1e-5)
    assert spread.shape == sorted(spread.shape)


def test_a_spread_keeps_the_shape() -> None:
    values = np.random.default_rng(0).exponential(3.0, 20_000)
    shape = np.array(CostSpread.of(values).shape) * values.mean()
    expected = np.quantile(values, (np.arange(20) + 0.5) / 20)
    np.testing.assert_allclose(shape, expected, rtol=0.05)


def test_comes_back_as_it_was_written(tmp_path) -> None:
    path = tmp_path / "profile.json"
    write_profile(profile(gradients=123456.789), path)
    assert read_profile(path) == profile(gradients=123457.0)
    write_profile(read_profile(path), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lists": [[1.0, 2.0]] * 2}, "invalid-document 2"),
        ({"features": [[1.0] * 3]}, "invalid-document 2"),
        ({"blocks": [1.0]}, "invalid-document 3"),
        ({"blocks": [-1.0] * 3}, "invalid-document 0"),
        ({"gradients": float("inf")}, "invalid-document finite"),
        ({"tasks": {}}, "invalid-document"),
        ({"weight": 1}, "invalid-document weight"),
    ],
)
def test_edited_wrongly_it_is_refused(tmp_path, change: dict, said: str) -> None:
    path = tmp_path / "profile.json"
    fields = json.loads(profile().model_dump_json()) | change
    path.write_text(json.dumps(fields).replace("Infinity", "1e999"))
    with refused(said):
        read_profile(path)


def test_of_another_job_it_is_refused() -> None:
    profile().check_job({"graph": "g", "fanouts": [4, 3], "epochs": 9}, "p.json")
    with refused("mismatched-inputs p.json [4 3]"):
        profile().check_job({"graph": "g", "fanouts": [4]}, "p.json")


def test_missing_it_says_how_to_make_one(tmp_path) -> None:
    with refused("file-not-found"):
        read_profile(tmp_path / "none.json")


def test_what_decides_is_of_the_job_alone() -> None:
    assert deciding({"graph": "g", "lr": 0.1, "hidden": 8}) == {"graph": "g", "hidden": 8}


def test_whatever_a_sampler_draws_by_decides() -> None:
    """But for the times of seeds, which only move what is drawn."""
    assert set(SamplerOptions.model_fields) - {"seed_time"} <= set(DECIDING)
    assert "norm" in DECIDING


def test_a_profile_that_says_nothing_fits_nothing() -> None:
    with refused("mismatched-inputs"):
        profile(job={}).check_job({"graph": "g", "hidden": 512}, "p.json")
