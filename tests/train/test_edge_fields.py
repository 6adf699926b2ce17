"""Edge weights and features reach models and modules: the same outputs sampled, whole and by exact inference."""

import numpy as np
import pytest
import torch
from torch import nn

import penstock as ps
from penstock import EdgeSet, Graph
from penstock.train.build import make_session
from penstock.train.job import job_of
from refusals import refused
from training_graphs import SMALL, carrying_graph, lines_of, trained, typed_graph

ALL = {**SMALL, "fanouts": [-1, -1], "dropout": 0.0, "epochs": 1}


def made_session(graph, module=None, **fields):
    return make_session(job_of({**ALL, "graph": "given", **fields}), graph, module)


def sampled_outputs(session, seeds=16):
    """The model's rows for the first training items, of a batch through the carrier."""
    from penstock.pipeline.schedule import Schedule

    planned = next(Schedule(session.task.items, seeds, 0).from_position())
    batch = session.task.sample(planned)
    session.inputs.carrier.gather(batch)
    session.inputs.carrier.transfer(batch)
    session.model.eval()
    with torch.no_grad():
        return batch.seeds["node"], session.encode(batch, session.inputs.complete(batch))


WEIGHTED = [("gcn", {}), ("sage", {}), ("sage", {"aggregate": "sum"}), ("gin", {}), ("rgcn", {})]
FEATURED = ["gatv2", "gine", "transformer"]


@pytest.mark.parametrize(
    "fields",
    [{"model": model, "edge_weight": "auto", **more} for model, more in WEIGHTED]
    + [{"model": model, "edge_features": ["edge_attr", "far"]} for model in FEATURED],
    ids=str,
)
def test_batches_of_whole_lists_and_exact_inference_agree(fields):
    session = made_session(carrying_graph(), **fields)
    seeds, rows = sampled_outputs(session)
    exact = session.inference().outputs({"node": np.sort(seeds)})["node"]
    torch.testing.assert_close(rows[np.argsort(seeds)], exact, rtol=1e-4, atol=1e-5)
    plain = made_session(
        carrying_graph(),
        **{k: v for k, v in fields.items() if not k.startswith("edge")}
        | ({"edge_features": ["far"]} if fields["model"] == "gine" else {}),
    )
    if "edge_weight" in fields:
        plain.model.load_state_dict(session.model.state_dict())
        assert not torch.allclose(sampled_outputs(plain)[1], rows, atol=1e-3), "the weights change something"


def test_weighted_gcn_is_pygs():
    pyg = pytest.importorskip("torch_geometric.nn")
    graph = carrying_graph()
    session = made_session(graph, model="gcn", edge_weight="edge_weight", fanouts=[-1])
    module = pyg.GCNConv(4, session.task.out)
    layer = session.model.convolutions[0]
    with torch.no_grad():
        module.lin.weight.copy_(layer.linear.weight)
        module.bias.copy_(layer.bias)
    (edges,) = graph.edges.values()
    targets = np.repeat(np.arange(120), np.diff(edges.indptr))
    index = torch.from_numpy(np.stack([edges.indices, targets]).astype(np.int64))
    x = torch.from_numpy(graph.nodes["node"].fields["x"])
    theirs = module(x, index, torch.from_numpy(edges.fields["edge_weight"]))
    ours = session.inference().outputs({"node": np.arange(120)})["node"]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fields", [{"model": "gcn", "edge_weight": "auto"}, {"model": "gine", "edge_features": ["auto"]}], ids=str
)
def test_a_step_on_the_whole_graph_is_a_batch_of_everything(tmp_path, fields):
    graph = carrying_graph()
    how = {**fields, "dropout": 0.0, "epochs": 3, "lr": 0.01, "fanouts": [-1, -1]}
    one = trained(graph, tmp_path / "batches", batch_size=1000, **how)
    other = trained(graph, tmp_path / "whole", sampler="whole", layers=2, **how)
    losses = [[line["loss"] for line in lines_of(run.path) if line["kind"] == "epoch"] for run in (one, other)]
    assert len(losses[0]) == 3
    np.testing.assert_allclose(*losses, rtol=1e-5)


