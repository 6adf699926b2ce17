"""`penstock explain` and `ps.explain`: exact predictions, planted motifs, repeatable masks, refusals, JSON and page."""

import json

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.cli.main import run as run_command
from penstock.train.explain_run import ExplainOptions, explain_run, explain_session, vertex_number
from penstock.train.use import open_session
from refusals import refused
from training_graphs import carrying_graph, community_graph, labelled_edges, lists_of, trained, typed_graph

SHORT = ExplainOptions(steps=5)


def exact(run, graph, name, row):
    """The probability of the predicted class by exact inference."""
    out = open_session(run.path, graph).inference().outputs({name: np.array([row])})[name]
    return float(out.softmax(1).max())


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "gin", "mlp"])
def test_the_explained_prediction_is_that_of_exact_inference(tmp_path, model):
    graph = community_graph(60, degree=3)
    run = trained(graph, tmp_path / "run", model=model, epochs=1)
    found = explain_run(run.path, 7, graph=graph, options=SHORT)
    assert found.score == pytest.approx(exact(run, graph, "node", 7), abs=1e-5)
    assert len(found.edges) == found.neighbourhood_edges > 0
    assert [edge.destination for edge in found.edges if edge.hop == 1] == [7] * int(np.diff(graph.indptr)[7])
    assert len(found.columns) == 4 and len(found.losses) == 5


@pytest.mark.parametrize("model", ["rgcn", "gat"])
def test_several_types(tmp_path, model):
    graph = typed_graph(60)
    run = trained(graph, tmp_path / "run", model=model, epochs=1)
    found = explain_run(run.path, 5, graph=graph, options=SHORT)
    assert found.score == pytest.approx(exact(run, graph, "paper", 5), abs=1e-5)
    assert {edge.relation for edge in found.edges} == {"writes", "by", "cites"}
    assert {column.node_type for column in found.columns} == {"paper"}
    assert "author" in found.notes[0]
    with refused("mismatched-inputs paper author"):
        explain_run(run.path, 5, "author", graph=graph)
    with refused("unknown-name papr paper"):
        explain_run(run.path, 5, "papr", graph=graph)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"model": "gine", "edge_features": ["edge_attr", "far"]}, marks=pytest.mark.long),
        pytest.param({"model": "gatv2", "edge_features": ["edge_attr", "far"], "heads": 2}, marks=pytest.mark.long),
        {"model": "transformer", "edge_features": ["edge_attr", "far"], "heads": 2},
        {"model": "gcn", "edge_weight": "edge_weight"},
        pytest.param({"model": "sage", "edge_weight": "edge_weight"}, marks=pytest.mark.long),
    ],
)
def test_models_that_read_what_edges_carry(tmp_path, fields):
    """The prediction is that of exact inference, masks of all edges and columns count, and the page shows them."""
    graph = carrying_graph()
    # With seed 0 no unit of the small GINE passes anything on, so that nothing could be explained.
    run = trained(graph, tmp_path / "run", seed=1, **fields)
    found = ps.explain(run, graph, 7, steps=10)
    assert found.score == pytest.approx(exact(run, graph, "node", 7), abs=1e-5)
    assert len(found.edges) == found.neighbourhood_edges and len({edge.mask for edge in found.edges}) > 1
    named = {(column.field, column.column, column.relation) for column in found.edge_columns}
    wanted = {*(("edge_attr", place, "to") for place in range(3)), ("far", 0, "to")}
    assert named == (wanted if "edge_features" in fields else set())
    page = found.page(tmp_path / "page.html").read_text()
    assert ("Columns of edges" in page) == ("edge_features" in fields)
    assert [column["field"] for column in found.fields()["edge_columns"]] == [one.field for one in found.edge_columns]


