"""The page of a run that trained on the whole graph."""

from synthetic_runs import write_run
from test_report_page import page_of

from training_graphs import community_graph, trained

WHOLE = {"sampler": "whole", "layers": 2, "epochs": 6, "hidden": 16, "rank_against": 20}


def test_passes_have_colours_and_the_division_is_told(tmp_path):
    run = trained(community_graph(), tmp_path / "run", **{**WHOLE, "bins": 3, "steps_per_epoch": 2})
    page = page_of(run.path)
    for stage in ("forward", "backward", "update"):
        assert f'class="key {stage}"' in page.raw and f'<li class="{stage}">' in page.raw
        assert f"--{stage}: #" in page.raw
    assert "A step does one pass after the other: the " in page.text
    # Passes come one after the other: none of them holds the others up.
    assert "<em>limits</em>" not in page.raw and "limits this run" not in page.text
    assert "Stages one after the other; the share of a step's time" in page.text
    assert "bins by layer" in page.text and "3, 3" in page.text
    for said in ("vertices that the loss reaches", "kept in host memory", "bins computed again", "2 steps an epoch"):
        assert said in page.text
    stages = run.result["stages"]
    assert list(stages) == ["forward", "backward", "update"]
    shares = [each["busy_s"] / (each["busy_s"] + each["wait_s"]) for each in stages.values()]
    assert abs(sum(shares) - 1) < 0.01


def test_supervised_edges_are_told(tmp_path):
    run = trained(community_graph(), tmp_path / "run", **{**WHOLE, "task": "link-prediction", "epochs": 1})
    text = page_of(run.path).text
    assert f"edges predicted {run.result['supervised_edges']:,}" in " ".join(text.split())
    assert f"{run.result['message_edges']:,}" in text


def test_exchanges_are_told(tmp_path):
    result = {"bins": [4, 4], "keep": "host", "recomputed": True, "exchange": "bins", "exposed_communication_s": 0.5}
    text = page_of(write_run(tmp_path / "run", result=result)).text
    for said in ("4, 4", "yes, in the backward pass", "exchange", "communication not hidden"):
        assert said in text
    largest = {"largest_exposed_communication_s": 0.75}
    text = page_of(write_run(tmp_path / "largest", result={**result, **largest})).text
    assert "on the first worker," in text and "on the one that waited most" in text
    text = page_of(write_run(tmp_path / "cluster", result={"bytes_received": 5, "bytes_minimum": 4})).text
    assert "Whole graph" not in text


def test_other_runs_have_no_such_card(tmp_path):
    run = trained(community_graph(), tmp_path / "run", epochs=1)
    assert "Whole graph" not in page_of(run.path).text
