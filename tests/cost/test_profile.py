"""The profile: what is kept of what was measured, and whose it is."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cost.profile import DECIDING, CostSpread, Profile, deciding, read_profile, write_profile
from penstock.sampling.sampler_table import SamplerOptions
from plan_profiles import profile_of
from refusals import refused


def profile(**changes) -> Profile:
    return profile_of(2, 3, **{"job": {"graph": "g", "fanouts": [4, 3]}, **changes})


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
    ("section", "number", "change", "said"),
    [
        ("transfers", 0, {"bytes": [[1.0, 2.0]] * 2}, "invalid-document lists 2 (parts) 3 (workers)"),
        ("transfers", 1, {"bytes": [[1.0] * 3]}, "invalid-document features 2"),
        ("transfers", 2, {"bytes": [[1.0]]}, "invalid-document blocks 3"),
        ("transfers", 2, {"bytes": [[-1.0] * 3]}, "invalid-document 0"),
        ("transfers", 3, {"bytes": [[float("inf")]]}, "invalid-document finite"),
        ("transfers", 1, {"name": "lists"}, "invalid-document lists twice"),
        ("operators", 1, {"name": "serve"}, "invalid-document serve cpu 64.0 twice"),
        ("operators", 0, {"weight": 1}, "invalid-document weight"),
        ("memory", 0, {"process": "worker"}, "invalid-document worker cpu twice"),
    ],
)
def test_edited_wrongly_it_is_refused(tmp_path, section: str, number: int, change: dict, said: str) -> None:
    path = tmp_path / "profile.json"
    fields = json.loads(profile().model_dump_json())
    fields[section][number].update(change)
    path.write_text(json.dumps(fields).replace("Infinity", "1e999"))
    with refused(said):
        read_profile(path)


def test_one_of_another_version_says_how_to_make_it_again(tmp_path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"format": "penstock-profile", "version": 1, "tasks": {}}))
    with refused("unsupported-version profile.json 1 3 penstock profile"):
        read_profile(path)


def test_operators_are_looked_up_by_device() -> None:
    """On the processor where there is no other measurement; never on a GPU when a processor is asked for."""
    both = profile_of(1, 1, on_cuda=0.002)
    assert both.operator("step", "cuda").seconds.mean == 0.002
    assert both.operator("step").seconds.mean == 0.01
    assert both.operator("sample", "cuda").device == "cpu"
    alone = both.model_copy(update={"operators": [each for each in both.operators if each.device == "cuda"]})
    with refused("missing-data step cuda cpu"):
        alone.operator("step")
    with refused("missing-data attend"):
        both.operator("attend")


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
    """But for the times of seeds and draws that batches share, which only move what is drawn."""
    assert set(SamplerOptions.model_fields) - {"seed_time", "shared_draws"} <= set(DECIDING)
    assert "norm" in DECIDING


def test_a_profile_that_says_nothing_fits_nothing() -> None:
    with refused("mismatched-inputs"):
        profile(job={}).check_job({"graph": "g", "hidden": 512}, "p.json")