def test_a_planted_column_of_edges_is_found(tmp_path):
    """Vertices have no features that say anything: a class is what the first column of the edges says."""
    rng, count, width = np.random.default_rng(0), 300, 4
    y = rng.integers(0, 2, count)
    dst = np.repeat(np.arange(count), 3)
    rows = rng.normal(0, 0.1, (len(dst), width)).astype(np.float32)
    rows[:, 1] = np.where(y[dst] == 1, 2.0, -2.0)
    lists = lists_of(rng.integers(0, count, len(dst)), dst, count, count, edge_attr=rows)
    splits = {"train": np.arange(0, 200), "val": np.arange(200, 250), "test": np.arange(250, 300)}
    nodes = ps.NodeSet(count, {"x": np.ones((count, 2), np.float32), "y": y}, splits)
    graph = ps.Graph({"node": nodes}, {("node", "to", "node"): lists}, "carried")
    how = {"model": "gine", "edge_features": ["edge_attr"], "fanouts": [-1], "lr": 0.03, "dropout": 0.0}
    run = trained(graph, tmp_path / "run", **{**how, "epochs": 6})
    assert run.test["accuracy"] > 0.9
    found = ps.explain(run, graph, 260)
    assert found.edge_columns[0].column == 1 and found.edge_columns[0].mask > 0.5


class Carrying(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.edge = torch.nn.Linear(4, 4), torch.nn.Linear(3, 4)

    def forward(self, x, edge_index, edge_attr, edge_weight):
        messages = (x[edge_index[0]] + self.edge(edge_attr)) * edge_weight[:, None]
        return self.linear(x.index_add(0, edge_index[1], messages))


def test_a_module_that_reads_both(tmp_path):
    graph = carrying_graph()
    fields = {"edge_features": ["edge_attr"], "edge_weight": "edge_weight", "fanouts": [-1]}
    torch.manual_seed(0)
    found = ps.explain(Carrying(), graph, 7, steps=10, **fields)
    assert len(found.edge_columns) == 3 and len({edge.mask for edge in found.edges}) > 1


def star(leaves=8):
    """A vertex that reads several others, of which the first two alone say its class; and pairs to learn that from."""
    rng = np.random.default_rng(1)
    count = 400
    y = rng.integers(0, 2, count)
    x = np.zeros((count, 6), np.float32)
    src, dst = [], []
    for vertex in range(0, count, leaves + 1):
        around = np.arange(vertex + 1, min(vertex + leaves + 1, count))
        src += around.tolist()
        dst += [vertex] * len(around)
        # Two leaves carry the class in column 1 or 2, the others noise in columns 3 to 5.
        x[around[:2], 1 + y[vertex]] = 4.0
        x[around[2:], 3:] = rng.normal(0, 0.01, (len(around[2:]), 3))
    centres = np.arange(0, count, leaves + 1)
    splits = {"train": centres[:-10], "val": centres[-10:-5], "test": centres[-5:]}
    nodes = ps.NodeSet(count, {"x": x, "y": y}, splits)
    return ps.Graph({"node": nodes}, {("node", "to", "node"): lists_of(src, dst, count, count)}, "stars")


def test_a_planted_motif_is_found_and_one_seed_gives_the_same(tmp_path):
    graph = star()
    how = {"fanouts": [-1], "hidden": 8, "lr": 0.3, "dropout": 0.0, "batch_size": 8}
    run = trained(graph, tmp_path / "run", model="sage", epochs=8, **how)
    centre = int(graph.split("test")[0])
    first, again = (ps.explain(run, graph, centre) for _ in range(2))
    assert first == again
    assert first != ps.explain(run, graph, centre, seed=1)
    assert {edge.source for edge in first.edges[:2]} == {centre + 1, centre + 2}
    assert first.edges[1].mask > 0.5 > first.edges[2].mask
    assert first.columns[0].column == 1 + graph.y[centre]
    assert first.masked_score > 0.75 > first.rest_score


def test_a_model_is_explained_like_its_run(tmp_path):
    graph = community_graph(60, degree=3)
    run = trained(graph, tmp_path / "run", model="gcn", epochs=1)
    session = open_session(run.path, graph)
    of_run = ps.explain(run.path, graph, 3, steps=5)
    assert ps.explain(session.model, graph, 3, steps=5) == of_run
    # Generators and the model's own state are as before.
    assert session.model.training and all(weight.grad is None for weight in session.model.parameters())


def test_ids_hops_and_splits(tmp_path):
    graph = community_graph(60, degree=3, ids=ps.StringIds.of([f"p{i}" for i in range(60)]))
    run = trained(graph, tmp_path / "run", epochs=1)
    session = open_session(run.path, graph)
    near = explain_session(session, "p7", options=SHORT._replace(hops=1))
    assert near.vertex == "p7" and {edge.destination for edge in near.edges} == {"p7"}
    assert len(near.edges) < near.neighbourhood_edges
    (split,) = [name for name in ("train", "val", "test") if 7 in graph.split(name)]
    assert explain_session(session, "p7", options=SHORT._replace(split=split)).vertex == "p7"
    other = "val" if split != "val" else "train"
    with refused(f"mismatched-inputs p7 {other}"):
        explain_session(session, "p7", options=SHORT._replace(split=other))
    with refused("id-out-of-range q7 p0 p59"):
        explain_session(session, "q7", options=SHORT)
    with refused("value-out-of-range 3 2"):
        explain_session(session, "p7", options=SHORT._replace(hops=3))
    with refused("too-large p7 --max-edges"):
        explain_session(session, "p7", options=SHORT._replace(max_edges=2))


def test_numbers_of_vertices():
    nodes = ps.NodeSet(3, ids=np.array([30, 10, 20]))
    assert vertex_number(nodes, "10", "node") == vertex_number(nodes, 10, "node") == 1
    for wrong in ("11", "x", "-1"):
        with refused("id-out-of-range"):
            vertex_number(nodes, wrong, "node")


def test_other_refusals(tmp_path):
    graph = labelled_edges()
    run = trained(graph, tmp_path / "run", task="edge-classification", label="kind", epochs=1)
    with refused("unsupported-combination edges"):
        explain_run(run.path, 1, graph=graph)
    with refused("option-missing vertex"):
        ps.explain(run, graph)
    with refused("option-missing graph"):
        ps.explain(torch.nn.Linear(2, 2), None, 1)
    with refused("conflicting-options hidden"):
        ps.explain(run, graph, 1, hidden=3)


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, edge_index, edge_weight=None):
        messages = x[edge_index[0]] * (1 if edge_weight is None else edge_weight[:, None])
        return self.linear(x.index_add(0, edge_index[1], messages))


