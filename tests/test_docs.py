"""What the documentation shows is run: every `penstock` line, and the README's example."""

import os
import re
import shlex
from pathlib import Path

import pytest

from forks import run_forked
from in_process import command
from penstock.graph.generate.presets import DATASETS
from penstock.plan import NoRoomError, Sizes, Wanted, decide_residence

ROOT = Path(__file__).parents[1]
SMALLER = """
from penstock.graph.generate.presets import DATASETS
DATASETS["synthetic-arxiv"] = DATASETS["synthetic-arxiv"].scaled(0.05)
"""
STORIES = [
    "first-hour",
    "bring-your-tables",
    "larger-than-memory",
    "unlike-machines",
    "before-you-buy",
    "knowledge-graphs",
    "tune",
]
"""Pages whose commands and programs are run, one after the other, in the order of the reading path."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
@pytest.mark.usefixtures("own_data_sets")
def test_commands_in_the_documentation_work(page, tmp_path, monkeypatch, capsys):
    """In this process, as starting one for each line costs seconds, and on graphs of a fifth of their size."""
    if page.name == "tables.md":
        pytest.skip("needs tables; tests/graph/tables runs this page")
    if page.stem in STORIES:
        pytest.skip("a story, whose programs are run too")
    monkeypatch.chdir(tmp_path)
    for name, recipe in DATASETS.items():
        monkeypatch.setitem(DATASETS, name, recipe.scaled(0.2))
    for line in "".join(blocks(page, "console")).splitlines():
        name, *arguments = shlex.split(line)
        assert name == "penstock", line
        code, _, said = command(monkeypatch, capsys, *arguments)
        assert code == 0, f"{line}\n{said}"


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.usefixtures("own_data_sets")
def test_stories_work(name, tmp_path, monkeypatch, capsys):
    """Commands and programs of a story in their order, on graphs of a fifth of their size."""
    monkeypatch.chdir(tmp_path)
    for each, recipe in DATASETS.items():
        monkeypatch.setitem(DATASETS, each, recipe.scaled(0.2))
    if name == "tune":
        command(monkeypatch, capsys, "data", "make", "synthetic-arxiv", "--scale", "0.02", "--out", "data/small")
    names: dict = {}
    page = (ROOT / "docs" / f"{name}.md").read_text()
    for language, block in re.findall(r"^```(console|python)\n(.*?)^```", page, re.S | re.M):
        if language == "python":
            exec(compile(block, name, "exec"), names)
            continue
        for line in block.splitlines():
            code, _, said = command(monkeypatch, capsys, *shlex.split(line)[1:])
            assert code == 0, f"{line}\n{said}"


def test_the_cluster_of_the_guide_is_the_one_of_the_examples():
    from penstock.cluster.cluster_file import read_cluster

    example = ROOT / "docs" / "examples" / "eight.yaml"
    assert blocks(ROOT / "docs" / "before-you-buy.md", "yaml") == [example.read_text()]
    assert len(read_cluster(str(example)).machines) == 8


def test_the_index_lists_the_stories_in_their_order():
    page = (ROOT / "docs" / "index.md").read_text()
    assert re.findall(r"^\d\. \[[^]]+\]\(([\w-]+)\.md\)", page, re.M) == STORIES


def test_the_readme_example_works(tmp_path):
    """Word for word, on a graph of a twentieth of its size."""
    (code,) = blocks(ROOT / "README.md", "python")
    code = SMALLER + code
    environment = {**os.environ, "PENSTOCK_CACHE": str(tmp_path / "cache")}
    done = run_forked(["python", code], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "runs/first/report.html" in done.stdout


def test_links_between_pages_exist():
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)#:]+)\)", prose):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_sentences_on_the_devices_page_are_those_that_are_said():
    page = " ".join((ROOT / "docs" / "devices.md").read_text().split())

    def sizes(free):
        return Sizes(
            13_800_000_000, 28_430_000_000, 256, 111_059_956, 2_100_000_000, free, free + 5 * 10**8, 120 * 10**9
        )

    large, middle, small = (sizes(gigabytes * 10**9) for gigabytes in (150, 42, 1))
    said = [sentence for each in (large, middle) for sentence in decide_residence(each, Wanted(share=0.92)).why]
    for each, wanted in (
        (middle, Wanted("device", "device", None, 0.92)),
        (middle, Wanted("device", "pinned", 100_000_000, 0.92)),
        (small, Wanted(share=0.92)),
    ):
        with pytest.raises(NoRoomError) as refusal:
            decide_residence(each, wanted)
        said.append(str(refusal.value))
    assert len(said) == 8
    for sentence in said:
        assert sentence in page
