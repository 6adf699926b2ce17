"""The graph folder: mapped, whole or not at all, and clear about what is wrong with it."""

import json
import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from penstock import EdgeSet, Graph, NodeSet, PenstockError
from penstock.graph.new_folders import new_folder
from random_graphs import assert_same_graph, directed_graph, graphs
from refusals import refused


@given(graphs())
def test_written_and_opened_is_the_same(tmp_path_factory, graph):
    folder = tmp_path_factory.mktemp("g") / "graph"
    graph.save(folder)
    assert_same_graph(Graph.open(folder), graph)


def test_opening_costs_the_same_for_any_size(tmp_path):
    """Memory allocated while opening must not grow with the graph (time is a benchmark's business)."""
    peaks = []
    for count in (100, 300_000):
        graph = directed_graph(count, 4 * count)
        graph.save(tmp_path / str(count))
        del graph
        tracemalloc.start()
        opened = Graph.open(tmp_path / str(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert isinstance(opened.x.base, np.memmap)
    assert peaks[1] < peaks[0] + 20_000


def test_mapped_arrays_cannot_be_written(tmp_path):
    opened = directed_graph().save(tmp_path / "g")
    with pytest.raises(ValueError, match="read-only"):
        opened.x[0] = 1


def test_homogeneous_graphs_are_pleasant(tmp_path):
    graph = directed_graph(50, 100).save(tmp_path / "g")
    assert graph.num_nodes == 50
    assert graph.num_edges == 100
    assert graph.x.shape == (50, 1)
    assert len(graph.indptr) == 51
    assert graph.split("train")[1] == 3
    with refused("split-missing dev"):
        graph.split("dev")
    with pytest.raises(AttributeError, match="no field 'y'"):
        _ = graph.y


def test_heterogeneous_graphs_say_which_types_they_have():
    nodes = {"a": NodeSet(2, {"x": np.zeros((2, 1))}), "b": NodeSet(1)}
    graph = Graph(nodes, {("a", "to", "b"): EdgeSet(np.array([0, 1]), np.array([1], np.int32))})
    with pytest.raises(AttributeError, match=r"\['a', 'b'\]"):
        _ = graph.x
    assert graph.nodes["a"].x.shape == (2, 1)


def test_existing_output_is_kept_without_force(tmp_path):
    directed_graph(20, 30).save(tmp_path / "g")
    with refused("file-exists --force"):
        directed_graph(30, 30).save(tmp_path / "g")
    assert Graph.open(tmp_path / "g").num_nodes == 20
    directed_graph(30, 30).save(tmp_path / "g", force=True)
    assert Graph.open(tmp_path / "g").num_nodes == 30
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_force_never_replaces_what_is_not_ours(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with refused("file-exists"):
        directed_graph().save(tmp_path / "thesis", force=True)
    assert (tmp_path / "thesis" / "chapter1.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    with refused("file-exists"):
        directed_graph().save(tmp_path / "file", force=True)


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, RuntimeError, OSError(28, "No space left on device")])
def test_an_interrupted_write_leaves_nothing(tmp_path, trouble):
    expected = PenstockError if isinstance(trouble, OSError) else trouble
    with pytest.raises(expected), new_folder(tmp_path / "g") as temporary:
        (temporary / "half").write_text("half")
        raise trouble
    assert list(tmp_path.iterdir()) == []


def test_force_knows_its_own_documents(tmp_path):
    """A file called graph.json does not make a folder ours."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "graph.json").write_text('{"my": "app"}')
    with refused("file-exists"):
        directed_graph().save(tmp_path / "app", force=True)
    assert (tmp_path / "app" / "graph.json").read_text() == '{"my": "app"}'


def test_a_target_that_appears_meanwhile_survives(tmp_path):
    with refused("file-exists"), new_folder(tmp_path / "g") as temporary:
        (temporary / "new").write_text("new")
        (tmp_path / "g").mkdir()
        (tmp_path / "g" / "thesis.tex").write_text("years of work")
    assert (tmp_path / "g" / "thesis.tex").read_text() == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_an_interrupt_between_the_renames_keeps_the_old_folder(tmp_path, monkeypatch):
    directed_graph(20, 30).save(tmp_path / "g")
    rename = Path.rename

    def interrupted(self, target):
        if ".writing-" in self.name:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        directed_graph(30, 30).save(tmp_path / "g", force=True)
    assert Graph.open(tmp_path / "g").num_nodes == 20
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_a_link_keeps_pointing(tmp_path):
    directed_graph(20, 30).save(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    directed_graph(30, 30).save(tmp_path / "link", force=True)
    assert (tmp_path / "link").is_symlink()
    assert Graph.open(tmp_path / "real").num_nodes == 30


def test_the_current_folder_is_no_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused("file-exists"):
        directed_graph().save(".")


def test_what_cannot_be_stored_leaves_the_old_folder(tmp_path):
    directed_graph(20, 30).save(tmp_path / "g")
    for values in (np.array([{}, 1], object), np.zeros(2, "datetime64[s]"), np.zeros(2, "i4,f4")):
        graph = Graph({"v": NodeSet(2, {"x": values})}, {})
        with refused("wrong-type"):
            graph.save(tmp_path / "g", force=True)
    assert Graph.open(tmp_path / "g").num_nodes == 20


def test_a_killed_write_leaves_nothing_that_opens(tmp_path):
    """What a killed process leaves is the temporary folder without its document."""
    import subprocess
    import sys

    code = (
        "import os, pathlib; from random_graphs import directed_graph; from penstock.graph import folder;"
        "folder.write_document = lambda *a: os._exit(9);"
        f"directed_graph().save({str(tmp_path / 'g')!r})"
    )
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert done.returncode == 9
    assert not (tmp_path / "g").exists()
    for left in tmp_path.iterdir():
        with refused("wrong-file"):
            Graph.open(left)


def damaged(tmp_path, change):
    directed_graph().save(tmp_path / "g")
    change(tmp_path / "g")
    with pytest.raises(PenstockError) as caught:
        Graph.open(tmp_path / "g")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_truncated_array(tmp_path):
    def cut_off(folder):
        path = folder / "edges" / "node__to__node" / "indices.npy"
        path.write_bytes(path.read_bytes()[:-100])

    assert "truncated" in damaged(tmp_path, cut_off)


def test_missing_array(tmp_path):
    assert "missing" in damaged(tmp_path, lambda folder: (folder / "nodes/node/field.x.npy").unlink())


def test_array_that_is_not_npy(tmp_path):
    text = damaged(tmp_path, lambda folder: (folder / "nodes/node/field.x.npy").write_bytes(b"hello"))
    assert "not a readable .npy" in text


def test_array_of_another_shape(tmp_path):
    text = damaged(tmp_path, lambda folder: np.save(folder / "nodes/node/field.x.npy", np.zeros((3, 1), np.float32)))
    assert "shape" in text


def test_array_of_another_type(tmp_path):
    text = damaged(tmp_path, lambda folder: np.save(folder / "nodes/node/field.x.npy", np.zeros((1500, 1))))
    assert "float64" in text


def test_pickled_array_is_refused(tmp_path):
    def pickle(folder):
        np.save(folder / "nodes/node/field.x.npy", np.array([{}] * 1500, object).reshape(-1, 1), allow_pickle=True)

    assert damaged(tmp_path, pickle)


def test_array_whose_header_is_broken(tmp_path):
    def break_header(folder):
        path = folder / "nodes/node/field.x.npy"
        path.write_bytes(path.read_bytes().replace(b"{'descr'", b"{{'desc("))

    assert "not a readable .npy" in damaged(tmp_path, break_header)


def test_type_that_does_not_exist(tmp_path):
    def junk(folder):
        path = folder / "graph.json"
        path.write_text(path.read_text().replace('"float32"', '"junk"'))

    assert "'junk'" in damaged(tmp_path, junk)


def _edit(folder, **changes):
    path = folder / "graph.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_wrong_version(tmp_path):
    assert "format version 99" in damaged(tmp_path, lambda folder: _edit(folder, version=99))


def test_wrong_format(tmp_path):
    assert "not a penstock-graph" in damaged(tmp_path, lambda folder: _edit(folder, format="other"))


def test_unknown_key(tmp_path):
    assert "colour" in damaged(tmp_path, lambda folder: _edit(folder, colour="red"))


def test_broken_document(tmp_path):
    assert "cannot be read" in damaged(tmp_path, lambda folder: (folder / "graph.json").write_text("{"))


def test_no_folder(tmp_path):
    with refused("wrong-file"):
        Graph.open(tmp_path / "nowhere")


def test_offsets_that_disagree_with_the_edges():
    with refused("shape-mismatch 5"):
        Graph({"v": NodeSet(1)}, {("v", "e", "v"): EdgeSet(np.array([0, 5]), np.zeros(4, np.int32))})
    with refused("shape-mismatch 2 1"):
        Graph({"v": NodeSet(1)}, {("v", "e", "v"): EdgeSet(np.array([0, 1, 1]), np.zeros(1, np.int32))})


def test_names_that_would_confuse():
    for name in ("a__b", "", ".hidden"):
        with refused("invalid-value"):
            Graph({name: NodeSet(1)}, {})


def test_odd_names_survive(tmp_path):
    nodes = {"a/b c%": NodeSet(2, {"ü/x": np.arange(2)})}
    graph = Graph(nodes, {("a/b c%", "is a:kind?", "a/b c%"): EdgeSet(np.array([0, 0, 1]), np.array([1], np.int32))})
    assert_same_graph(graph.save(tmp_path / "g"), graph)


def test_timestamps_are_not_part_of_the_folder(tmp_path):
    """Two writes of one graph are the same bytes: folders can be compared and versioned."""
    directed_graph().save(tmp_path / "a")
    time.sleep(0.01)
    directed_graph().save(tmp_path / "b")
    for path in sorted((tmp_path / "a").rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
