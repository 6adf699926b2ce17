"""Metrics against their definitions, counted out by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import NotFinite
from penstock.train.metrics import METRICS, default_metric, metric_named, metric_values, metrics_for
from refusals import refused

SEEDS = st.integers(0, 10_000)


def compute(name, outputs, labels=None):
    return metric_named(name).compute(outputs, labels)


def pairs_won(scores, true):
    """ROC-AUC as it is defined: every true row against every false one."""
    won = [(a > b) + 0.5 * (a == b) for a in scores[true] for b in scores[~true]]
    return np.mean(won)


def precision_steps(scores, true):
    """Average precision as it is defined: a step at every threshold."""
    total, recall = 0.0, 0.0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        chosen = scores >= threshold
        new = true[chosen].sum() / true.sum()
        total += (new - recall) * true[chosen].mean()
        recall = new
    return total


def f1(chosen, true):
    hits = (chosen & true).sum()
    precision, recall = hits / max(chosen.sum(), 1), hits / max(true.sum(), 1)
    return 2 * precision * recall / (precision + recall) if hits else 0.0


def tied_scores(rng, *shape):
    """Few different values, so that ties are common."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def softmax(outputs):
    shares = np.exp(outputs - outputs.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


@given(SEEDS, st.integers(2, 40))
def test_binary_curves_equal_their_definitions(seed, rows):
    rng = np.random.default_rng(seed)
    true = np.arange(rows) % 3 == 0
    scores = tied_scores(rng, rows)
    assert compute("roc-auc", scores, true.astype(int)) == pytest.approx(pairs_won(scores, true))
    assert compute("average-precision", scores, true) == pytest.approx(precision_steps(scores, true))
    two = np.stack([np.zeros(rows, np.float32), scores], 1)
    assert compute("roc-auc", two, true.astype(int)) == pytest.approx(pairs_won(scores, true))


@given(SEEDS, st.integers(3, 30))
def test_curves_of_several_classes_are_means_of_each_against_the_rest(seed, rows):
    rng = np.random.default_rng(seed)
    outputs, labels = rng.normal(size=(rows, 4)), rng.integers(0, 3, rows)
    labels[:2] = 0, 1
    shares = softmax(outputs)
    for name, one in (("roc-auc", pairs_won), ("average-precision", precision_steps)):
        each = [one(shares[:, c], labels == c) for c in range(4) if (labels == c).any()]
        assert compute(name, outputs, labels) == pytest.approx(np.mean(each))


@given(SEEDS, st.integers(2, 30))
def test_multi_label_curves_leave_out_columns_with_one_kind(seed, rows):
    rng = np.random.default_rng(seed)
    outputs = tied_scores(rng, rows, 4)
    labels = np.stack([np.arange(rows) == 0, np.ones(rows), np.zeros(rows), np.arange(rows) > 0], 1).astype(np.uint8)
    for name, one in (("roc-auc", pairs_won), ("average-precision", precision_steps)):
        each = [one(outputs[:, c], labels[:, c] == 1) for c in (0, 3)]
        assert compute(name, outputs, labels) == pytest.approx(np.mean(each))


@given(SEEDS, st.integers(1, 40))
def test_single_label_decisions(seed, rows):
    rng = np.random.default_rng(seed)
    outputs, labels = rng.normal(size=(rows, 5)), rng.integers(0, 4, rows)
    chosen = outputs.argmax(1)
    share = (chosen == labels).mean()
    seen = sorted({*chosen, *labels})
    macro = np.mean([f1(chosen == c, labels == c) for c in seen])
    for given_outputs in (outputs, chosen):
        assert compute("accuracy", given_outputs, labels) == pytest.approx(share)
        assert compute("micro-f1", given_outputs, labels) == pytest.approx(share)
        assert compute("macro-f1", given_outputs, labels) == pytest.approx(macro)


@given(SEEDS, st.integers(1, 20))
def test_multi_label_decisions(seed, rows):
    rng = np.random.default_rng(seed)
    outputs, labels = tied_scores(rng, rows, 3), rng.integers(0, 2, (rows, 3))
    chosen, true = outputs > 0, labels == 1
    assert compute("micro-f1", outputs, labels) == pytest.approx(f1(chosen.ravel(), true.ravel()))
    seen = [c for c in range(3) if chosen[:, c].any() or true[:, c].any()]
    macro = np.mean([f1(chosen[:, c], true[:, c]) for c in seen]) if seen else 0.0
    assert compute("macro-f1", outputs, labels) == pytest.approx(macro)


def test_known_values():
    # The worked examples that textbooks and other libraries' manuals give.
    scores, true = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])
    assert compute("roc-auc", scores, true) == pytest.approx(0.75)
    assert compute("average-precision", scores, true) == pytest.approx(0.8333333)
    assert compute("macro-f1", np.array([0, 2, 1, 0, 0, 1]), np.array([0, 1, 2, 0, 1, 2])) == pytest.approx(0.2666667)
    assert compute("mae", [2.5, 0.0, 2, 8], [3, -0.5, 2, 7]) == pytest.approx(0.5)
    assert compute("rmse", [2.5, 0.0, 2, 8], [3, -0.5, 2, 7]) == pytest.approx(0.375**0.5)
    assert compute("mrr", np.array([1, 2, 4.5])) == pytest.approx((1 + 0.5 + 1 / 4.5) / 3)
    assert compute("hits@3", np.array([1, 3, 3.5, 9])) == 0.5
    assert compute("hits@17", np.array([17, 18])) == 0.5
    assert compute("accuracy", np.array([[0.2], [-1.0]]), np.array([1, 1])) == 0.5


