"""Axes that hold their values, thinning that keeps what stands out."""

import json
import math
import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.report.charts import (
    MOST_POINTS,
    Axis,
    Mark,
    Series,
    column_chart,
    exact,
    fitted,
    line_chart,
    logarithmic,
    spans_decades,
    thinned,
)
from penstock.report.run_folder import StageRecord, number
from penstock.report.words import limit_sentence, mebibytes, metric_value, moment, seconds, short

values = st.lists(st.floats(-1e12, 1e12).map(number), min_size=1, max_size=20)
positive = st.lists(st.floats(1e-12, 1e12), min_size=2, max_size=20).filter(spans_decades)


@given(values, st.booleans())
def test_a_fitted_axis_holds_its_values(seen, from_zero):
    axis = fitted(seen, from_zero)
    room = (axis.high - axis.low) * 1e-6
    assert all(axis.low - room <= value <= axis.high + room for value in seen)
    assert 2 <= len(axis.ticks) <= 9
    assert axis.ticks[0][0] == axis.low
    assert len({label for _, label in axis.ticks}) == len(axis.ticks)


@given(positive)
def test_a_logarithmic_axis_holds_its_values(seen):
    axis = logarithmic(seen)
    assert axis.low < axis.high
    assert all(axis.low * 0.9999 <= value <= axis.high * 1.0001 for value in seen)
    assert all(0 <= axis.place(at) <= 1 for at, _ in axis.ticks)
    assert 1 <= len(axis.ticks) <= 9


def test_an_exact_axis_of_epochs_has_whole_labels():
    assert [text for _, text in exact(1, 3, whole=True).ticks] == ["1", "2", "3"]
    assert [text for _, text in exact(4, 4, whole=True).ticks] == ["4"]
    assert exact(1, 3000, whole=True).ticks[-1] == (3000, "3,000")


def test_decades():
    assert spans_decades([0.01, 3.0])
    assert not spans_decades([0.5, 3.0])
    assert not spans_decades([-0.01, 3.0])
    assert not spans_decades([])


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=300), st.integers(4, 60))
def test_thinning_keeps_order_bound_and_extremes(heights, most):
    points = [(float(at), value) for at, value in enumerate(heights)]
    kept = thinned(points, most)
    assert len(kept) <= max(most, 1)
    assert kept == sorted(kept, key=lambda each: each[0])
    assert set(kept) <= set(points)
    known = [value for value in heights if value is not None]
    if known:
        left = [value for _, value in kept if value is not None]
        assert (min(left), max(left)) == (min(known), max(known))


def test_a_curve_breaks_where_there_is_no_value():
    series = Series("", [(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 1.0)], "c1", {})
    drawn = line_chart("Loss", [series], exact(0, 3), fitted([1, 2]), mark=Mark(1.0, 2.0, "<best>"))
    path = re.search(r'class="curve c1" d="([^"]*)"', drawn)[1]
    assert path.count("M") == 2
    assert drawn.count('class="dot c1"') == 1
    assert "&lt;best&gt;" in drawn


def test_long_curves_stay_small_and_short_ones_whole():
    points = [(float(at), math.sin(at)) for at in range(50_000)]
    drawn = line_chart("Loss", [Series("a", points, "c1", {})], exact(0, 50_000), fitted([-1, 1]))
    assert re.search(r'class="curve c1" d="([^"]*)"', drawn)[1].count("L") <= MOST_POINTS
    assert len(drawn) < 40_000
    columns = column_chart("Time", Series("", points[:5], "c1", {}), exact(0, 4), fitted([-1, 1]))
    assert columns.count("<rect") == 5


def test_what_a_pointer_shows():
    series = [Series("a", [(1.0, 2.0), (2.0, 4.0)], "c1", {1.0: "two"}), Series("b", [(2.0, 3.0)], "c2", {})]
    drawn = line_chart("Loss", series, exact(1, 2), fitted([0, 4]))
    stops = json.loads(unescape(re.search('data-hover="([^"]*)"', drawn)[1]))
    assert stops == [
        [0.0, "epoch 1", [[0.5, "c1", "a two"]]],
        [1.0, "epoch 2", [[0.0, "c1", "a 4"], [0.25, "c2", "b 3"]]],
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2e-5, "20 µs"),
        (0.84, "840 ms"),
        (3.2, "3.2 s"),
        (59.97, "1 min 00 s"),
        (252, "4 min 12 s"),
        (7380, "2 h 03 min"),
    ],
)
def test_seconds(value, words):
    assert seconds(value) == words


def test_numbers_in_words():
    assert [short(value) for value in (950, 12_345, 4_560_000, 2e12)] == ["950", "12.3 k", "4.56 M", "2,000 G"]
    assert (mebibytes(900), mebibytes(2048)) == ("900 MiB", "2.00 GiB")
    assert [mebibytes(size / (1 << 20)) for size in (0, 12, 2048, 3.5e6)] == ["0 B", "12 B", "2 KiB", "3.34 MiB"]
    assert (metric_value("accuracy", 0.7184), metric_value("roc-auc", 0.91234)) == ("71.84 %", "0.9123")
    assert (moment("2026-07-20T14:03:11+00:00"), moment("soon")) == ("20 July 2026, 14:03", "soon")


def test_the_limiting_stage_in_words():
    def stage(name, share):
        return StageRecord(name, 100 * share, 100 - 100 * share, share=share)

    compute, sample = stage("compute", 0.96), stage("sample", 0.3)
    words = "Compute limits this run: it was at work 96 % of the training time; sampling mostly waited."
    assert limit_sentence(compute, [sample, compute]) == words
    idle = [stage(name, 0.01) for name in ("seeds", "sample", "gather")]
    assert limit_sentence(compute, [*idle, compute]).endswith("; the other stages mostly waited.")
    assert limit_sentence(compute, [compute]).endswith("96 % of the training time.")
    close = stage("sample", 0.9)
    assert limit_sentence(compute, [close, compute]).endswith("training time; sampling (90 %) would be next.")
    words = "No stage was at work throughout: sampling was at work longest, 30 % of the training time."
    assert limit_sentence(sample, [sample]) == words
    passes = [stage("forward", 0.11), stage("backward", 0.86), stage("update", 0.03)]
    words = "A step does one pass after the other: the backward pass 86 %, the forward pass 11 % and the update of the"
    assert limit_sentence(passes[1], passes) == f"{words} weights 3 % of its time."


def test_where_floats_are_too_far_apart_a_value_stands_in_the_middle():
    most = float(1 << 54)
    assert Axis(most - 0.5, most + 0.5, []).place(most) == 0.5
