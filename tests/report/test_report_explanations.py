"""The page of a run whose sampler followed explanations."""

from synthetic_runs import write_run
from test_report_page import page_of

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
