"""The page of a run whose sampler followed explanations, and the page of one explanation."""

import math

import pytest
from synthetic_runs import write_run
from test_report_page import page_of

from penstock.explain.explainer import ExplainedColumn, ExplainedEdge, Explanation
from penstock.report import write_explanation_page
from penstock.report.explanations import _chosen_edges, _point, _spread, edge_points, judgement, place_labels

FOUND = {
    "made": 12,
    "seconds": 3.5,
    "cores": 0.75,
    "waited_s": 0.25,
    "bytes_pulled": 5 << 20,
    "score_bytes_sent": 2048,
    "halo_rows": 1200,
    "explained_rows": 1024,
    "scores_histogram": [0, 0, 1000, 0, 0, 0, 0, 0, 4, 20],
    "columns_sent": {"<b>": 85},
    "columns_in_all": {"<b>": 100},
    "vertices": {"all": 4000, "remote": 1000},
    "rows": {"pulled": 10, "bytes": 85 << 20, "bytes_as_stored": 100 << 20},
}


def test_what_explanations_chose_saved_and_cost_is_told(tmp_path):
    page = page_of(write_run(tmp_path / "run", result={"explanations": FOUND}))
    for said in ("1,024 of 1,200 remote neighbours", "0.2 to 0.3: 1,000", "85 of 100", "0.75 cores", "5 MiB"):
        assert said in page.text
    assert "15 MiB of 100 MiB" in page.text and "1,000 of 4,000" in page.text
    assert "columns of <b> sent" in page.text and "columns of <b>" not in page.raw


def test_figures_that_are_none_do_no_harm(tmp_path):
    odd = {"made": 1, "rows": 3, "columns_sent": [], "scores_histogram": "x"}
    assert "seconds of explaining" in page_of(write_run(tmp_path / "odd", result={"explanations": odd})).text
    for name, none in (("word", {"made": "many"}), ("number", 7)):
        assert "seconds of explaining" not in page_of(write_run(tmp_path / name, result={"explanations": none})).text


def explanation(count=30, masks=(0.9, 0.2), **changes):
    """A star around vertex 0 whose vertices have another behind each, and what is said of it."""
    edges = [
        ExplainedEdge(masks[n % 2], source, target, hop, "to", "node", "node")
        for n in range(count)
        for hop, source, target in ((1, n + 1, 0), (2, 1000 + n, n + 1))
    ]
    columns = [ExplainedColumn(0.995 - n / 4000, n, "node", 0.5) for n in range(25)]
    given = {
        "vertex": 0, "node_type": "node", "prediction": 12, "score": 0.043, "masked_score": 0.2, "rest_score": 0.01,
        "edges": sorted(edges, key=lambda edge: -edge.mask), "columns": columns, "edge_columns": [], "hops": 2,
        "vertices": 2 * count + 1, "neighbourhood_edges": 2 * count, "losses": [1.0], "notes": [], "label": 3,
        "outputs": 40,
    }  # fmt: skip
    return Explanation(**{**given, **changes})


def test_an_explanation_says_whether_its_prediction_is_right_and_weak():
    wrong, weak = judgement(explanation())
    assert wrong == "Its own label is class 3: the prediction is wrong."
    assert "weak prediction: of 40 classes, this one has 4.3 % of the probability" in weak and "give 2.5 %" in weak
    assert judgement(explanation(label=12, score=0.9)) == ["Its own label is class 12: the prediction is right."]
    assert judgement(explanation(label=None, score=0.9)) == []
    # Of two classes the predicted one always has half; numbers are neither right nor wrong.
    assert judgement(explanation(label=None, score=0.501, outputs=2)) == []
    assert judgement(explanation(prediction=1.5, score=1.5, label=1.25, outputs=0)) == ["Its own label is 1.25."]
    several = judgement(explanation(prediction=[1, 4], label=[1], outputs=5))
    assert several == ["Its own label is labels 1: the prediction is wrong."]


def test_masks_that_are_alike_are_a_sentence_and_no_bars(tmp_path):
    write_explanation_page(explanation(), tmp_path / "alike.html")
    text = (tmp_path / "alike.html").read_text()
    assert "The 20 largest masks are alike, 0.990 to 0.995: no column matters more than the others." in text
    assert 'class="meter"' not in text and "25 columns, of which 25 are kept" in text
    columns = [ExplainedColumn(mask, n, "node", None) for n, mask in enumerate((0.9, 0.5, 0.1))]
    write_explanation_page(explanation(columns=columns), tmp_path / "apart.html")
    text = (tmp_path / "apart.html").read_text()
    assert text.count('class="meter"') == 3 and "masks are alike" not in text and "of which 2 are kept" in text


@pytest.mark.parametrize("count", [1, 3, 8, 30])
def test_no_edge_crosses_a_name_in_the_picture(count):
    given = explanation(count)
    chosen, places = _chosen_edges(given)
    centre = ("node", 0)
    _spread(places, centre, 0.0, 2 * math.pi)
    where = {vertex: _point(place, 2) for vertex, place in places.items()}
    labels = place_labels(chosen, where, centre)
    assert centre in labels and len(labels) >= min(len(where), 12)
    points = [point for edge in chosen for point in edge_points(edge, where)]
    for vertex, label in labels.items():
        left, top, right, bottom = label.box
        crossed = [1 for x, y in points if left < x < right and top < y < bottom]
        assert not crossed or vertex == centre, vertex
        others = [other.box for name, other in labels.items() if name != vertex]
        assert not any(left < b[2] and b[0] < right and top < b[3] and b[1] < bottom for b in others), vertex
