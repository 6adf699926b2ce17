"""Folders on object stores: graphs, parts and runs at an address are those of a local folder, whatever fails."""

import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import penstock as ps
from object_store import Faults, Store, use_cache
from penstock.errors import PenstockError
from penstock.graph import addresses
from penstock.graph.files import DOCUMENTS
from penstock.graph.new_folders import new_folder
from penstock.graph.object_folders import ObjectFolder, address_of, is_remote, local_copy, send, send_later, shown
from penstock.graph.segments import growing
from penstock.train.use import embed_run
from refusals import refused
from training_graphs import community_graph

GRAPH = "s3://bucket/graphs/one"
RUN = "s3://bucket/runs/one"
FEW = {"fanouts": [2], "hidden": 4, "batch_size": 50, "checkpoint_minutes": 0, "threads": 1}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store under `s3://`, and a cache of its own for copies."""
    (tmp_path / "buckets").mkdir()
    found = Store(tmp_path / "buckets", Faults())
    monkeypatch.setitem(addresses.SCHEMES, "s3", addresses.SCHEMES["s3"]._replace(open=lambda *_: found))
    addresses.opened_system.cache_clear()
    use_cache(monkeypatch, tmp_path / "cache")
    yield found
    addresses.opened_system.cache_clear()


def objects(store, below=""):
    folder = store.root / "bucket" / below
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_addresses_are_told_from_paths():
    assert is_remote("s3://bucket/graph") and is_remote("gs:/bucket/graph") and is_remote("hdfs://name/x")
    assert not any(map(is_remote, ("graph", "/data/graph", "./s3", "C:", "synthetic-arxiv", "a/s3://b")))
    assert address_of("s3:/bucket/x") == address_of("s3://bucket/x") == "s3://bucket/x"


def test_a_graph_is_the_same_there_and_comes_once(store, tmp_path, monkeypatch):
    graph = community_graph(60)
    graph.save(tmp_path / "local")
    graph.save(GRAPH)
    assert store.faults.sent[-1].endswith("graph.json")
    # Younger ones may change once more within a second of their stores.
    for path in (store.root / "bucket").rglob("*.*"):
        os.utime(path, (1e9, 1e9))
    here = {p.relative_to(tmp_path / "local").as_posix(): p.read_bytes() for p in (tmp_path / "local").rglob("*.*")}
    assert objects(store, "graphs/one") == here
    use_cache(monkeypatch, tmp_path / "elsewhere")
    for _ in range(2):
        opened = ps.load(GRAPH)
        assert opened.num_nodes == 60 and np.array_equal(
            opened.edges[next(iter(opened.edges))].indices, graph.edges[next(iter(graph.edges))].indices
        )
    assert len(store.faults.fetched) == len(here)
    assert ps.Graph.open(GRAPH).num_nodes == 60 and len(store.faults.fetched) == len(here)


def test_a_graph_that_is_there_is_replaced_only_when_asked(store):
    community_graph(60).save(GRAPH)
    with refused(f"file-exists {GRAPH} exists already"):
        community_graph(90).save(GRAPH)
    community_graph(90).save(GRAPH, force=True)
    assert ps.load(GRAPH).num_nodes == 90


def test_what_was_replaced_elsewhere_is_fetched_again(store, tmp_path, monkeypatch):
    community_graph(60).save(GRAPH)
    use_cache(monkeypatch, tmp_path / "elsewhere")
    assert ps.load(GRAPH).num_nodes == 60
    use_cache(monkeypatch, tmp_path / "cache")
    community_graph(90).save(GRAPH, force=True)
    use_cache(monkeypatch, tmp_path / "elsewhere")
    assert ps.load(GRAPH).num_nodes == 90


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_graph_that_was_not_sent_whole_does_not_open(store, tmp_path, monkeypatch, at):
    store.faults.word, store.faults.after, store.faults.times = "write", at, 1
    with refused("external-failure"):
        community_graph(60).save(GRAPH)
    assert not any(name in DOCUMENTS for name in objects(store))
    use_cache(monkeypatch, tmp_path / "elsewhere")
    with pytest.raises(PenstockError):
        ps.load(GRAPH)
    use_cache(monkeypatch, tmp_path / "cache")
    community_graph(60).save(GRAPH, force=True)
    assert ps.load(GRAPH).num_nodes == 60


@pytest.mark.parametrize(
    "word, error, code",
    [
        ("list", PermissionError("ACCESS_DENIED"), "not-permitted"),
        ("read", OSError("NO_SUCH_BUCKET"), "file-not-found"),
        ("read", OSError("curlCode: 56"), "external-failure"),
        ("field.x", OSError("anything else"), "external-failure"),
    ],
)
def test_faults_are_told_in_a_sentence_and_nothing_opens_by_halves(store, tmp_path, monkeypatch, word, error, code):
    community_graph(60).save(GRAPH)
    use_cache(monkeypatch, tmp_path / "elsewhere")
    store.faults.word, store.faults.times, store.faults.error = word, 1, error
    with pytest.raises(PenstockError, match="s3://bucket/graphs/one") as found:
        ps.load(GRAPH)
    assert found.value.code == code
    assert not (ObjectFolder.at(GRAPH).local / "graph.json").exists()
    assert ps.load(GRAPH).num_nodes == 60


def test_an_object_that_ends_early_is_no_graph(store, tmp_path, monkeypatch):
    community_graph(60).save(GRAPH)
    use_cache(monkeypatch, tmp_path / "elsewhere")
    listed = ObjectFolder._listed
    monkeypatch.setattr(
        ObjectFolder, "_listed", lambda folder: {name: (size + 1, t) for name, (size, t) in listed(folder).items()}
    )
    with refused("external-failure ended after"):
        ps.load(GRAPH)


@pytest.mark.parametrize(
    "address, code",
    [
        ("s5://bucket/graph", "unknown-name"),
        ("s3://bucket/a/../b", "invalid-value"),
        ("s3://AK:a/b@bucket/x", "invalid-value"),
        ("s3://bucket/x?session_token=secret", "invalid-value"),
        ("s3://key:secret@bucket/graph", "invalid-value"),
        ("s3://bucket/nothing", "file-not-found"),
    ],
)
def test_addresses_that_lead_nowhere_or_hold_keys(store, address, code):
    with pytest.raises(PenstockError) as found:
        ps.load(address)
    assert found.value.code == code and "secret" not in str(found.value)


def test_an_objects_name_may_not_lead_out_of_the_copy(store):
    community_graph(60).save(GRAPH)
    (store.root / "bucket/graphs/one/.hidden").write_text("x")
    with refused("wrong-file .hidden"):
        ps.load(GRAPH)


def test_a_run_is_the_local_one_and_goes_on_elsewhere(store, tmp_path, monkeypatch):
    community_graph(200).save(GRAPH)
    local = ps.train(ps.load(GRAPH), run=tmp_path / "local", epochs=2, **FEW)
    run = ps.train(GRAPH, run=RUN, epochs=2, **FEW)
    assert run.history["train_loss"] == local.history["train_loss"] and run.result["run"] == RUN
    held = objects(store, "runs/one")
    assert json.loads(held["run.json"])["state"] == "finished" and "report.html" in held
    assert b"graph: s3://bucket/graphs/one" in held["job.yaml"]
    more = ps.train(resume=tmp_path / "local", epochs=4)
    use_cache(monkeypatch, tmp_path / "elsewhere")
    assert ps.train(resume=RUN, epochs=4).history["train_loss"] == more.history["train_loss"]
    use_cache(monkeypatch, tmp_path / "third")
    assert ps.Run.open(RUN).history["epoch"][-1] == 4
    with refused("file-exists"):
        ps.train(GRAPH, run=RUN, epochs=2, **FEW)


def test_a_run_whose_checkpoint_cannot_be_sent_goes_on(store, tmp_path, monkeypatch):
    community_graph(200).save(GRAPH)
    store.faults.word, store.faults.times = "write bucket/runs/one/checkpoints/step-000000000004", 1
    run = ps.train(GRAPH, run=RUN, epochs=3, checkpoint_steps=1, **FEW)
    assert "The run was not sent: s3://bucket/runs/one/checkpoints" in (run.path / "log.txt").read_text()
    assert run.state == "finished" and {name for name in objects(store, "runs/one") if "step" in name}


def test_the_copy_that_is_ahead_of_its_address_is_sent_and_not_overwritten(store):
    community_graph(200).save(GRAPH)
    run = ps.train(GRAPH, run=RUN, epochs=1, **FEW)
    # A process that was killed before it could send leaves the copy so.
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "note"}\n')
    assert local_copy(RUN) == run.path
    assert objects(store, "runs/one")["metrics.jsonl"].endswith(b'{"kind": "note"}\n')


def test_what_is_at_the_address_counts_where_both_have_changed(store, tmp_path, monkeypatch):
    community_graph(200).save(GRAPH)
    run = ps.train(GRAPH, run=RUN, epochs=1, **FEW)
    use_cache(monkeypatch, tmp_path / "elsewhere")
    ps.train(resume=RUN, epochs=2)
    use_cache(monkeypatch, tmp_path / "cache")
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "note"}\n')
    local_copy(RUN)
    assert '"note"' not in (run.path / "metrics.jsonl").read_text()
    assert ps.Run.open(RUN).history["epoch"][-1] == 2


def test_a_part_is_fetched_when_it_is_used(store, tmp_path, monkeypatch):
    graph = community_graph(200)
    cut = ps.cut(graph, ps.Cut(parts=2), "s3://bucket/parts")
    assert cut.parts == 2
    use_cache(monkeypatch, tmp_path / "elsewhere")
    partition = ps.open_partition("s3://bucket/parts")
    assert not any("part0" in name or "part1" in name for name in store.faults.fetched)
    assert partition.part(1).num_nodes == cut.part(1).num_nodes
    assert not any("part0" in name for name in store.faults.fetched)


def test_embeddings_are_written_there(store, tmp_path, monkeypatch):
    community_graph(60).save(GRAPH)
    run = ps.train(GRAPH, run=tmp_path / "run", epochs=1, **FEW)
    out = Path("s3://bucket/made/embeddings.npz")
    assert embed_run(run.path, tmp_path / "local.npz") == embed_run(run.path, out) == 60
    with np.load(tmp_path / "local.npz") as local, np.load(store.root / "bucket/made/embeddings.npz") as there:
        assert np.array_equal(local["embedding"], there["embedding"])
    use_cache(monkeypatch, tmp_path / "elsewhere")
    with refused("file-exists"):
        embed_run(run.path, out)
    assert embed_run(run.path, out, force=True) == 60


def test_the_cache_is_bounded_and_drops_what_was_used_longest_ago(store, tmp_path, monkeypatch):
    for name in "abc":
        community_graph(100).save(f"s3://bucket/{name}")
    size = sum(map(len, objects(store, "a").values()))
    use_cache(monkeypatch, tmp_path / "elsewhere")
    monkeypatch.setenv("PENSTOCK_OBJECTS_GB", str(2.5 * size / (1 << 30)))
    places = []
    for place, name in enumerate("abc"):
        folder = ObjectFolder.at(f"s3://bucket/{name}")
        os.utime(folder._place / "held", (place, place))
        folder.fetch()
        places.append(folder.local)
        # No process uses it from now on.
        os.close(object_held().pop(folder._place))
    assert [place.exists() for place in places] == [False, True, True]
    monkeypatch.setenv("PENSTOCK_OBJECTS_GB", str(0.5 * size / (1 << 30)))
    with refused("too-large PENSTOCK_OBJECTS_GB"):
        local_copy("s3://bucket/a")


def object_held():
    from penstock import cache_folders

    return cache_folders._held


def test_parts_that_could_not_be_sent_are_not_made_again(store, tmp_path, monkeypatch):
    graph = community_graph(60).save(tmp_path / "graph")
    store.faults.word, store.faults.times = "write bucket/parts/part1", 1
    with refused("external-failure s3://bucket/parts"):
        ps.cut(graph, ps.Cut(parts=2), "s3://bucket/parts")
    monkeypatch.setattr("penstock.partition.writer.PartWriter.write", None)
    assert ps.cut(graph, ps.Cut(parts=2), "s3://bucket/parts").parts == 2
    use_cache(monkeypatch, tmp_path / "elsewhere")
    assert ps.open_partition("s3://bucket/parts").parts == 2


def test_paths_are_shown_as_users_know_them(store, tmp_path):
    community_graph(60).save(GRAPH)
    place = local_copy(GRAPH)
    assert shown(place) == GRAPH and shown(place / "graph.json") == f"{GRAPH}/graph.json"
    assert shown(tmp_path) == str(tmp_path)
    send(place)
    send(tmp_path)


def test_machines_that_are_apart_need_a_folder_they_all_see(store, tmp_path):
    community_graph(60).save(GRAPH)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("machines: [{name: a, address: 127.0.0.1}]\nlauncher: environment\n")
    with refused(f"unsupported-combination {RUN}"):
        ps.train(GRAPH, run=RUN, epochs=1, cluster=str(cluster), **FEW)


def _unsent(run):
    return sorted(path.name for path in (run / "checkpoints").glob("step-*.ckpt"))


def test_what_a_failed_send_left_here_is_sent_by_the_next_command(store):
    community_graph(200).save(GRAPH)
    run = ps.train(GRAPH, run=RUN, epochs=1, **FEW)
    store.faults.word, store.faults.times = "write bucket/runs/one/checkpoints", 1000
    with refused(f"external-failure {RUN}"):
        ps.train(resume=RUN, epochs=3)
    unsent = _unsent(run.path)
    store.faults.times = 0
    assert ps.Run.open(RUN).state == "finished" and set(unsent) <= set(_unsent(run.path))
    assert {f"checkpoints/{name}" for name in unsent} <= objects(store, "runs/one").keys()


def test_a_copy_that_lost_files_removes_nothing_at_its_address(store):
    community_graph(200).save(GRAPH)
    run = ps.train(GRAPH, run=RUN, epochs=1, **FEW)
    before = objects(store, "runs/one").keys()
    shutil.rmtree(run.path / "checkpoints")
    assert ps.Run.open(RUN).evaluate("val") and objects(store, "runs/one").keys() == before
    later = send_later(run.path)
    for pinned in ObjectFolder.at(RUN)._place.glob("pinned-*"):
        shutil.rmtree(pinned)
    with refused("damaged-file"):
        later()
    shutil.rmtree(run.path)
    with refused("damaged-file"):
        send(run.path)
    assert objects(store, "runs/one").keys() == before and ps.Run.open(RUN).state == "finished"


def test_the_last_state_is_sent_last(store, monkeypatch):
    community_graph(200).save(GRAPH)
    sending = ObjectFolder.send
    begun = threading.Event()

    def slowly(folder, pinned=None):
        if pinned is not None:
            begun.wait(0.2)
        sending(folder, pinned)

    monkeypatch.setattr(ObjectFolder, "send", slowly)
    run = ps.train(GRAPH, run=RUN, epochs=3, checkpoint_steps=1, **FEW)
    assert json.loads(objects(store, "runs/one")["run.json"])["state"] == "finished"
    assert set(_unsent(run.path)) == {n.partition("/")[2] for n in objects(store, "runs/one") if "/step" in n}
    assert not list(ObjectFolder.at(RUN)._place.glob("pinned-*"))


def test_an_address_that_another_host_writes_is_left_to_it(store, tmp_path, monkeypatch):
    ObjectFolder.at(GRAPH).claim(False)
    with monkeypatch.context() as elsewhere:
        use_cache(elsewhere, tmp_path / "elsewhere")
        elsewhere.setattr("socket.gethostname", lambda: "another")
        elsewhere.setattr("os.getpid", lambda: 1)
        with refused("in-use --force"):
            community_graph(60).save(GRAPH)
        with refused("damaged-file complete"):
            ps.load(GRAPH)
    community_graph(90).save(GRAPH)
    assert ps.load(GRAPH).num_nodes == 90


def test_what_appeared_meanwhile_is_not_replaced(store, tmp_path, monkeypatch):
    with monkeypatch.context() as elsewhere, refused("file-exists appeared"), new_folder(Path(GRAPH)) as made:
        use_cache(elsewhere, tmp_path / "elsewhere")
        community_graph(60).save(GRAPH, force=True)
        use_cache(elsewhere, tmp_path / "cache")
        community_graph(90).save(made, force=True)
    assert ps.load(GRAPH).num_nodes == 60


def test_objects_of_others_are_no_unfinished_folder(store):
    folder = store.root / "bucket/graphs/one"
    folder.mkdir(parents=True)
    (folder / "unfinished.json").write_text("[]")
    (folder / "thesis.txt").write_text("years")
    with refused("file-exists"):
        community_graph(60).save(GRAPH, force=True)
    assert (folder / "thesis.txt").exists()


def test_a_young_object_is_not_trusted_to_be_the_same(store, tmp_path, monkeypatch):
    listed = ObjectFolder._listed
    whole = 10**9
    monkeypatch.setattr(
        ObjectFolder, "_listed", lambda folder: {n: (s, t // whole * whole) for n, (s, t) in listed(folder).items()}
    )
    graph = community_graph(60)
    graph.save(GRAPH)
    use_cache(monkeypatch, tmp_path / "elsewhere")
    field = ps.load(GRAPH).nodes["node"].fields["x"].copy()
    use_cache(monkeypatch, tmp_path / "cache")
    graph.nodes["node"].fields["x"] = field + 1
    graph.save(GRAPH, force=True)
    use_cache(monkeypatch, tmp_path / "elsewhere")
    assert np.array_equal(ps.load(GRAPH).nodes["node"].fields["x"], field + 1)


def test_a_segment_is_not_written_at_an_address(store):
    community_graph(60).save(GRAPH)
    with refused(f"unsupported-combination {GRAPH}"), growing(Path(GRAPH)):
        pass


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses of a run that nothing disturbs."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    return ps.train(community_graph(200), run=run, epochs=2, checkpoint_steps=1, **FEW).history["train_loss"]


@pytest.mark.parametrize(
    "at", [each if each % 7 == 3 else pytest.param(each, marks=pytest.mark.long) for each in range(20)]
)
def test_any_request_may_fail(store, undisturbed, at):
    """Whichever it is, the same command or a resumption ends as if nothing had been."""
    fields = {"epochs": 2, "checkpoint_steps": 1, **FEW}
    community_graph(200).save(GRAPH)
    store.faults.word, store.faults.after, store.faults.times = "any", at, 1
    with suppress(PenstockError):
        ps.train(GRAPH, run=RUN, **fields)
    store.faults.times = 0
    try:
        run = ps.train(resume=RUN)
    except PenstockError as error:
        assert error.code in ("file-not-found", "damaged-file"), error
        run = ps.train(GRAPH, run=RUN, force=True, **fields)
    assert run.history["train_loss"] == undisturbed
    assert json.loads(objects(store, "runs/one")["run.json"])["state"] == "finished"
