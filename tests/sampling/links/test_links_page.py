"""The example in docs/links.md runs, on a small graph."""

import re
from pathlib import Path

import penstock as ps
from random_graphs import directed_graph

PAGE = Path(__file__).parents[3] / "docs" / "links.md"


def test_the_example_works(monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    monkeypatch.setattr(ps, "load", lambda name: directed_graph(2000, 8000))
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("mrr 0.")
