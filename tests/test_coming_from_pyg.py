"""docs/coming-from-pyg.md: ours are run, PyG's where it is installed, and the lines are those that are counted."""

import re
from pathlib import Path

import numpy as np
import pytest

from in_process import command
from penstock.train.job import Job
from training_graphs import carrying_graph, typed_graph

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-pyg.md"
NAMES = ("PyG", "DGL", "Penstock")
LOADERS = re.compile(r"NeighborLoader|LinkNeighborLoader")
"""What PyG needs pyg-lib for."""


def tasks():
    """By number, the title and the code of each of the three."""
    found = {}
    for part in re.split(r"^## (?=\d+\. )", PAGE.read_text(), flags=re.M)[1:]:
        title = part.splitlines()[0]
        code = re.findall(r"^\*\*(\w+)\*\*.*?^```(?:python|yaml)\n(.*?)^```", part, re.S | re.M)
        found[int(title.split(".")[0])] = title, dict(code)
    return found


TASKS = tasks()


def counted(code):
    """Lines that are neither empty nor comments."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in code.splitlines())


def table():
    rows = re.findall(r"^\| (\d+\. [^|]+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.M)
    return {title: tuple(map(int, figures)) for title, *figures in rows}


@pytest.fixture
def around(tmp_path, monkeypatch):
    """What the examples find there: graphs as PyG has them, a trained model, and files."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    triples = np.unique(
        np.stack([rng.integers(0, 30, 400), rng.integers(0, 3, 400), rng.integers(0, 30, 400)], 1), axis=0
    )
    Path("triples.tsv").write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in triples.tolist()))
    users = [f"u{i},{20 + i % 50},{i % 7},{'paid' if i % 3 else 'free'}\n" for i in range(60)]
    Path("users.csv").write_text("user,age,posts,plan\n" + "".join(users))
    pairs = "".join(f"u{i},u{j}\n" for i, j in rng.integers(0, 60, (200, 2)).tolist())
    Path("follows.csv").write_text("follower,followed\n" + pairs)
    data = carrying_graph().to_pyg()
    data.edge_attr = data.edge_attr.float()
    return {"data": data, "hetero": typed_graph().to_pyg(), "triples": torch.from_numpy(triples)}


def with_model(names, task):
    """The fourth task begins with a trained model, each library's own."""
    if task == 4:
        from torch_geometric.nn import GraphSAGE

        names = {**names, "model": GraphSAGE(names["data"].num_features, 8, 2, 4)}
    return names


def test_there_are_ten_tasks_and_their_lines_are_counted():
    assert list(TASKS) == list(range(1, 11))
    assert table() == {title: tuple(counted(code[name]) for name in NAMES) for title, code in TASKS.values()}


@pytest.mark.parametrize("task", [number for number in TASKS if number != 8])
def test_ours_are_run(task, around, capsys):
    names = with_model(around, task)
    exec(compile(TASKS[task][1]["Penstock"], f"task {task}", "exec"), names)
    if "run" in names:
        assert names["run"].state == "finished" and names["run"].test
    if "out" in names:
        assert names["out"].shape == (names["data"].num_nodes, 4)
    if "loss" in names:
        assert names["loss"].isfinite()


def test_our_spec_is_imported(around, monkeypatch, capsys):
    Path("spec.yaml").write_text(TASKS[8][1]["Penstock"])
    code, _, said = command(monkeypatch, capsys, "data", "import", "spec.yaml", "--out", "data/users")
    assert code == 0, said


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("task", [number for number in TASKS if number != 10])
def test_pygs_are_run(task, around, capsys):
    code = TASKS[task][1]["PyG"]
    if LOADERS.search(code):
        pytest.importorskip("pyg_lib", reason="PyG's loaders need pyg-lib")
    if "pandas" in code:
        pytest.importorskip("pandas")
    exec(compile(code, f"task {task}", "exec"), with_model(around, task))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", ["PyG", "DGL"])
def test_the_others_are_python(task, name):
    compile(TASKS[task][1][name], f"task {task}", "exec")


def test_options_of_ours_exist():
    """Every option that the tables name as `option: value` is a field of a job, or of a cluster file or a spec."""
    others = {"reverse", "launcher"}
    named = re.findall(r"`(\w+): [^`]+`", PAGE.read_text().split("## PyG → Penstock")[1])
    assert named and set(named) <= set(Job.model_fields) | others, set(named) - set(Job.model_fields)
