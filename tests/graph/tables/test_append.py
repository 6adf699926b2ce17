"""Segments: tables appended to a graph, whose vertices keep their numbers."""

import errno
import functools
import os
import shutil

import numpy as np
import pytest
import yaml

import penstock as ps
from in_process import answer
from penstock import Graph
from penstock.graph import folder, segments
from penstock.graph.ids import StringIds
from penstock.graph.schema import read_document
from penstock.graph.segments import append_rows as segments_append_rows
from penstock.graph.segments import changed_since, compact
from penstock.graph.tables import append_tables, import_tables
from refusals import refused
from training_graphs import SMALL, lines_of

USERS, ITEMS, FOLLOWS, BUYS = (90, 120, 150), (20, 20, 25), (500, 620, 760), (200, 230, 260)
"""Rows of the tables after the import and after each of two appends."""


@functools.cache
def rows_of(kind):
    """All rows of a table; each only names vertices that the tables before it have."""
    rng = np.random.default_rng(7)
    if kind == "user":
        folds = rng.choice(["train", "val", "test", ""], USERS[-1], p=[0.5, 0.2, 0.2, 0.1])
        drinks = rng.choice(["tea", "coffee", "mate"], USERS[-1])
        numbers = rng.normal(size=(USERS[-1], 2)).round(3)
        return [(f"u{i}", *numbers[i], drinks[i], folds[i], 7 * i) for i in range(USERS[-1])]
    if kind == "item":
        return [(100 + 3 * i,) for i in range(ITEMS[-1])]
    steps = FOLLOWS if kind == "follows" else BUYS
    found, before = [], 0
    for step, rows in enumerate(steps):
        for _ in range(rows - before):
            user, other, item = rng.integers(USERS[step]), rng.integers(USERS[step]), rng.integers(ITEMS[step])
            weight = round(float(rng.random()), 3)
            found.append((f"u{user}", f"u{other}") if kind == "follows" else (f"u{user}", 100 + 3 * item, weight))
        before = rows
    return found


SPEC = {
    "name": "shop",
    "nodes": [
        {
            "type": "user",
            "files": "user.csv",
            "id": "id",
            "features": ["a", "b"],
            "fields": [{"column": "joined", "dtype": "int64"}],
            "label": "drinks",
            "split": {"column": "fold"},
        },
        {"type": "item", "files": "item.csv", "id": "id"},
    ],
    "edges": [
        {"type": ["user", "follows", "user"], "files": "follows.csv", "source": "s", "destination": "d"}
        | {"undirected": True, "deduplicate": True},
        {"type": ["user", "buys", "item"], "files": "buys.csv", "source": "s", "destination": "d"}
        | {"weight": "w", "reverse": "bought-by"},
    ],
}
HEADS = {"user": "id,a,b,drinks,fold,joined", "item": "id", "follows": "s,d", "buys": "s,d,w"}
COUNTS = {"user": USERS, "item": ITEMS, "follows": FOLLOWS, "buys": BUYS}


def write_tables(place, first, last, spec=SPEC):
    """The rows that steps [first, last) bring, and their spec."""
    place.mkdir()
    for kind, counts in COUNTS.items():
        rows = rows_of(kind)[counts[first - 1] if first else 0 : counts[last - 1]]
        lines = [HEADS[kind], *(",".join(map(str, row)) for row in rows)]
        (place / f"{kind}.csv").write_text("\n".join(lines) + "\n")
    spec = {**spec, "nodes": [{**each, "allow_empty": True} for each in spec["nodes"]]}
    (place / "spec.yaml").write_text(yaml.safe_dump(spec))
    return place / "spec.yaml"


@pytest.fixture(scope="module")
def imported_once(tmp_path_factory):
    """The tables of the first step and the graph that they make."""
    place = tmp_path_factory.mktemp("imported")
    import_tables(write_tables(place / "0", 0, 1), place / "graph")
    return place


@pytest.fixture(scope="module")
def grown_once(imported_once, tmp_path_factory):
    """The same with two segments, and the graph of all rows at once."""
    place = tmp_path_factory.mktemp("grown")
    shutil.copytree(imported_once, place, dirs_exist_ok=True)
    for step in (1, 2):
        append_tables(place / "graph", write_tables(place / str(step), step, step + 1))
    import_tables(write_tables(place / "all", 0, 3), place / "whole")
    return place


