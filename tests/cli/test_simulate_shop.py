"""`penstock simulate --shop`: what is printed and written, and what is refused."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from in_process import answer, command, refusal

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "group.fjs"


def test_json_has_the_schedule_and_what_is_proved(monkeypatch, capsys):
    found = answer(monkeypatch, capsys, "simulate", "--shop", EXAMPLE, "--schedule", "enumeration")
    assert (found["schedule"], found["makespan"], found["bound"], found["proved_share"]) == ("enumeration", 24, 24, 1)
    assert len(found["operations"]) == 12 and found["jobs"] == 4 and found["machines"] == 3
    assert max(each["end"] for each in found["operations"]) == 24
    fifo = answer(monkeypatch, capsys, "simulate", "--shop", EXAMPLE, "--schedule", "fifo")
    assert fifo["makespan"] > 24 and fifo["proved_share"] == pytest.approx(fifo["bound"] / fifo["makespan"])


def test_people_read_a_table_and_a_page_is_drawn(monkeypatch, capsys, tmp_path):
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    options = "--schedule-options", "{moves: 500}", "--timeline", page, "--timeline", trace
    _, said, _ = command(monkeypatch, capsys, "simulate", "--shop", EXAMPLE, *options)
    assert "local-search: makespan" in said and "machine 3" in said
    assert "makespan" in page.read_text() and "job 4, operation 3" in trace.read_text()


def test_the_commands_of_the_page_work(monkeypatch, capsys, tmp_path):
    shutil.copy(EXAMPLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^penstock (simulate --shop .*)$", (EXAMPLE.parents[1] / "simulating.md").read_text(), re.M)
    assert len(lines) == 2
    for line in lines:
        code, _, said = command(monkeypatch, capsys, *shlex.split(line))
        assert code == 0, said
    assert (tmp_path / "schedule.html").exists()


def test_options_of_others_are_refused(monkeypatch, capsys, tmp_path):
    for options, said in (
        (["--shop", EXAMPLE, "--policy", "fair"], "--policy"),
        (["--shop", EXAMPLE, "--schedule", "nope"], "nope"),
        (["--shop", EXAMPLE, "--schedule-options", "3"], "mapping"),
        (["--shop", tmp_path / "none.fjs"], "none.fjs"),
        ([EXAMPLE.with_name("exchange.yaml"), "--schedule", "fifo"], "--shop"),
    ):
        assert said in str(refusal(monkeypatch, capsys, "simulate", *options))