class Carried(nn.Module):
    """Reads weights and features of edges, in the plainest way."""

    def __init__(self, inputs=4, outputs=4, width=3):
        super().__init__()
        self.own, self.edge = nn.Linear(inputs, outputs), nn.Linear(width, outputs)

    def forward(self, x, edge_index, edge_weight, edge_attr):
        source, target = edge_index
        messages = (self.own(x)[source] + self.edge(edge_attr)) * edge_weight[:, None]
        return self.own(x).index_add(0, target, messages)


@pytest.mark.parametrize(
    "sampler", [{}, {"sampler": "cluster", "clusters": 4, "layers": 1}, {"sampler": "whole", "layers": 1}], ids=str
)
def test_modules_get_them_by_name(tmp_path, sampler):
    torch.manual_seed(0)
    module = Carried()
    before = module.edge.weight.detach().clone()
    how = {"edge_weight": "auto", "edge_features": "auto", "fanouts": [4], **sampler}
    run = trained(carrying_graph(), tmp_path / "run", model=module, **how)
    assert set(run.test) >= {"accuracy"} and not torch.equal(module.edge.weight, before)


def test_modules_see_each_edge_with_its_own_rows():
    """Whatever was drawn: what arrives for an edge is what the graph has for it."""
    graph, seen = carrying_graph(), []
    (edges,) = graph.edges.values()

    class Looks(Carried):
        def forward(self, x, edge_index, edge_weight, edge_attr):
            seen.append((edge_index, edge_weight, edge_attr))
            return super().forward(x, edge_index, edge_weight, edge_attr)

    session = made_session(graph, Looks(), edge_weight="edge_weight", edge_features="edge_attr", fanouts=[3, 2])
    from penstock.pipeline.schedule import Schedule

    batch = session.task.sample(next(Schedule(session.task.items, 8, 0).from_position()))
    session.inputs.carrier.gather(batch)
    session.inputs.carrier.transfer(batch)
    session.encode(batch, session.inputs.complete(batch))
    (source, target), weight, features = seen[-1]
    vertices = batch.vertices["node"]
    for s, t, w, row in zip(vertices[source], vertices[target], weight, features, strict=True):
        places = edges.indptr[t] + np.flatnonzero(edges.indices[edges.indptr[t] : edges.indptr[t + 1]] == s)
        assert any(
            w == edges.fields["edge_weight"][p] and np.array_equal(row, edges.fields["edge_attr"][p].astype(np.float32))
            for p in places
        )


@pytest.mark.parametrize("kind", ["GINEConv", "GATv2Conv", "TransformerConv"])
def test_pygs_layers_as_modules(tmp_path, kind):
    pyg = pytest.importorskip("torch_geometric.nn")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            own = {"GINEConv": lambda: pyg.GINEConv(nn.Linear(4, 4), edge_dim=3)}
            self.layer = own.get(kind, lambda: getattr(pyg, kind)(4, 4, edge_dim=3))()

        def forward(self, x, edge_index, edge_attr):
            return self.layer(x, edge_index, edge_attr)

    run = trained(carrying_graph(), tmp_path / "run", model=Net(), edge_features=["edge_attr"], fanouts=[4], epochs=1)
    assert run.test["accuracy"] > 0


def test_typed_modules_get_dictionaries(tmp_path):
    graph = typed_graph()
    kind = ("author", "writes", "paper")
    graph.edges[kind].fields["stars"] = np.random.default_rng(0).random((graph.edges[kind].count, 2)).astype(np.float32)
    widths = set()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = nn.Linear(3, 3)

        def forward(self, x_dict, edge_index_dict, edge_attr_dict):
            assert set(edge_attr_dict) == {kind}
            assert len(edge_attr_dict[kind]) == edge_index_dict[kind].shape[1]
            widths.add(edge_attr_dict[kind].shape[1])
            return {"paper": self.own(x_dict["paper"])}

    trained(graph, tmp_path / "run", model=Net(), edge_features="stars", epochs=1)
    assert widths == {2}


