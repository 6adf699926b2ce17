"""`penstock simulate --queue`: what it prints, writes and refuses."""

from pathlib import Path

import pytest

from in_process import answer, command, refusal
from penstock.service.simulation import METHODS
from refusals import check_refusal

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "queue-trace.yaml"
MAKESPAN_PARTS = {
    "makespan_s",
    "mean_completion_s",
    "p95_completion_s",
    "mean_queueing_s",
    "utilisation",
    "memory_used",
}


def test_all_methods_are_compared_beside_what_none_can_beat(monkeypatch, capsys):
    found = answer(monkeypatch, capsys, "simulate", "--queue", EXAMPLE)
    assert [row["method"] for row in found["methods"]] == list(METHODS)
    for row in found["methods"]:
        assert set(row) >= MAKESPAN_PARTS
        assert row["jobs"] == 20 == len(row["job_times"]) == len(row["completions_s"])
        assert row["makespan_s"] >= found["least"]["makespan_s"]
        assert row["mean_completion_s"] >= found["least"]["mean_completion_s"]
        assert max(row["peak_memory_gb"].values()) <= 26
    by_method = {row["method"]: row for row in found["methods"]}
    assert by_method["fit"]["makespan_s"] < by_method["sequential"]["makespan_s"]
    assert by_method["sequential-cold"]["makespan_s"] == pytest.approx(by_method["sequential"]["makespan_s"] + 20 * 11)
    # A group of the source's policies never holds more than the device has.
    assert all(group["gb"] <= 26 for group in by_method["bmc"]["groups"])
    assert by_method["fit"]["groups"] == []


def test_a_table_and_a_page(monkeypatch, capsys, tmp_path):
    page = tmp_path / "queue.html"
    code, printed, _ = command(monkeypatch, capsys, "simulate", "--queue", EXAMPLE, "--chart", page)
    assert code == 0
    assert all(method in printed for method in METHODS)
    assert "no schedule takes less than" in printed and str(page) in printed
    text = page.read_text()
    assert text.count("<rect") == 20 * len(METHODS)
    assert "http://" not in text and "https://" not in text


def test_one_policy_alone(monkeypatch, capsys):
    found = answer(monkeypatch, capsys, "simulate", "--queue", EXAMPLE, "--policy", "lmcf")
    assert [row["method"] for row in found["methods"]] == ["lmcf"]


def test_a_name_in_a_trace_is_text_on_the_page(monkeypatch, capsys, tmp_path):
    trace, page = tmp_path / "trace.yaml", tmp_path / "queue.html"
    trace.write_text(
        "devices: [{name: gpu, memory_gb: 1}]\n"
        "jobs: [{name: '<b>small', alone_s: 1}, {name: '<i>large', alone_s: 1, memory_gb: 2}]\n"
    )
    code, printed, _ = command(monkeypatch, capsys, "simulate", "--queue", trace, "--chart", page)
    assert code == 0 and "Refused: <i>large" in printed
    text = page.read_text()
    assert "&lt;b&gt;small" in text and "<b>small" not in text and "<i>large" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("devices: []\njobs: [{name: a, alone_s: 1}]", "invalid-document devices"),
        ("devices: [{name: g}]\njobs: [{name: a}]", "invalid-document jobs[0].alone_s"),
        ("devices: [{name: g}]\njobs: [{name: a, alone_s: 1, share: 2}]", "invalid-document share"),
        ("devices: [{name: g}]\njobs: [{name: a, alone_s: 1}, {name: a, alone_s: 2}]", "invalid-document two jobs"),
        ("devices: [{name: g}]\njobs: [{name: a, alone_s: 1, memory_gb: 2}]", "infeasible a: 2,000,000,000"),
        ("devices: [{name: g, concurrent: 0}]\njobs: [{name: a, alone_s: 1}]", "invalid-document concurrent auto"),
    ],
)
def test_a_bad_trace_is_refused(monkeypatch, capsys, tmp_path, text, expected):
    trace = tmp_path / "trace.yaml"
    trace.write_text(text)
    found = refusal(monkeypatch, capsys, "simulate", "--queue", trace)
    check_refusal(found.code, found, expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--policy", "lmfc"], "unknown-name lmcf"),
        (["--compare"], "conflicting-options --compare --queue"),
        (["--sweep", "share=1"], "conflicting-options --sweep"),
        (["--chart", "queue.txt"], "invalid-value .html"),
    ],
)
def test_options_that_do_not_apply_are_refused(monkeypatch, capsys, options, expected):
    found = refusal(monkeypatch, capsys, "simulate", "--queue", EXAMPLE, *options)
    check_refusal(found.code, found, expected)
