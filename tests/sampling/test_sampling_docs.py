"""The Python shown in docs/sampling.md runs, from top to bottom."""

import re
from pathlib import Path


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    page = Path(__file__).parents[2] / "docs" / "sampling.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    assert blocks
    exec("\n".join(blocks), {})
    assert "('user', 'knows', 'user')" in capsys.readouterr().out
