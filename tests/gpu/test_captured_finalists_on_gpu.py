"""`first_layer: auto` beside a GPU: trials of captured ways leave no trace in what is learned, and are resumed."""

import numpy as np
import pytest

from penstock.train import finalists as settlement
from penstock.train.session import TIMED
from training_graphs import assert_same_state, facts_of, newest_checkpoint, stored_as, trained

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]
FEW = {"fanouts": [5, 3], "hidden": 16, "batch_size": 32, "epochs": 3, "evaluate_every": 0, "device": "cuda"}


@pytest.mark.parametrize(
    ("features", "finalists"), [("host", ["auto", "aggregate"]), ("pinned", ["auto", "aggregate", "divided"])]
)
def test_captured_ways_are_timed_and_the_usual_one_learns_as_without_trials(features, finalists, tmp_path, monkeypatch):
    monkeypatch.setattr(settlement, "_SHARE", 0.01)
    # Whatever the trials find, the usual value stays.
    monkeypatch.setattr(settlement, "_WORTH", 1e9)
    graph, job = stored_as(np.float16), {**FEW, "placement": {"features": features}}
    timed = trained(graph, tmp_path / "timed", **job)
    plain = trained(graph, tmp_path / "plain", **job, timed_choices=[])
    settled = facts_of(timed.path)["settled"]["first_layer"]
    assert [each["value"] for each in settled["finalists"]] == finalists
    assert all(each["timed_s"] > 0 for each in settled["finalists"])
    assert facts_of(timed.path)["decided_by"]["first_layer"] == TIMED
    assert all("captured once" in " ".join(run.result["placement"]["why"]) for run in (timed, plain))
    assert_same_state(*(newest_checkpoint(run.path)["learned"] for run in (timed, plain)))
