"""Paths may be strings, `pathlib` paths or any `os.PathLike`, wherever the Python interface takes one."""

import os

import pytest
import torch

import penstock as ps
from penstock.service.client import findable
from refusals import refused
from training_graphs import community_graph

FEW = {"fanouts": [2], "hidden": 4, "epochs": 1, "batch_size": 50}


class Place(os.PathLike):
    """A path of another library's."""

    def __init__(self, path):
        self._path = path

    def __fspath__(self):
        return str(self._path)


@pytest.mark.parametrize("kind", [str, lambda path: path, Place], ids=["str", "Path", "PathLike"])
def test_every_path_argument(tmp_path, kind):
    def at(name):
        return kind(tmp_path / name)

    community_graph(60).save(at("graph"))
    assert ps.Graph.open(at("graph")).num_nodes == ps.load(at("graph")).num_nodes == 60
    run = ps.train(at("graph"), run=at("run"), **FEW)
    assert run.path == tmp_path / "run" and run.job.graph == str(tmp_path / "graph")
    assert ps.train(resume=at("run"), epochs=2).history["epoch"][-1] == 2
    opened = ps.Run.open(at("run"), at("graph"))
    assert opened.evaluate("val", graph=at("graph")) == opened.evaluate("val")
    assert not opened.compare(at("run")).settings
    assert opened.export(at("exported")) == tmp_path / "exported"
    assert next(iter(ps.loader(at("graph"), fanouts=[2], batch_size=10))).batch_size == 10
    out = ps.infer(at("graph"), run.model())
    assert torch.is_tensor(out) and len(out) == 60
    ps.explain(at("run"), vertex=0).page(at("page.html"))
    assert (tmp_path / "page.html").exists()
    assert ps.memory(at("graph"), **FEW).host > 0
    assert ps.open_partition(ps.cut(ps.load(at("graph")), ps.Cut(parts=2), at("parts")).path).parts == 2
    assert ps.open_partition(at("parts")).parts == 2
    assert findable({"graph": at("graph"), "run": at("other")}) == {
        "graph": str(tmp_path / "graph"),
        "run": str(tmp_path / "other"),
    }


def test_what_is_no_path_is_refused(tmp_path):
    with refused("invalid-document run"):
        ps.train(community_graph(60), run=3, **FEW)
    with refused("wrong-type"):
        ps.Run.open(3)
