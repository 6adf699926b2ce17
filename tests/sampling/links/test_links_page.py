"""The example in docs/links.md runs, on a small graph, and ranks far better than chance."""

import re
from pathlib import Path

from penstock.graph.generate import make_graph
from penstock.graph.generate.make import DATASETS

PAGE = Path(__file__).parents[3] / "docs" / "links.md"


def test_the_example_works(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    monkeypatch.chdir(tmp_path)
    make_graph(DATASETS["synthetic-arxiv"].scaled(0.02), tmp_path / "data" / "small")
    exec(compile(code, str(PAGE), "exec"), {})
    word, mrr = capsys.readouterr().out.split()
    assert word == "mrr" and float(mrr) > 0.05
