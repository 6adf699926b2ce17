"""How often the model is explained with `explain_every: auto`."""

import pytest

from penstock.sampling.explanation import SHARE, steps_between

CASE = {"seeds": 256, "fanouts": [10, 10], "relations": 1, "degree": 7.0, "vertices": 34_000, "rows": 256, "passes": 50}


def test_explaining_takes_its_share_of_the_steps_between():
    # 256 seeds with 7 neighbours each are 2,048 rows of the first layer, about 1,990 different ones.
    explaining = CASE["passes"] * (250 + CASE["rows"])
    assert explaining / (steps_between(**CASE) * 1990) == pytest.approx(SHARE, rel=0.01)


@pytest.mark.parametrize(
    "change, factor",
    [({"passes": 100}, 2.0), ({"rows": 762}, 2.0), ({"seeds": 128}, 2.0), ({"fanouts": [3, 10]}, 2.0), ({}, 1.0)],
)
def test_steps_follow_the_work_of_both_sides(change, factor):
    assert steps_between(**{**CASE, **change}) == pytest.approx(factor * steps_between(**CASE), rel=0.05)


def test_the_last_hop_is_only_read():
    assert steps_between(**{**CASE, "fanouts": [10, 99]}) == steps_between(**CASE)
    assert steps_between(**{**CASE, "fanouts": [-1, 10]}) == steps_between(**CASE)


def test_relations_draw_each_their_own():
    one = steps_between(**{**CASE, "fanouts": [{"a": 2, "b": 3}, 10], "relations": 2})
    assert one == steps_between(**{**CASE, "fanouts": [5, 10]})


def test_large_batches_are_explained_as_often_as_is_useful():
    assert steps_between(**{**CASE, "seeds": 10_000, "fanouts": [10, 10, 10], "vertices": 10**8}) == 30