def test_a_constant_model_is_no_better_than_chance():
    true = np.arange(100) < 10
    assert compute("roc-auc", np.zeros(100), true) == 0.5
    assert compute("average-precision", np.zeros(100), true) == pytest.approx(0.1)


def test_curves_of_many_rows_are_not_quadratic():
    # 500,000 rows: every pair would be 10^11 comparisons.
    rng = np.random.default_rng(0)
    true = rng.random(500_000) < 0.3
    scores = rng.normal(size=500_000) + true
    # Two unit normals one apart: the area is Φ(1 / √2).
    assert compute("roc-auc", scores, true) == pytest.approx(0.7602, abs=0.005)


def test_metrics_know_which_way_is_better():
    assert metric_named("accuracy").is_better(0.5, METRICS["accuracy"].worst)
    assert metric_named("rmse").is_better(3.0, METRICS["rmse"].worst)
    assert not metric_named("rmse").is_better(3.0, 2.0)
    assert not metric_named("mrr").is_better(float("nan"), 0.1)
    assert metric_named("hits@7").better == "higher"
    assert metric_named("hits@7").takes == "ranks"


def test_defaults():
    assert default_metric("node-classification").name == "accuracy"
    assert default_metric("node-classification", multi_label=True).name == "micro-f1"
    assert default_metric("edge-classification").name == "accuracy"
    assert default_metric("link-prediction").name == "mrr"
    assert default_metric("node-regression").name == "mae"
    assert "rmse" in metrics_for("node-regression")
    assert "accuracy" not in metrics_for("link-prediction")


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "sentence"),
    [
        ("accuracy", np.zeros((3, 2)), np.zeros(2), "shape-mismatch 3 2"),
        ("accuracy", np.zeros((0, 2)), np.zeros(0), "missing-data"),
        ("accuracy", np.zeros((2, 2)), np.zeros((2, 2)), "unsupported-combination micro-f1"),
        ("macro-f1", np.zeros((2, 2)), np.array([0, -1]), "value-out-of-range -1"),
        ("micro-f1", np.zeros((2, 2)), np.zeros((2, 3)), "shape-mismatch"),
        ("roc-auc", np.zeros(2), np.ones(2), "missing-data"),
        ("roc-auc", np.array([0.0, np.nan]), np.array([0, 1]), "not-finite"),
        ("average-precision", np.zeros((2, 2)), np.zeros((2, 3)), "shape-mismatch"),
        ("mae", np.zeros((2, 3)), np.zeros((2, 4)), "shape-mismatch"),
        ("mrr", np.array([0.0]), None, "value-out-of-range 1"),
        ("hits@10", np.array([]), None, "missing-data"),
    ],
)
def test_what_cannot_be_measured_is_said(name, outputs, labels, sentence):
    with refused(sentence):
        compute(name, outputs, labels)


@pytest.mark.parametrize(("name", "near"), [("acuracy", "accuracy"), ("roc_auc", "roc-auc"), ("hits@0", "hits@")])
def test_the_nearest_name_is_suggested(name, near):
    with refused(f"unknown-name '{near}"):
        metric_named(name)
    with refused("unknown-name"):
        default_metric("node-clasification")


def test_several_metrics_of_the_same_outputs_are_those_of_each():
    rng = np.random.default_rng(0)
    for outputs, labels in (
        (rng.standard_normal((50, 4)), rng.integers(0, 4, 50)),
        (rng.standard_normal((50, 3)), rng.integers(0, 2, (50, 3))),
        (rng.standard_normal((50, 1)), rng.integers(0, 2, 50)),
    ):
        names = ["macro-f1", "micro-f1", *(["accuracy"] if labels.ndim == 1 else ["roc-auc"])]
        metrics = [metric_named(name) for name in names]
        assert metric_values(metrics, outputs, labels) == {each.name: each.compute(outputs, labels) for each in metrics}
    with pytest.raises(NotFinite):
        metric_values([metric_named("accuracy")], np.full((3, 2), np.nan), np.zeros(3, np.int64))
