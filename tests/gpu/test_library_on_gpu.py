"""Newer capabilities on a GPU: edges that carry something, the first layer's division, triples, a loop of one's own."""

import numpy as np
import pytest
import torch

import penstock as ps
from knowledge_graph import SCORER_CASES, SOFTMAX, TRIPLES, family_graph
from training_graphs import carrying_graph, clusters_by_number, community_graph, lines_of, trained, typed_graph

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda_device")]
FIELDS = {"epochs": 3, "batch_size": 32, "fanouts": [4, 3], "hidden": 8, "threads": 2}


def losses(run):
    return [line["loss"] for line in lines_of(run.path) if line["kind"] == "epoch"]


def assert_the_hosts(graph, folder, rtol=1e-4, gpu=None, **fields):
    expected = losses(trained(graph, folder / "cpu", **fields, device="cpu"))
    found = losses(trained(graph, folder / "gpu", **fields, **(gpu or {}), device="cuda"))
    np.testing.assert_allclose(found, expected, rtol=rtol)


@pytest.mark.parametrize("sampler", ["neighbour", "drawn there", "whole"])
@pytest.mark.parametrize(
    "fields",
    [{"model": model, "edge_weight": "auto"} for model in ("gcn", "sage", "gin", "rgcn")]
    + [{"model": model, "edge_features": ["edge_attr", "far"]} for model in ("gatv2", "gine", "transformer")],
    ids=str,
)
def test_edges_that_carry_something(tmp_path, fields, sampler):
    shape = {"sampler": "whole", "layers": 2} if sampler == "whole" else {}
    kept = {key: value for key, value in FIELDS.items() if sampler != "whole" or key != "fanouts"}
    drawn = {"sample_on": "device"} if sampler == "drawn there" else {}
    assert_the_hosts(carrying_graph(), tmp_path, gpu=drawn, **kept, **shape, **fields)


@pytest.mark.parametrize("way", ["auto", "device", "gather", "aggregate", "transform", "divided"])
@pytest.mark.parametrize("model", ["sage", "gcn", "gin"])
@pytest.mark.parametrize("features", ["host", "pinned"])
def test_the_first_layer_divided_with_the_host(tmp_path, way, model, features):
    placement = {"topology": "host", "features": features}
    try:
        assert_the_hosts(
            community_graph(),
            tmp_path,
            rtol=1e-3,
            gpu={"first_layer": way, "placement": placement},
            **FIELDS,
            model=model,
        )
    except ps.PenstockError as error:
        assert error.code == "unsupported-combination", error
        pytest.skip(str(error))


@pytest.mark.parametrize("name", SCORER_CASES)
def test_triples(tmp_path, name):
    assert_the_hosts(family_graph(), tmp_path, rtol=1e-3, epochs=4, evaluate_every=0, **TRIPLES, **SCORER_CASES[name])


@pytest.mark.parametrize(
    "fields",
    [
        {"scorer": "distmult", "negatives": "joint", "negatives_group": 16, "negatives_power": 0.75, "filtered": False},
        {"scorer": "complex", "optimiser": "Adagrad", "embedding_optimiser": "adagrad", "capture": False, **SOFTMAX},
        {"scorer": "complex", "optimiser": "Adagrad", "embedding_optimiser": "adagrad", "filtered": False, **SOFTMAX},
        {"scorer": "rotate", "optimiser": "Adagrad", "schedule": "StepLR", "schedule_options": {"step_size": 1}},
    ],
    ids=str,
)
def test_triples_captured_and_launched(tmp_path, fields):
    fields = {**TRIPLES, "batch_size": 24, "epochs": 5, "evaluate_every": 0, **fields}
    assert_the_hosts(family_graph(), tmp_path, rtol=1e-3, **fields)
    (why,) = [trained(family_graph(), tmp_path / "why", **fields, device="cuda").result["placement"]["why"]]
    assert any("Batches of triples are drawn on the device" in each for each in why) == fields.get("capture", True)


@pytest.mark.parametrize("name", ["complex", "rotate"])
def test_a_captured_run_of_triples_that_goes_on_has_the_same_bits(tmp_path, name):
    fields = {**TRIPLES, "batch_size": 24, "evaluate_every": 0, **SCORER_CASES[name], "device": "cuda"}
    whole = trained(family_graph(), tmp_path / "whole", epochs=4, **fields)
    first = trained(family_graph(), tmp_path / "parts", epochs=2, **fields)
    again = ps.train(family_graph(), resume=first.path, epochs=4)
    assert losses(again) == losses(whole)
    assert again.test == whole.test


