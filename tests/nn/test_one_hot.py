"""RGCN on one-hot input: the rows of a vertex in PyG's weight matrices are its embedding here."""

import numpy as np
import pytest
import torch

from penstock import Graph, NodeSet
from penstock.nn import build_model
from penstock.nn.layer_table import model_options
from penstock.nn.layers import OneHotRGCNLayer
from penstock.sampling import BatchKey, TypedNeighbourSampler
from penstock.train.job import job_of, make_job
from refusals import refused
from training_graphs import facts_of, lists_of, newest_checkpoint, trained, typed_graph

ENTITIES, WIDTH, BASES = 30, 4, 3


def knowledge_graph():
    """Triples between entities of one type, in three relations."""
    rng = np.random.default_rng(0)
    edges = {("e", f"r{k}", "e"): lists_of(*rng.integers(0, ENTITIES, (2, 50)), ENTITIES, ENTITIES) for k in range(3)}
    return Graph({"e": NodeSet(ENTITIES)}, edges, "triples")


def test_it_is_pygs_layer_without_features():
    from torch_geometric.nn import RGCNConv

    torch.manual_seed(0)
    graph = knowledge_graph()
    theirs = RGCNConv(ENTITIES, WIDTH, 3, num_bases=BASES)
    ours = OneHotRGCNLayer(WIDTH, ["e"], list(graph.edges), BASES)
    with torch.no_grad():
        ours.mixture.copy_(theirs.comp)
        ours.own[0].bias.copy_(theirs.bias)
    x = torch.cat([theirs.root, *theirs.weight.unbind()], 1).detach().requires_grad_()
    batch = TypedNeighbourSampler(graph, [-1]).sample({"e": np.arange(ENTITIES)}, BatchKey(0, 0, 0))
    out = ours(batch.blocks[0], {"e": x[torch.from_numpy(batch.vertices["e"]).long()]})["e"]
    ends, kinds = [], []
    for place, lists in enumerate(graph.edges.values()):
        targets = np.repeat(np.arange(ENTITIES), np.diff(lists.indptr))
        ends.append(np.stack([lists.indices, targets]))
        kinds += [place] * lists.count
    expected = theirs(None, torch.from_numpy(np.concatenate(ends, 1)).long(), torch.tensor(kinds))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    grads = torch.cat([theirs.root.grad, *theirs.weight.grad.unbind()], 1)
    torch.testing.assert_close(x.grad, grads, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.mixture.grad, theirs.comp.grad, rtol=1e-4, atol=1e-5)


def test_a_job_trains_with_it_and_keeps_its_width(tmp_path):
    graph = typed_graph()
    del graph.nodes["paper"].fields["x"]
    fields = {
        "model": "rgcn",
        "embedding": "one-hot",
        "bases": 3,
        "hidden": 8,
        "embedding_decay": 1e-3,
        "weight_decay": 5e-4,
    }
    run = trained(graph, tmp_path / "run", **fields)
    assert facts_of(run.path)["graph"]["features"] == {"paper": 32, "author": 32}
    assert newest_checkpoint(run.path)["tables"]["author"]["rows"].shape == (50, 32)


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"model": "sage", "bases": 3}, "invalid-document"),
        ({"model": "rgcn"}, "invalid-document"),
        ({"model": "rgcn", "bases": 3, "hidden": 8, "embedding": "one"}, "invalid-document"),
    ],
)
def test_jobs_that_do_not_fit_are_refused(fields, said):
    with refused(said):
        make_job({"embedding": "one-hot", **fields})


def test_a_job_is_read_as_it_was_written():
    job = make_job({"model": "rgcn", "bases": 3, "hidden": 8, "embedding": "one-hot"})
    assert job.embedding_width == 32 and job_of(job.model_dump()) == job


def test_features_and_a_single_layer_are_refused():
    options = model_options(model="rgcn", embedding="one-hot", bases=3, hidden=8, layers=2)
    kinds = [("a", "to", "b")]
    with refused("unsupported-combination b"):
        build_model(options, {"a": 32, "b": 5}, 3, kinds)
    single = options.model_copy(update={"layers": 1})
    with refused("unsupported-combination"):
        build_model(single, {"a": 32, "b": 32}, 3, kinds)
