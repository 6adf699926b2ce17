"""What a model reads of a vertex: a field named by mistake is no reason to learn embeddings."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penstock import PenstockError
from penstock.train.dataset.inputs import Inputs
from penstock.train.job import make_job
from refusals import refused
from training_graphs import community_graph, typed_graph


@pytest.mark.parametrize("name, said", [("xx", "did you mean 'x'?"), ("nope", "use one of x, y")])
def test_features_that_no_type_has_are_refused(name, said):
    for graph in (community_graph(), typed_graph()):
        with pytest.raises(PenstockError) as failure:
            Inputs(graph, make_job({"features": name}))
        assert f"features {name!r}" in str(failure.value)
        assert said in str(failure.value)


def test_features_named_on_a_graph_without_fields():
    graph = community_graph()
    graph.nodes["node"].fields.clear()
    with refused("field-missing features"):
        Inputs(graph, make_job({"features": "nope"}))


def test_features_of_another_name_are_read():
    graph = community_graph(fields={"other": np.ones((200, 7), np.float32)})
    inputs = Inputs(graph, make_job({"features": "other"}))
    assert (inputs.widths, inputs.tables, inputs.note) == ({"node": 7}, {}, None)


def test_a_graph_without_features_says_that_embeddings_are_learned():
    inputs = Inputs(community_graph(features=False), make_job({"embedding": 8}))
    assert list(inputs.tables) == ["node"]
    assert inputs.note == "No vertices have features 'x': an embedding of 8 numbers is learned for each."
    # Some types with features, others without: that is how such graphs are.
    assert Inputs(typed_graph(), make_job({})).note is None


@pytest.mark.parametrize(
    ("state", "code"),
    [
        *((state, "damaged-file") for state in (None, [], {"node": None}, {"node": [1, 2]})),
        *(({"node": state}, "damaged-file") for state in ({"steps": "x"}, {"steps": -1}, {})),
        ({}, "mismatched-inputs"),
    ],
    ids=str,
)
def test_tables_that_are_none_are_refused(state, code):
    inputs = Inputs(community_graph(features=False), make_job({"embedding": 8}))
    with refused(f"{code} checkpoint"):
        inputs.restore(state)


def test_tables_come_back():
    inputs = Inputs(community_graph(features=False), make_job({"embedding": 8}))
    state = copy.deepcopy(inputs.state())
    rows = inputs.tables["node"].rows
    rows += 1
    inputs.restore(state)
    np.testing.assert_array_equal(rows, state["node"]["rows"])


@pytest.mark.parametrize("time", [None, "node:when"])
def test_a_vertex_in_several_trees_counts_once_in_the_norm(time):
    """Its gradient is the sum over its rows, as the owner of its row has it in a cluster."""
    job = make_job({"embedding": 3, "time": time, "embedding_optimiser": "adagrad"})
    clipped, plain = (Inputs(community_graph(features=False), job) for _ in range(2))
    ids = np.array([5, 3, 5, 9, 5] if time else [5, 3, 7, 9, 4])
    gradients = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    batch, rows = SimpleNamespace(vertices={"node": ids}), torch.zeros(5, 3, requires_grad=True)
    rows.grad = gradients.clone()
    (learned,) = clipped.learned_rows(batch, {"node": rows})
    sums = torch.zeros(200, 3).index_add_(0, torch.from_numpy(ids), gradients)
    norm = torch.nn.utils.clip_grad_norm_([learned], 1e9)
    torch.testing.assert_close(norm, sums.norm())
    # What is learned from then on is the same.
    clipped.learn(batch, {"node": rows})
    rows.grad = gradients.clone()
    plain.learn(batch, {"node": rows})
    np.testing.assert_allclose(clipped.tables["node"].rows, plain.tables["node"].rows, rtol=1e-6)
