"""What people who come from PyG get wrong first: each is answered in a sentence that says what to write instead."""

import pytest
import torch

import penstock as ps
from in_process import command
from refusals import refused
from training_graphs import SMALL, community_graph

pytest.importorskip("torch_geometric.data")

FEW = {**SMALL, "epochs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return ps.train(community_graph(), run=str(tmp_path_factory.mktemp("held") / "run"), **FEW)


def data_with(**changes):
    data = community_graph().to_pyg()
    for name, value in changes.items():
        data[name] = value
    return data


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"num_neighbors": [4, 3]}, "unknown-name num_neighbors fanouts"),
        ({"hidden_channels": 8}, "unknown-name hidden_channels hidden"),
        ({"learning_rate": 0.1}, "unknown-name learning_rate 'lr'"),
        ({"model": "GraphSAGE"}, "invalid-document GraphSAGE 'sage'"),
        ({"loss": "cross_entropy"}, "invalid-value Loss cross_entropy FILE.py:NAME"),
        ({"loss": torch.nn.CrossEntropyLoss}, "wrong-type CrossEntropyLoss()"),
        ({"loss": lambda outputs, labels: outputs}, "shape-mismatch"),
        ({"loss": lambda outputs, labels: torch.tensor(1.0)}, "user-code-failed gradient"),
        ({"metrics": ["accuracy"]}, "duplicate accuracy metric"),
        ({"metrics": [lambda outputs, labels: outputs]}, "user-code-failed shape 4)"),
        ({"callbacks": [3]}, "wrong-type 3"),
    ],
)
def test_arguments_of_training(tmp_path, fields, expected):
    with refused(expected) as caught:
        ps.train(community_graph(300), run=str(tmp_path / "run"), **{**FEW, **fields})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "labels", [torch.zeros(50, dtype=torch.long), ["a"] * 200, torch.ones(1)], ids=["too few", "words", "whole graph"]
)
def test_labels_that_are_no_field_do_not_become_a_task_on_links(tmp_path, labels):
    data = data_with(y=labels)
    with refused("shape-mismatch 'y' link-prediction"):
        ps.train(data, run=str(tmp_path / "run"), **FEW)
    links = ps.train(data, run=str(tmp_path / "links"), task="link-prediction", **FEW)
    assert "mrr" in links.test


def test_arrays_of_the_wrong_length_are_counted():
    with refused("shape-mismatch data.train_mask 50 200"):
        ps.load(data_with(train_mask=torch.ones(50, dtype=torch.bool)))


def test_a_label_that_is_missing_is_pointed_at(tmp_path):
    graph = community_graph()
    vertex = int(graph.split("train")[0])
    graph.nodes["node"].fields["y"][vertex] = -1
    with refused(f"missing-data 'train' {vertex} 1 vertex"):
        ps.train(graph, run=str(tmp_path / "run"), **FEW)


class Frozen(torch.nn.Module):
    """A module whose outputs have no gradient."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, edge_index):
        return self.linear(x).detach()


class Without(torch.nn.Module):
    """A module without weights."""

    def forward(self, x, edge_index):
        return x


class OfData(torch.nn.Module):
    """A module that is called with a whole `Data`, as some of PyG's examples are."""

    def forward(self, data):
        return data.x


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Frozen(), "user-code-failed gradient detach()"),
        (Without(), "invalid-value parameters"),
        (3, "wrong-type int"),
    ],
)
def test_modules_that_cannot_learn(tmp_path, module, expected):
    with refused(expected):
        ps.train(community_graph(), module, run=str(tmp_path / "run"), **FEW)


def test_a_module_that_takes_the_data_is_told_how_it_is_called(tmp_path):
    module = OfData()
    module.weight = torch.nn.Parameter(torch.ones(1))
    with refused("user-code-failed forward(x, edge_index)"):
        ps.train(community_graph(), module, run=str(tmp_path / "run"), **FEW)


def test_a_device_of_torch_is_taken(tmp_path):
    graph, cpu = community_graph(), torch.device("cpu")
    run = ps.train(graph, run=str(tmp_path / "run"), **{**FEW, "device": cpu})
    assert run.job.device == "cpu"
    assert len(next(iter(ps.loader(graph, device=cpu, batch_size=8)))) == 8
    assert len(ps.infer(graph, run.model(), device=cpu)) == 200


def test_a_run_explains_on_the_graph_that_it_holds(run):
    assert ps.explain(run, vertex=7, steps=2).vertex == 7
    with refused("id-out-of-range 7000"):
        ps.explain(run, vertex=7000)


def test_what_a_run_is_asked(run):
    with refused("wrong-type 'test'"):
        run.evaluate(["val", "test"])
    with refused("shape-mismatch split='test'"):
        run.predict("test")
    with refused("shape-mismatch [3]"):
        run.predict(3)
    with refused("wrong-type mask"):
        run.predict(torch.ones(200, dtype=torch.bool))
    with refused("wrong-type node_type"):
        run.embed([1, 2])
    with refused("mismatched-inputs graph"):
        run.evaluate("test", community_graph(classes=5))


def test_models_of_blocks_say_what_they_are_called_with(run):
    data = data_with()
    with refused("wrong-type batch.blocks ps.infer"):
        run.model()(data.x, data.edge_index)


def test_vertices_given_to_a_loader():
    graph = community_graph()
    with refused("id-out-of-range 5000 199"):
        ps.loader(graph, [3, 5000])
    with refused("missing-data"):
        ps.loader(graph, [])
    with refused("missing-data"):
        ps.loader(graph, torch.zeros(200, dtype=torch.bool))
    with refused("unknown-name input_nodes split"):
        ps.loader(graph, input_nodes=[3])


def test_what_holds_graphs_but_is_none(tmp_path):
    for thing in ([data_with()], (data_with(),)):
        with refused("wrong-type dataset[0]"):
            ps.load(thing)
    for thing in ({"x": torch.ones(2, 2)}, torch.eye(3)):
        with refused("wrong-type Data(x=..., edge_index=...)"):
            ps.load(thing)
    (tmp_path / "data.pt").write_bytes(b"PK")
    with refused("wrong-file data.pt torch.load"):
        ps.load(tmp_path / "data.pt")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["--num_neighbors", "5,5"], "--num_neighbors: use --fanouts."),
        (["--weight-attr", "w"], "use --weight."),
        (["triples.tsv"], "--graph triples.tsv"),
    ],
)
def test_flags_and_files_of_the_command(tmp_path, monkeypatch, capsys, line, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "triples.tsv").write_text("a\tr\tb\n")
    code, _, said = command(monkeypatch, capsys, "train", *line)
    assert code == 2
    assert expected in said


def test_an_unknown_target_of_an_export_is_answered_with_the_nearest(run, tmp_path):
    with refused("invalid-value 'onx' 'onnx'"):
        run.export(tmp_path / "out", to="onx")