class Unweighted(Own):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index)


def test_modules_of_users(tmp_path):
    graph = community_graph(60, degree=3)
    found = ps.explain(Own(), graph, 3, fanouts=[-1], steps=5)
    assert found.neighbourhood_edges == len(found.edges) > 0
    with refused("unsupported-combination Unweighted edge_weight"):
        ps.explain(Unweighted(), graph, 3, fanouts=[-1], steps=5)


def test_the_command(tmp_path, monkeypatch, capsys):
    graph = typed_graph(60)
    graph.save(tmp_path / "graph")
    run = trained(str(tmp_path / "graph"), tmp_path / "run", epochs=1)
    page = tmp_path / "page.html"

    def command(*more):
        words = ["penstock", "explain", str(run.path), "--steps", "5", *more]
        monkeypatch.setattr("sys.argv", words)
        code = run_command()
        return code, capsys.readouterr()

    code, said = command("--vertex", "5", "--out", str(page), "--json")
    fields = json.loads(said.out)
    assert code == 0
    assert set(fields) == {
        *("vertex", "type", "prediction", "score", "masked_score", "rest_score", "hops", "neighbourhood", "steps"),
        *("loss", "edges", "columns", "edge_columns", "notes", "page", "seconds", "peak_rss_mb", "label", "classes"),
    }
    assert (fields["vertex"], fields["type"], fields["page"], fields["steps"]) == (5, "paper", str(page), 5)
    assert set(fields["edges"][0]) == {
        *("mask", "source", "destination", "hop", "relation", "source_type", "destination_type"),
    }
    assert set(fields["columns"][0]) == {"mask", "column", "node_type", "value"}
    assert fields["neighbourhood"]["edges"] == len(fields["edges"])
    text = page.read_text()
    assert text.count('class="edge"') == min(40, len(fields["edges"])) and 'class="c1 centre"' in text
    # After five steps all masks are about alike, which three bars of the same length would not say.
    assert "masks are alike" in text and text.count("<span>column ") + text.count("<span>paper ") == 3
    code, said = command("--vertex", "5", "--out", str(page), "--json")
    assert (code, json.loads(said.err)["code"]) == (2, "file-exists")
    code, said = command("--vertex", "5")
    assert code == 0 and "destination" in said.out and "paper" in said.out