def test_an_encoder_of_triples(tmp_path):
    fields = {
        "task": "knowledge-graph-completion",
        "model": "rgcn",
        "scorer": "distmult",
        "embedding": 8,
        "hidden": 8,
        "epochs": 2,
        "fanouts": [4],
        "layers": 1,
        "batch_size": 40,
        "evaluate_every": 0,
    }
    assert_the_hosts(family_graph(), tmp_path, rtol=1e-3, **fields)


@pytest.mark.parametrize("sampler", ["neighbour", "labor", "cluster"])
def test_a_loaders_batches_are_the_hosts(sampler, tmp_path):
    graph = community_graph()
    fields = {"sampler": sampler, "fanouts": [4, 3], "batch_size": 16, "layers": 2, "seed": 3}
    if sampler == "cluster":
        fields |= {"clusters": clusters_by_number(graph, 6, tmp_path / "clusters"), "batch_size": 2}
    drawn = [[batch for _ in range(2) for batch in ps.loader(graph, device=d, **fields)] for d in ("cpu", "cuda")]
    for ours, theirs in zip(*drawn, strict=True):
        assert theirs.x.is_cuda and theirs.edge_index.is_cuda and theirs.y.is_cuda
        assert torch.equal(ours.n_id, theirs.n_id.cpu())
        assert torch.equal(ours.x, theirs.x.cpu())
        assert torch.equal(ours.y, theirs.y.cpu())
        order = [torch.argsort(each[0] * (1 << 20) + each[1]) for each in (ours.edge_index, theirs.edge_index.cpu())]
        assert torch.equal(ours.edge_index[:, order[0]], theirs.edge_index.cpu()[:, order[1]])


@pytest.mark.parametrize("sample_on", ["host", "device"])
def test_a_loaders_rows_of_edges_are_the_hosts(sample_on):
    fields = {"fanouts": [4, 3], "batch_size": 16, "edge_features": ["edge_attr", "far"], "edge_weight": "edge_weight"}
    there = {"device": "cuda", "sample_on": sample_on}
    drawn = [
        [each for _ in range(2) for each in ps.loader(carrying_graph(), **where, **fields)]
        for where in ({"device": "cpu"}, there)
    ]
    for ours, theirs in zip(*drawn, strict=True):
        assert torch.equal(ours.edge_index, theirs.edge_index.cpu())
        assert torch.equal(ours.edge_attr, theirs.edge_attr.cpu())
        assert torch.equal(ours.e_id, theirs.e_id.cpu())
        assert torch.equal(ours.edge_weight, theirs.edge_weight.cpu())


def test_rows_of_edges_lie_where_the_lists_lie(tmp_path):
    fields = {
        **FIELDS,
        "model": "gatv2",
        "edge_features": ["edge_attr", "far"],
        "device": "cuda",
        "sample_on": "device",
    }
    found = trained(carrying_graph(), tmp_path / "run", **fields).result["placement"]
    assert (found["topology"], found["features"]) == ("device", "device")


def test_a_loop_over_blocks_learns_what_the_host_learns():
    graph = community_graph()
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = ps.nn.GraphSAGE(graph, hidden=8, layers=2, dropout=0.0).to(device)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        history = []
        for batch in ps.loader(graph, fanouts=[4, 3], batch_size=16, device=device):
            loss = torch.nn.functional.cross_entropy(model(batch.blocks, batch.x), batch.y[: batch.batch_size])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            history.append(float(loss.detach()))
        found.append((history, ps.infer(graph, model, device=device).cpu()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-3)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-2, atol=1e-3)


def test_typed_batches_of_a_loader():
    graph = typed_graph()
    drawn = [list(ps.loader(graph, fanouts=[3, 3], batch_size=16, device=device)) for device in ("cpu", "cuda")]
    for ours, theirs in zip(*drawn, strict=True):
        assert ours.n_id_dict.keys() == theirs.n_id_dict.keys()
        for name, ids in ours.n_id_dict.items():
            assert torch.equal(ids, theirs.n_id_dict[name].cpu())
        for name, rows in ours.x_dict.items():
            assert torch.equal(rows, theirs.x_dict[name].cpu())
