"""Names in graph.json and partition.json become file names: those that lead elsewhere are refused unread."""

import json

import numpy as np
import pytest

from penstock import Cut, EdgeSet, Graph, NodeSet, cut, open_partition
from refusals import refused


def a_graph(node_type="node", relation="to", field="x"):
    nodes = {node_type: NodeSet(3, {field: np.ones((3, 2), np.float32)}, {"train": np.arange(3)})}
    return Graph(nodes, {(node_type, relation, node_type): EdgeSet(np.arange(4), np.arange(3, dtype=np.int32))})


def test_the_parent_folder_is_not_read(tmp_path):
    """`..` as a node type made nodes/.. of the folder: files beside nodes/ were taken for the type's."""
    a_graph().save(tmp_path / "graph")
    text = (tmp_path / "graph" / "graph.json").read_text()
    for name in ("field.x", "split.train"):
        (tmp_path / "graph" / "nodes" / "node" / f"{name}.npy").rename(tmp_path / "graph" / f"{name}.npy")
    (tmp_path / "graph" / "edges" / "node__to__node").rename(tmp_path / "graph" / "edges" / "..__to__..")
    (tmp_path / "graph" / "graph.json").write_text(text.replace('"node"', '".."').replace("node__to", "..__to"))
    opened = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("penstock.graph.folder.open_array", lambda path, *more: opened.append(path))
        with refused("invalid-value graph.json"):
            Graph.open(tmp_path / "graph")
    assert opened == []


@pytest.mark.parametrize("names", [{"node_type": ".."}, {"node_type": "a__b"}, {"relation": "."}, {"field": ""}])
@pytest.mark.parametrize("letter", ["\ud800", "é" * 40])
def test_names_that_are_no_file_names(names, letter):
    for given in (names, dict.fromkeys(names, letter)):
        with refused("invalid-value"):
            a_graph(**given)


def test_names_with_any_letters_come_back(tmp_path):
    graph = a_graph("päper/..", "wröte?", "x:y *").save(tmp_path / "graph")
    assert graph.node_types == ["päper/.."] and list(graph.nodes["päper/.."].fields) == ["x:y *"]


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda document: document["node_types"]["node"].update(first=2), "invalid-document 2 5 3"),
        (lambda document: document["node_types"]["node"].update(count=-1), "invalid-document count"),
        (lambda document: document["edge_types"]["node__to__node"].update(source="user"), "invalid-document user"),
        (lambda document: document["edge_types"]["node__to__node"].update(relation="of"), "invalid-document"),
        (
            lambda document: document["edge_types"]["node__to__node"].update(index_dtype="float32"),
            "invalid-document index_dtype",
        ),
        (lambda document: document["node_types"]["node"]["splits"].update({"\ud800": 3}), "invalid-value"),
    ],
)
def test_a_document_that_does_not_fit_together(tmp_path, change, said):
    a_graph().save(tmp_path / "graph")
    path = tmp_path / "graph" / "graph.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with refused(said):
        Graph.open(tmp_path / "graph")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda found: found.update(node_types={"..": found["node_types"]["node"]}), "invalid-value"),
        (lambda found: found.update(trainers=0), "invalid-document trainers"),
        (lambda found: found["node_types"]["node"].update(original_offset=1), "damaged-file 1 original.npy"),
        (lambda found: found["node_types"]["node"].update(ranges=[[], []]), "damaged-file"),
        (lambda found: found["node_types"]["node"].update(ranges=[[0, 2], [2, 4]]), "damaged-file"),
        (lambda found: found["node_types"]["node"].update(ranges=[[0, 3]]), "damaged-file"),
    ],
)
def test_a_partition_that_does_not_fit_together(tmp_path, change, said):
    cut(a_graph(), Cut(2, method="chunk"), tmp_path / "parts")
    path = tmp_path / "parts" / "partition.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with refused(said):
        open_partition(tmp_path / "parts")


def test_another_byte_order_is_refused(tmp_path):
    a_graph().save(tmp_path / "graph")
    path = tmp_path / "graph" / "nodes" / "node" / "field.x.npy"
    values = np.load(path)
    np.save(path, values.astype(values.dtype.newbyteorder()))
    with refused("wrong-type"):
        Graph.open(tmp_path / "graph")
