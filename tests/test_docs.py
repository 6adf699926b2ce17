"""What the documentation shows is run: every `penstock` line, programs, and the README's example."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from forks import run_forked
from in_process import command
from penstock.graph.generate.make import DATASETS
from penstock.plan import NoRoomError, Sizes, Wanted, decide_residence

ROOT = Path(__file__).parents[1]
SMALLER = """
from penstock.graph.generate.make import DATASETS
DATASETS["synthetic-arxiv"] = DATASETS["synthetic-arxiv"].scaled(0.05)
"""
STORIES = [
    "first-hour",
    "tables",
    "memory",
    "cluster",
    "planning",
    "knowledge-graphs",
    "tune",
]
"""Guides, in the order of the reading path."""
PROGRAMS = [
    *STORIES,
    "execution",
    "graph-format",
    "models",
    "partitioning",
    "python",
    "sampling",
    "simulating",
    "training",
    "using-a-model",
    "whole-graph",
]
"""Pages whose commands and programs are run, one after the other."""
LEARNED = {
    "first-hour": ("runs/first", "accuracy", 0.6),
    "knowledge-graphs": ("runs/numbers", "mrr", 0.4),
    "sampling": ("runs/saint", "accuracy", 0.3),
    "tables": ("runs/users", "accuracy", 0.8),
    "training": ("runs/first", "accuracy", 0.3),
    "tune": ("runs/lr-0.01", "accuracy", 0.5),
    "using-a-model": ("runs/first", "accuracy", 0.3),
    "whole-graph": ("runs/whole", "accuracy", 0.6),
}
"""By page, one of its runs, a metric, and what its test split reaches at least on a fifth of the graph."""
ENOUGH_TO_LEARN, ENOUGH_TO_RUN = 0.2, 0.05
"""How much of a built-in data set pages are run on, where a model is to learn and where not."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
@pytest.mark.usefixtures("own_data_sets")
def test_commands_in_the_documentation_work(page, tmp_path, monkeypatch, capsys):
    """In this process, as starting one for each line costs seconds, and on graphs of a twentieth of their size."""
    if page.stem in PROGRAMS:
        pytest.skip("its programs are run too, below")
    monkeypatch.chdir(tmp_path)
    for name, recipe in DATASETS.items():
        monkeypatch.setitem(DATASETS, name, recipe.scaled(ENOUGH_TO_RUN))
    for line in "".join(blocks(page, "console")).splitlines():
        name, *arguments = shlex.split(line)
        assert name == "penstock", line
        code, _, said = command(monkeypatch, capsys, *arguments)
        assert code == 0, f"{line}\n{said}"


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("own_data_sets")
@pytest.mark.filterwarnings("default")
def test_pages_with_programs_work(name, tmp_path, monkeypatch, capsys):
    """Commands and programs of a page in their order, on smaller graphs; its models learn."""
    if name in ("models", "training", "using-a-model", "whole-graph"):
        pytest.importorskip("torch_geometric")
    # One of the pages names vertices by their numbers, which few parts of a twentieth have.
    enough = ENOUGH_TO_LEARN if name in LEARNED or name == "partitioning" else ENOUGH_TO_RUN
    for each, recipe in DATASETS.items():
        monkeypatch.setitem(DATASETS, each, recipe.scaled(enough))
    run_page(name, tmp_path, monkeypatch, capsys, lambda line: line.replace("--nodes 100000", "--nodes 5000"))
    if name in LEARNED:
        run, metric, least = LEARNED[name]
        assert metrics_of(tmp_path / run)[metric] > least


@pytest.mark.long  # The graphs have the size that the pages say.
@pytest.mark.usefixtures("own_data_sets")
@pytest.mark.parametrize(("name", "run", "least"), [("first-hour", "runs/first", 0.8), ("memory", "runs/papers", 0.4)])
def test_guides_reach_what_they_say(name, run, least, tmp_path, monkeypatch, capsys):
    run_page(name, tmp_path, monkeypatch, capsys)
    assert metrics_of(tmp_path / run)["accuracy"] > least


def run_page(name, folder, monkeypatch, capsys, changed=lambda line: line):
    """Run a page's commands, each as `changed` gives it, and its programs, all in one session beside its examples."""
    shutil.copytree(ROOT / "docs" / "examples", folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names: dict = {}
    page = (ROOT / "docs" / f"{name}.md").read_text()
    for language, block in re.findall(r"^```(console|python)\n(.*?)^```", page, re.S | re.M):
        if language == "python":
            exec(compile(block, name, "exec"), names)
            sys.modules.pop("model", None)  # What an export is imported as.
            continue
        for line in block.splitlines():
            code, _, said = command(monkeypatch, capsys, *shlex.split(changed(line))[1:])
            assert code == 0, f"{line}\n{said}"


def metrics_of(run):
    """The metrics of a run's test split."""
    return json.loads((run / "run.json").read_text())["result"]["test"]


def test_the_cluster_of_the_guide_is_the_one_of_the_examples():
    from penstock.cluster.cluster_file import read_cluster

    example = ROOT / "docs" / "examples" / "eight.yaml"
    assert example.read_text() in blocks(ROOT / "docs" / "planning.md", "yaml")
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


def prose(page):
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def anchors(page):
    """What links may name of a page: its headings in lower case, without signs, with dashes for spaces."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_exist():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", prose(page)):
            named = page.parent / target if target else page
            assert named.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(named), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize("page", ["design", "extending"])
def test_source_files_that_a_page_names_exist(page):
    named = re.findall(r"`(?:penstock/)?([\w/]+(?:\.py|/))`", (ROOT / "docs" / f"{page}.md").read_text())
    assert len(named) > 20
    missing = [name for name in named if not any((top / name).exists() for top in (ROOT, ROOT / "src" / "penstock"))]
    assert not missing


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
