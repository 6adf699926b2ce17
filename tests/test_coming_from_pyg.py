"""docs/coming-from-pyg.md: its programs are run, and its tables name what there is."""

import re
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from penstock.train.job import JobFields
from penstock.train.loading.options import PYG_ARGUMENTS
from training_graphs import carrying_graph, typed_graph

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coming-from-pyg.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


@pytest.fixture
def around(tmp_path, monkeypatch):
    """What the programs find there: graphs as PyG has them, and a file of triples."""
    pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    triples = np.unique(rng.integers(0, [30, 3, 30], (400, 3)), axis=0)
    Path("triples.tsv").write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in triples.tolist()))
    data = carrying_graph().to_pyg()
    data.edge_attr = data.edge_attr.float()
    return {"data": data, "hetero": typed_graph().to_pyg(), "ps": ps}


def test_there_are_programs():
    assert len(PROGRAMS) == 10


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_are_run(number, around, capsys):
    exec(compile(PROGRAMS[number], f"program {number}", "exec"), around)
    made = {"run", "loss", "val_loader"} & set(around)
    assert made
    if "run" in made:
        assert around["run"].state == "finished" and around["run"].test
    if "loss" in made:
        assert around["loss"].isfinite()
    if "val_loader" in made:
        assert sum(map(len, around["val_loader"])) == around["val"].edge_label_index.shape[1]


def test_options_of_ours_exist():
    """Every option that the tables name as `option: value` is a field of a job, or of a cluster file or a spec."""
    others = {"reverse", "launcher"}
    named = re.findall(r"`(\w+): [^`]+`", PAGE.split("## PyG → Penstock")[1])
    assert named and set(named) <= set(JobFields.model_fields) | others, set(named) - set(JobFields.model_fields)


def test_arguments_of_pyg_are_answered_as_the_page_says():
    table = PAGE.split("## Arguments of PyG's loaders")[1].split("## PyG → Penstock")[0]
    rows = dict(re.findall(r"^\| (`.*?`) \| ([^|]*) \|$", table, re.M))
    said = {name: sentence for names, sentence in rows.items() for name in re.findall(r"`(\w+)`", names)}
    assert said == {name: sentence[0].upper() + sentence[1:] for name, sentence in PYG_ARGUMENTS.items()}


def changed_lines(name):
    """Lines of an example that are there for our loader alone: neither empty nor comments."""
    text = (ROOT / "examples" / "from_pyg" / f"{name}.py").read_text().splitlines()
    first = next(number for number, line in enumerate(text) if line.strip() == "import penstock as ps")
    depth, count = len(text[first]) - len(text[first].lstrip()), 0
    for line in filter(str.strip, text[first:]):
        if len(line) - len(line.lstrip()) < depth:
            break
        count += 1
    return count


def test_lines_of_the_nine_scripts_are_counted():
    rows = re.findall(r"^\| \[`(\w+)\.py`\][^|]*\|[^|]*\| (\d+) \|", PAGE, re.M)
    assert len(rows) == 9
    assert {name: int(count) for name, count in rows} == {name: changed_lines(name) for name, _ in rows}
