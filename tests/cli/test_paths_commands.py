"""`penstock paths`: tables for people, one JSON object for programs, sentences for mistakes."""

import json

from in_process import command
from refusals import check_refusal


def asked(monkeypatch, capsys, *words):
    code, out, said = command(monkeypatch, capsys, "paths", *words, "--json")
    return code, json.loads(out) if code == 0 else json.loads(said)


def test_what_ships_is_listed_and_shown(monkeypatch, capsys):
    _, found = asked(monkeypatch, capsys, "show")
    assert "all-reduce" in found["applications"] and "on-path" in found["hardware"]
    _, shown = asked(monkeypatch, capsys, "show", "key-value-store")
    assert [(row["request"], row["path"]) for row in shown["paths"]] == [("get", "acc"), ("get", "cpu"), ("put", "cpu")]
    assert shown["made"] and shown["paths"][0]["toll_us"] > 0


def test_a_profile_is_written_and_used(monkeypatch, capsys, tmp_path):
    out = tmp_path / "metrics.yaml"
    code, found = asked(monkeypatch, capsys, "profile", "block-storage", "--out", str(out))
    assert code == 0 and found["requests"]["read-4k"]["acc"]["base_us"] > 0
    code, again = asked(monkeypatch, capsys, "profile", "block-storage", "--out", str(out))
    assert code == 2 and again["code"] == "file-exists"
    words = ("simulate", "block-storage", "--metrics", str(out), "--requests", "500", "--load", "0.5")
    code, found = asked(monkeypatch, capsys, *words, "--selector", "leo")
    assert code == 0 and [row["selector"] for row in found["rows"]] == ["leo"]


def test_latency_against_load_as_json_and_as_a_page(monkeypatch, capsys, tmp_path):
    chart = tmp_path / "page.html"
    words = ("simulate", "key-value-store", "--workload", "ycsb-b", "--requests", "2000", "--load", "0.4,0.9")
    code, found = asked(monkeypatch, capsys, *words, "--chart", str(chart))
    assert code == 0 and {row["load"] for row in found["rows"]} == {0.4, 0.9}
    medians = {row["selector"]: row["median_us"] for row in found["rows"] if row["load"] == 0.9}
    assert medians["leo-smooth"] < medians["leo"] and "clairvoyant" not in medians
    assert found["bounds"][0]["mean_us"] < found["bounds"][1]["mean_us"]
    page = chart.read_text()
    assert "leo-smooth" in page and "Median latency" in page and "fluid bound" in page
    code, out, _ = command(
        monkeypatch, capsys, "paths", *words, "--selector", "leo", "--selector", "node:responder.cpu"
    )
    assert code == 0 and "node:responder.cpu" in out


def test_the_optimum_is_compared(monkeypatch, capsys):
    words = ("optimum", "key-value-store", "--requests", "40", "--horizon", "4", "--load", "0.8")
    code, found = asked(monkeypatch, capsys, *words)
    assert code == 0 and [row["selector"] for row in found["rows"]] == [
        "clairvoyant", "rolling-horizon", "leo-smooth", "leo"
    ]  # fmt: skip
    code, refusal = asked(monkeypatch, capsys, "simulate", "all-reduce", "--selector", "optimum")
    assert code == 2 and "rolling-horizon" in refusal["error"]


def test_mistakes_are_sentences(monkeypatch, capsys, tmp_path):
    for words, expected in (
        (("show", "nothing"), "unknown-name nothing"),
        (("show", "--hardware", "direct"), "option-missing --hardware"),
        (("show", "file-system", "--hardware", "on-path"), "mismatched-inputs requester.acc"),
        (("simulate", "all-reduce", "--load", "0.5,x"), "invalid-value --load"),
        (("simulate", "all-reduce", "--load", "3"), "invalid-value --load"),
        (("simulate", "all-reduce", "--selector", "best"), "unknown-name best"),
        (("simulate", "all-reduce", "--workload", "w"), "unknown-name w"),
        (("simulate", "all-reduce", "--chart", "page.txt"), "invalid-value page.txt"),
        (("profile", "all-reduce", "--out", str(tmp_path / "no" / "m.yaml")), "file-not-found"),
    ):
        code, found = asked(monkeypatch, capsys, *words)
        assert code == 2
        check_refusal(found["code"], found["error"], expected)
