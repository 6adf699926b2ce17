"""What the documentation shows is run: every `penstock` line, and the README's example."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_commands_in_the_documentation_work(page, tmp_path):
    if page.name == "tables.md":
        pytest.skip("needs tables; tests/graph/tables runs this page")
    for line in "".join(blocks(page, "console")).splitlines():
        name, *arguments = shlex.split(line)
        assert name == "penstock", line
        done = subprocess.run([*PENSTOCK, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_the_readme_example_works(tmp_path):
    (code,) = blocks(ROOT / "README.md", "python")
    environment = {**os.environ, "PENSTOCK_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "runs/first/report.html" in done.stdout


def test_links_between_pages_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
