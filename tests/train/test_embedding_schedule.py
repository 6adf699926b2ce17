"""Embeddings whose learning rate follows the job's schedule."""

import pytest

from knowledge_graph import SCORER_CASES, TRIPLES, family_graph
from penstock.api import train
from refusals import refused
from training_graphs import lines_of, trained

FIELDS = {**TRIPLES, **SCORER_CASES["distmult"], "evaluate_every": 0, "epochs": 4}
HALVED = {"schedule": "StepLR", "schedule_options": {"step_size": 2, "gamma": 0.0}}


def losses(run):
    return [line["loss"] for line in lines_of(run.path) if line["kind"] == "epoch"]


def test_a_rate_of_zero_learns_nothing_more(tmp_path):
    run = trained(family_graph(), tmp_path / "all", **FIELDS, **HALVED, schedule_of="all")
    apart = trained(family_graph(), tmp_path / "apart", **FIELDS, **HALVED)
    found, other = losses(run), losses(apart)
    assert found[:2] == other[:2]
    assert found[2] == pytest.approx(found[3], rel=1e-5) and other[3] < 0.99 * other[2]


def test_a_run_that_goes_on_has_the_rate_of_its_epoch(tmp_path):
    fields = {**FIELDS, "schedule": "ExponentialLR", "schedule_options": {"gamma": 0.5}, "schedule_of": "all"}
    whole = trained(family_graph(), tmp_path / "whole", **fields)
    first = trained(family_graph(), tmp_path / "first", **{**fields, "epochs": 2})
    again = train(family_graph(), resume=first.path, epochs=4)
    assert losses(again) == losses(whole)


@pytest.mark.parametrize("fields", [{}, {**HALVED, "embedding_decay": 0.1}], ids=["no-schedule", "decay"])
def test_what_cannot_follow_is_refused(tmp_path, fields):
    with refused("conflicting-options schedule_of"):
        trained(family_graph(), tmp_path / "run", **FIELDS, **fields, schedule_of="all")