@pytest.fixture
def imported(imported_once, tmp_path):
    """The graph of the first step, for this test alone."""
    shutil.copytree(imported_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "graph"


@pytest.fixture
def grown(grown_once, tmp_path):
    """A graph with two segments and the graph of all rows at once, for this test alone, with all tables beside them."""
    shutil.copytree(grown_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "graph", tmp_path / "whole"


def same_arrays(graph, other):
    """Equal arrays under equal names."""
    ours, theirs = (dict(_named(each)) for each in (graph, other))
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        np.testing.assert_array_equal(array, theirs[name], name)
    return True


def _named(graph):
    found = Graph.open(graph)
    for name, nodes in found.nodes.items():
        if isinstance(nodes.ids, StringIds):
            yield from ((f"{name}/offsets", nodes.ids.offsets), (f"{name}/bytes", nodes.ids.data))
    yield from ((name, array) for name, array in found.arrays() if not name.endswith("user/ids"))


def files_below(place):
    """Paths and sizes."""
    return {str(file.relative_to(place)): file.stat().st_size for file in place.rglob("*.npy")}


def test_segments_give_the_graph_that_all_tables_give(grown):
    graph, whole = grown
    assert same_arrays(graph, whole)
    assert compact(graph) == 2 and compact(graph) == 0
    assert same_arrays(graph, whole)
    assert files_below(graph) == files_below(whole) and not (graph / "segments").exists()


def test_what_a_segment_changed_is_known(grown):
    graph, _ = grown
    changed = changed_since(graph, "2")
    np.testing.assert_array_equal(changed.new["user"], np.arange(120, 150))
    edges = Graph.open(graph).edges["user", "buys", "item"]
    bought = [(int(row[0][1:]), (row[1] - 100) // 3) for row in rows_of("buys")[BUYS[1] :]]
    np.testing.assert_array_equal(changed.sources["user", "buys", "item"], sorted({user for user, _ in bought}))
    np.testing.assert_array_equal(changed.destinations["item", "bought-by", "user"], sorted({u for u, _ in bought}))
    assert len(changed_since(graph, "1").new["user"]) == 60 and edges.count == BUYS[-1]
    with refused("unknown-name '3' 1 2"):
        changed_since(graph, "3")


RING = {
    "nodes": [{"type": "user", "files": "user.csv", "id": "id"}],
    "edges": [{"type": ["user", "to", "user"], "files": "to.csv", "source": "s", "destination": "d"}],
}


def ring_tables(place, first, count, edges):
    """Vertices [first, count), and edges."""
    place.mkdir()
    (place / "user.csv").write_text("\n".join(["id", *map(str, range(first, count))]) + "\n")
    (place / "to.csv").write_text("\n".join(["s,d", *(f"{s},{d}" for s, d in edges)]) + "\n")
    (place / "spec.yaml").write_text(yaml.safe_dump(RING))
    return place / "spec.yaml"


def test_draws_of_unchanged_neighbourhoods_stay(tmp_path):
    ring = [((v + step) % 80, v) for v in range(80) for step in (1, 2, 3, 5)]
    graph = import_tables(ring_tables(tmp_path / "0", 0, 80, ring), tmp_path / "graph").path
    before = Graph.open(graph)
    append_tables(graph, ring_tables(tmp_path / "1", 80, 83, [(80, 79), (3, 81), (82, 81)]))
    after = Graph.open(graph)
    assert after.nodes["user"].ids is None and after.num_nodes == 83
    # A list of vertex 79 changed, which is within two hops of those from 69 on.
    seeds = np.arange(69)

    def drawn(found):
        loader = ps.loader(found, seeds, fanouts=[2, 2], batch_size=23, shuffle=False)
        return [(batch.n_id, batch.edge_index) for batch in loader]

    for ours, theirs in zip(drawn(before), drawn(after), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_losses_are_the_same_before_and_after_compaction(grown, tmp_path):
    graph, whole = grown
    losses = []
    for step, each in enumerate((graph, graph, whole)):
        ps.train(each, **{**SMALL, "epochs": 1, "evaluate_every": -1}, run=tmp_path / f"run{step}")
        losses.append([line["loss"] for line in lines_of(tmp_path / f"run{step}")])
        if step == 0:
            compact(graph)
    assert losses[0] == losses[1] == losses[2]


class Killed(BaseException):
    """Ends an append at once."""


@pytest.mark.parametrize(
    "function, calls",
    [("_write_merged", 2), ("write_held_out", 1), ("append_rows", 1), ("append_rows", 4), ("replace_whole", 2)],
)
def test_a_kill_leaves_the_graph_as_it_was(function, calls, imported_once, grown, tmp_path, monkeypatch):
    graph, left, done = tmp_path / "again", iter(range(1, calls)), getattr(segments, function)
    for copy in (graph, tmp_path / "copy"):
        shutil.copytree(imported_once / "graph", copy)

    def killed(*given, **more):
        if next(left, None) is None:
            raise Killed
        return done(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(segments, function, killed)
        # A killed process removes nothing.
        patch.setattr(segments, "tidy", lambda *_: None)
        with pytest.raises(Killed):
            append_tables(graph, tmp_path / "1" / "spec.yaml")
    assert (graph / "segments").exists() and same_arrays(graph, tmp_path / "copy")
    for step in (1, 2):
        append_tables(graph, tmp_path / str(step) / "spec.yaml")
    assert same_arrays(graph, grown[1])


def test_a_full_disk_leaves_the_graph_as_it_was(grown, tmp_path, monkeypatch):
    graph, whole = grown
    later = write_tables(tmp_path / "later", 2, 3, {**SPEC, "edges": []})
    (tmp_path / "later" / "user.csv").write_text(f"{HEADS['user']}\nv1,1,1,tea,,0\nv2,1,1,tea,test,0\n")
    (tmp_path / "later" / "item.csv").write_text("id\n")
    done = []

    def full(path, kept, rows):
        if done:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done.append(segments_append_rows(path, kept, rows))

    monkeypatch.setattr(segments, "append_rows", full)
    with refused("write-failed graph"):
        append_tables(graph, later)
    assert same_arrays(graph, whole)
    monkeypatch.setattr(segments, "append_rows", segments_append_rows)
    assert append_tables(graph, later).nodes == {"user": [150, 152]}
    assert Graph.open(graph).split("test", "user")[-1] == 151


def test_whoever_opens_a_graph_meanwhile_gets_it_whole(grown, monkeypatch):
    """The document that was read first names lists that are gone."""
    graph, whole = grown
    first, read = read_document(graph), folder.read_document
    compact(graph)
    answers = iter([first])
    monkeypatch.setattr(folder, "read_document", lambda path: next(answers, None) or read(path))
    assert same_arrays(graph, whole)


def test_a_killed_compaction_leaves_the_graph_as_it_was(grown, monkeypatch):
    graph, whole = grown
    monkeypatch.setattr(segments.Growth, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        compact(graph)
    assert same_arrays(graph, whole)


def test_columns_are_standardised_as_in_the_import(tmp_path):
    spec = yaml.safe_load(yaml.safe_dump(SPEC))
    spec["nodes"][0]["features"] = [{"column": "a", "standardise": True}, "b"]
    graph = import_tables(write_tables(tmp_path / "0", 0, 1, spec), tmp_path / "graph").path
    append_tables(graph, write_tables(tmp_path / "1", 1, 2, spec))
    a = np.array([row[1] for row in rows_of("user")])
    expected = (a[:120] - a[:90].mean()) / a[:90].std()
    np.testing.assert_allclose(Graph.open(graph).nodes["user"].x[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_commands_say_what_was_added(imported, tmp_path, monkeypatch, capsys):
    graph = imported
    said = answer(monkeypatch, capsys, "data", "append", graph, "--with", write_tables(tmp_path / "1", 1, 2))
    assert said["segment"] == "1" and said["nodes"] == {"user": 30}
    (segment,) = answer(monkeypatch, capsys, "data", "inspect", graph)["segments"]
    assert segment["nodes"]["user"] == [90, 120] and segment["edges"]["user__buys__item"] == BUYS[1] - BUYS[0]
    assert answer(monkeypatch, capsys, "data", "compact", graph)["segments"] == 1


def _again(rows):
    rows["user.csv"] = "id,a,b,drinks,fold,joined\nu3,1,1,tea,,0\n"


def _stranger(rows):
    rows["follows.csv"] = "s,d\nu3,u9999\n"


def _new_word(rows):
    rows["user.csv"] = "id,a,b,drinks,fold,joined\nu900,1,1,wine,,0\n"


@pytest.mark.parametrize(
    "change, said",
    [
        (_again, "duplicate u3 graph"),
        (_stranger, "id-out-of-range u9999"),
        (_new_word, "unknown-name wine"),
        ({"label": None}, "field-missing 'y'"),
        ({"features": ["a"]}, "shape-mismatch 'x'"),
        ({"features": ["a", {"column": "fold", "categorical": "one-hot"}]}, "option-missing fold categories"),
        ({"type": "person"}, "unknown-name person"),
    ],
)
def test_bad_tables_are_refused_and_nothing_is_added(change, said, imported, tmp_path):
    spec = yaml.safe_load(yaml.safe_dump(SPEC))
    if isinstance(change, dict):
        spec["nodes"][0] = {name: value for name, value in {**spec["nodes"][0], **change}.items() if value}
        if "type" in change:
            spec["edges"] = []
    path = write_tables(tmp_path / "1", 1, 2, spec)
    if not isinstance(change, dict):
        rows = {}
        change(rows)
        for name, text in rows.items():
            (path.parent / name).write_text(text)
    files = files_below(imported)
    with refused(said):
        append_tables(imported, path)
    assert files_below(imported) == files
