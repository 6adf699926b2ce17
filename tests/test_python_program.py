"""Python programs that Penstock starts: one function starts them all, and none runs code of the working folder."""

import re
from pathlib import Path

import pytest

from penstock.cluster.worker.explained.explainer_client import ExplainerClient
from penstock.cost.operators import reduction
from penstock.nn import ModelOptions
from penstock.nn.user_module import imported_callable
from penstock.processes import start_python
from penstock.train.memory import process_memory

SOURCES = Path(__file__).parents[1] / "src" / "penstock"
HOSTILE = ("json", "struct", "multiprocessing", "numpy", "torch", "numba", "penstock")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with files that stand in for modules wherever it is searched first."""
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'a').write('{name}')\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "was-run").exists()


def test_nothing_else_starts_the_interpreter():
    """Nor does multiprocessing, whose children search the working folder before they take over the parent's paths."""
    starts = re.compile(
        r"sys\.executable|from sys import|^ *(import|from) multiprocessing|os\.(exec|spawn|posix_spawn)", re.M
    )
    found = {path.name for path in SOURCES.rglob("*.py") if starts.search(path.read_text())}
    assert found == {"processes.py"}


def test_a_program_of_the_working_folder_is_not_found(folder):
    child = start_python(
        ["-c", "import json, numpy; print(json.dumps(numpy.arange(2).tolist()))"], stdout=-1, text=True
    )
    assert child.communicate(timeout=60)[0] == "[0, 1]\n"


def test_the_process_that_is_measured(folder):
    assert process_memory._measured("neighbour")[0] > 50 << 20


def test_a_process_that_compiled_kernels_is_measured_again(tmp_path, monkeypatch):
    """Compiling takes memory that training does not. What was measured is kept for the next process."""
    known = process_memory._known.__wrapped__
    answers = [(500, 40, 3), (400, 30, 0), (450, 35, 0)]
    monkeypatch.setattr(process_memory, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(process_memory, "_measured", lambda sampler: answers.pop(0))
    for _ in range(2):
        assert (known("whole").resident, known("whole").files) == (400, 30)
    (tmp_path / "process-whole.json").unlink()
    assert known("whole").resident == 450 and not answers


def test_the_explainer(folder, tmp_path_factory):
    """Neither from the working folder, nor from beside a file of the user's, which the worker's own path ends with."""
    (folder / "mine.py").write_text("def loss(out, y):\n    return out\n")
    assert imported_callable(f"{folder / 'mine.py'}:loss")
    options = ModelOptions(model="sage", layers=1, hidden=4)
    about = {"model": options.model_dump(), "widths": {"node": 3}, "outputs": 2, "target": "node", "layers": 1}
    about |= {"edge_types": [["node", "to", "node"]], "output": "classes", "steps": 1, "loss": 0.0}
    client = ExplainerClient(about, patience=60.0, start_patience=60.0)
    client.prepare()
    try:
        assert client.pid is not None
    finally:
        client.close()


def test_the_process_that_sums_are_measured_with(folder, monkeypatch):
    monkeypatch.setattr(reduction, "_numbers", lambda rung: rung)
    (seconds,) = reduction.measure_reduction([1000])
    assert len(seconds) > 1 and min(seconds) > 0