@pytest.mark.parametrize(
    "fields, code",
    [
        ({"edge_weight": "missing"}, "field-missing missing"),
        ({"edge_features": ["far", "missing"], "model": "gatv2"}, "field-missing missing"),
        ({"edge_weight": "far", "weight": "far"}, "conflicting-options edge_weight"),
        ({"edge_weight": "far", "model": "gat"}, "unsupported-combination edge_weight"),
        ({"edge_weight": "far", "aggregate": "max"}, "unsupported-combination max"),
        ({"edge_weight": "edge_attr"}, "wrong-type edge_attr"),
        ({"edge_features": ["far"]}, "unsupported-combination edge_features"),
        ({"model": "gine"}, "option-missing edge_features"),
        ({"edge_weight": "far", "sampler": "labor"}, "unsupported-combination labor"),
        ({"edge_features": ["far"], "model": "gatv2", "edge_width": 5}, "shape-mismatch edge_width"),
    ],
)
def test_what_cannot_be_is_refused(fields, code):
    with refused(code):
        made_session(carrying_graph(), **fields)


def test_modules_that_do_not_fit_are_refused():
    graph = carrying_graph()
    with refused("option-missing edge_weight auto"):
        made_session(graph, Carried(), edge_features=["edge_attr"])
    with refused("unsupported-combination edge_attr"):
        made_session(graph, nn.Bilinear(4, 4, 4), edge_features=["edge_attr"])
    (edges,) = graph.edges.values()
    del edges.fields["edge_attr"], edges.fields["edge_weight"]
    edges.fields["near"] = edges.fields["far"]
    with refused("option-missing far near"):
        made_session(graph, edge_weight="auto")


@pytest.mark.parametrize("sampler", ["fastgcn", "ladies", "labor", "saint-walk", "cluster"])
def test_all_samplers_keep_edges(tmp_path, sampler):
    how = {"clusters": 4, "layers": 2, **({"fanouts": [40, 40]} if sampler in ("fastgcn", "ladies") else {})}
    how |= {"batch_size": {"saint-walk": 40, "cluster": 4}.get(sampler, 16)}
    how = how if sampler != "labor" else {}
    run = trained(
        carrying_graph(), tmp_path / "run", model="gatv2", heads=2, edge_features=["far"], sampler=sampler, **how
    )
    assert run.test["accuracy"] > 0


def few_edges():
    """The carrying graph, in which all vertices but the first few have no neighbours."""
    graph = carrying_graph()
    ((kind, edges),) = graph.edges.items()
    indptr = np.minimum(edges.indptr, edges.indptr[20])
    fields = {name: values[: indptr[-1]] for name, values in edges.fields.items()}
    return Graph(graph.nodes, {kind: EdgeSet(indptr, edges.indices[: indptr[-1]], fields)}, "few")


@pytest.mark.covering(1)
@pytest.mark.parametrize("fields", [{"batch_size": 4}, {"sampler": "whole", "bins": 6, "layers": 2}], ids=str)
@pytest.mark.parametrize("model", FEATURED)
def test_batches_and_bins_without_edges(tmp_path, model, fields):
    few = {"fanouts": [3, 2]} if "sampler" not in fields else {}
    job = {**SMALL, "epochs": 1, **fields, **few}
    run = trained(few_edges(), tmp_path / "run", model=model, edge_features=["edge_attr", "far"], **job)
    assert np.isfinite([line["loss"] for line in lines_of(run.path) if line["kind"] == "epoch"]).all()


def test_a_loaders_batches_without_edges():
    found = list(ps.loader(few_edges(), fanouts=[3, 2], batch_size=4, edge_features=["edge_attr", "far"]))
    assert any(batch.num_edges == 0 for batch in found)
    assert all(batch.edge_attr.shape == (batch.num_edges, 4) for batch in found)
