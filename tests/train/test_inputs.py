"""What a model reads of a vertex: a field named by mistake is no reason to learn embeddings."""

import copy

import numpy as np
import pytest

from penstock import PenstockError
from penstock.train.inputs import Inputs
from penstock.train.job import make_job
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
    with pytest.raises(PenstockError, match="leave out `features`"):
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
    "state",
    [None, [], {"node": None}, {"node": [1, 2]}, {"node": {"steps": "x"}}, {"node": {"steps": -1}}, {"node": {}}, {}],
    ids=str,
)
def test_tables_that_are_none_are_refused(state):
    inputs = Inputs(community_graph(features=False), make_job({"embedding": 8}))
    with pytest.raises(PenstockError, match="checkpoint"):
        inputs.restore(state)


def test_tables_come_back():
    inputs = Inputs(community_graph(features=False), make_job({"embedding": 8}))
    state = copy.deepcopy(inputs.state())
    rows = inputs.tables["node"].rows
    rows += 1
    inputs.restore(state)
    np.testing.assert_array_equal(rows, state["node"]["rows"])
