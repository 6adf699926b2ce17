"""The programs in examples/ learn; those that need a package that is not installed are skipped."""

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

import penstock
from training_graphs import community_graph

EXAMPLES = Path(__file__).parent.parent / "examples"
FEW = {"epochs": 4, "fanouts": (4, 3), "batch_size": 20}


def main_of(name):
    """The function `main` of an example."""
    spec = importlib.util.spec_from_file_location(f"example_{Path(name).name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def test_bare_loop():
    assert main_of("bare_loop")(community_graph(), hidden=16, **FEW) > 0.5


@pytest.mark.filterwarnings("default")
def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    pytest.importorskip("torch_geometric")
    quiet = {"enable_checkpointing": False, "enable_model_summary": False, "accelerator": "cpu"}
    assert main_of("lightning_loop")(community_graph(), default_root_dir=tmp_path, **quiet, **FEW) > 0.5


@pytest.mark.filterwarnings("default")
def test_optuna(tmp_path):
    """Poor trials end before their last epoch, and what was found are settings as a job has them."""
    pytest.importorskip("optuna")
    small = {"fanouts": [4, 3], "batch_size": 20, "threads": 1, "epochs": 4}
    study = main_of("optuna_search")(community_graph(), trials=8, folder=tmp_path, **small)
    assert study.best_value > 0.5 and "PRUNED" in [trial.state.name for trial in study.trials]
    job = penstock.Run.open(tmp_path / str(study.best_trial.number), community_graph()).job
    assert {name: getattr(job, name) for name in study.best_params} == study.best_params


@pytest.mark.long  # Ray's processes take several seconds to start.
@pytest.mark.filterwarnings("default")
def test_ray_tune(tmp_path, monkeypatch):
    """Poor trials end before their last epoch."""
    pytest.importorskip("ray.tune")
    import ray

    monkeypatch.setenv("PYTHONPATH", str(Path(penstock.__file__).parent.parent))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        graph = community_graph().save(tmp_path / "graph").path
        small = {"fanouts": [4, 3], "batch_size": 20, "threads": 1, "epochs": 4}
        found = main_of("ray_tune_search")(graph, trials=6, folder=tmp_path / "search", **small)
    finally:
        ray.shutdown()
    assert not found.errors and found.get_best_result().metrics["accuracy"] > 0.4
    assert {result.metrics["epoch"] for result in found} >= {1, 4}


@pytest.mark.filterwarnings("default")
def test_accelerate():
    pytest.importorskip("accelerate")
    pytest.importorskip("torch_geometric")
    assert main_of("accelerate_loop")(community_graph(), hidden=16, cpu=True, **FEW) > 0.5


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("accelerate_loop", "accelerate"),
        ("bare_loop", "torch"),
        ("lightning_loop", "lightning"),
        ("optuna_search", "optuna"),
        ("ray_tune_search", "ray.tune"),
    ],
)
def test_a_program_without_a_graph_says_so(name, package, monkeypatch, capsys):
    pytest.importorskip(package)
    pytest.importorskip("torch_geometric")
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert ended.value.code == 2
    assert "the following arguments are required: graph" in capsys.readouterr().err


FROM_PYG = {
    "vertices": (0.5, {"nodes": 400}),
    "typed": (0.5, {"count": 300, "authors": 200}),
    "trimming": (0.4, {"nodes": 400}),
    "links": (0.5, {"nodes": 300}),
    "unsupervised": (0.4, {"nodes": 300}),
    "bipartite": (0.2, {"users": 200, "movies": 100}),
    "edge_features": (0.45, {"nodes": 600, "epochs": 12}),
    "with_lightning": (0.5, {"nodes": 400}),
    "knowledge_graph": (0.15, {"side": 8}),
}
"""By name of a script in examples/from_pyg, what its Penstock side reaches at least on a small graph."""


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", FROM_PYG)
def test_scripts_of_pyg_learn_over_our_loader(name, monkeypatch):
    pytest.importorskip("torch_geometric")
    if name == "with_lightning":
        pytest.importorskip("lightning")
    monkeypatch.syspath_prepend(EXAMPLES / "from_pyg")
    least, sizes = FROM_PYG[name]
    assert main_of(f"from_pyg/{name}")("penstock", **sizes) > least


def test_all_scripts_of_pyg_are_run():
    names = {path.stem for path in (EXAMPLES / "from_pyg").glob("*.py")}
    assert names == {*FROM_PYG, "made_data"}
