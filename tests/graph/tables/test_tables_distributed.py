"""Imports that are divided into tasks: the bytes of the import on one machine, whoever runs the tasks."""

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables_workbench import FOLLOWS, USERS, Workbench
from typer.testing import CliRunner

from penstock.cli.data import data
from penstock.cluster.launch.ray_cluster import ray_tasks
from penstock.graph import Graph
from penstock.graph.data import SPLITS
from penstock.graph.journal import FolderJournal, Sources
from penstock.graph.tables import bucket_files, distributed, import_tables, importer, reader, shard_tasks
from penstock.graph.tables.importer import run_import
from penstock.graph.tables.shard_tasks import Setting, ShardTask, run_task
from penstock.partition import Cut, cut
from penstock.progress import Progress
from refusals import refused

VERTICES, EDGES = 300, 1500
TOTAL = 40_000
"""The bytes of a task's bound: less than ids and lists take."""
PLAIN = {
    **USERS,
    "files": "users",
    "features": [{"column": "v", "standardise": True}, {"column": "c", "categorical": "codes"}],
    "label": {"column": "c", "kind": "class"},
    "split": {"ratios": [0.6, 0.2, 0.2], "seed": 3},
}
SPLIT = {**USERS, "files": "users", "features": ["v"], "split": {"column": "f"}}
TAG = {"type": "tag"}
HAS = {"type": ["user", "has", "tag"], "files": "has.csv", "source": "a", "destination": "b"}
TYPED = {
    **FOLLOWS,
    "dangling": "create",
    "reverse": True,
    "time": "t",
    "features": [{"column": "r", "categorical": "one-hot"}],
}
LIKES = {**FOLLOWS, "type": ["user", "likes", "user"], "dangling": "drop", "undirected": True, "weight": "w"}
HELD_OUT = {**FOLLOWS, "dangling": "drop", "deduplicate": True, "reverse": True, "split": {"column": "s"}}
RELATIONS = {**FOLLOWS, "dangling": "drop", "relation": "r", "reverse": True, "split": {"column": "s"}}
SPECS = {
    "several types": ([PLAIN, TAG], [TYPED, {**HAS, "dangling": "drop"}, LIKES]),
    "held out": ([SPLIT], [HELD_OUT]),
    "only edges": ([{"type": "user"}, TAG], [{**FOLLOWS, "deduplicate": True}, HAS]),
    "relations": ([SPLIT], [RELATIONS, {**LIKES, "type": ["user", "z", "user"], "undirected": False}]),
    "both create": ([SPLIT, TAG], [{**HAS, "dangling": "create"}, LIKES]),
}
KINDS = ("strings", "integers", "counting")
QUICK = {
    ("strings", "several types"),
    ("integers", "only edges"),
    ("counting", "held out"),
    ("counting", "both create"),
}


class SmallBound(bucket_files.MemoryBound):
    """A bound that some hundred edges exceed."""

    def __init__(self, total: int) -> None:
        self.total, self._held = total, {}

    @property
    def block_bytes(self) -> int:
        return 1 << 13


class StoppedError(Exception):
    """An import ends here, as if it were killed: nothing is tidied."""


class Notes(Progress):
    """Keeps what the user is told."""

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    """Shards, groups and ranges of a few hundred rows."""
    for module in (importer, shard_tasks):
        monkeypatch.setattr(module, "MemoryBound", lambda gb: SmallBound(int(gb * 1e9)))
    shard_tasks._bound.cache_clear()
    for name in ("_LEAST_ROWS", "_GROUP_ROWS", "_RANGE_EDGES"):
        monkeypatch.setattr(distributed, name, 300)
    monkeypatch.setattr(reader, "_BATCH_ROWS", 300)


def _tables(bench: Workbench, kind: str) -> None:
    rng = np.random.default_rng(1)
    if kind == "strings":
        known, more = [f"user {i}" for i in rng.permutation(VERTICES)], [f"new user {i}" for i in range(60)]
    elif kind == "integers":
        known, more = (rng.permutation(VERTICES) * 7 - 3).tolist(), list(range(9000, 9060))
    else:
        known, more = list(range(VERTICES)), list(range(9000, 9060))
    ids, named = np.array(known), np.array([*known, *more])
    words, splits = rng.choice(["tea", "coffee", "water"], VERTICES), rng.choice([*SPLITS, ""], VERTICES)
    users = pa.table({"id": ids, "v": rng.random(VERTICES), "c": words, "f": splits})
    (bench.folder / "users").mkdir()
    # Files without rows, of several row groups, and of a few rows.
    for number, (first, stop) in enumerate(((0, 0), (0, 200), (200, 210), (210, VERTICES))):
        pq.write_table(users[first:stop], bench.folder / f"users/{number}.parquet", row_group_size=90)
    ends = {"a": rng.choice(named, EDGES), "b": rng.choice(named, EDGES)}
    # One destination has more edges than fit, and most of them come from one source.
    ends["b"][:500], ends["a"][:300] = named[5], named[7]
    fields = {"w": rng.random(EDGES), "t": rng.integers(0, 99, EDGES), "r": rng.choice(["x", "y", "w"], EDGES)}
    fields["s"] = rng.choice(SPLITS, EDGES, p=[0.8, 0.1, 0.1])
    pq.write_table(pa.table({**ends, **fields}), bench.folder / "follows.parquet", row_group_size=330)
    tags = rng.choice([f"tag {i}" for i in range(100)], EDGES)
    bench.table("has.csv", {"a": rng.choice(named, EDGES), "b": tags})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(bench, kind, name)` puts tables and a spec into a folder: the spec, and what one machine makes of them."""
    known = dict[tuple[str, str], tuple[Path, dict[str, str]]]()

    def copied(bench: Workbench, kind: str, name: str) -> tuple[Path, dict[str, str]]:
        if (kind, name) not in known:
            first = Workbench(tmp_path_factory.mktemp("made"))
            _tables(first, kind)
            import_tables(first.spec(*SPECS[name]), first.out)
            known[kind, name] = first.folder, _digests(first.out)
            shutil.rmtree(first.out)
        folder, digests = known[kind, name]
        shutil.copytree(folder, bench.folder, dirs_exist_ok=True)
        return bench.folder / "spec.yaml", digests

    return copied


_tasks_of_all: list[ShardTask] = []


@pytest.fixture
def tasks_of_all(tmp_path_factory, small, made) -> list[ShardTask]:
    """The tasks of an import that is not stopped; it runs once."""
    if _tasks_of_all:
        return _tasks_of_all
    bench, tasks_of_all = Workbench(tmp_path_factory.mktemp("tasks")), list[ShardTask]()
    spec, digests = made(bench, "strings", "several types")

    def counting(function, tasks):
        tasks_of_all.extend(tasks := list(tasks))
        return map(function, tasks)

    _divided(spec, bench.out, counting)
    assert _digests(bench.out) == digests
    _tasks_of_all.extend(tasks_of_all)
    return tasks_of_all


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _divided(spec: Path, out: Path, mapped=map, progress: Progress | None = None, memory_gb=TOTAL / 1e9) -> Graph:
    return run_import(spec, out, False, progress or Progress(), memory_gb, mapped)[0]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=() if (kind, name) in QUICK else pytest.mark.long)
        for kind in KINDS
        for name in SPECS
    ],
)
def test_the_graph_is_that_of_one_machine(bench: Workbench, made, kind, name) -> None:
    spec, expected = made(bench, kind, name)
    ran = []

    def last_first(function, tasks):
        """The tasks of a step in another order; each knows only what it was told, as text would carry it."""
        tasks = [ShardTask(each.setting, each.function, each.folder, _as_text(each.given)) for each in tasks]
        ran.extend(each.function for each in tasks)
        return reversed([function(each) for each in reversed(tasks)])

    _divided(spec, bench.folder / "divided", last_first)
    assert _digests(bench.folder / "divided") == expected
    assert all(ran.count(function) > 1 for function in ("resolve", "divide", "sort"))
    assert not list(bench.folder.glob(".*"))


def _as_text(given):
    return json.loads(json.dumps(given))


def test_tasks_that_run_twice_change_nothing(bench: Workbench, made) -> None:
    """As where the node of a task is lost, or only seemed to be."""
    spec, expected = made(bench, "strings", "several types")

    def twice(function, tasks):
        for task in tasks:
            function(task)
            yield function(task)

    _divided(spec, bench.folder / "divided", twice)
    assert _digests(bench.folder / "divided") == expected


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97, pytest.param(0.3, marks=pytest.mark.long)])
def test_an_import_that_was_stopped_goes_on(bench: Workbench, made, tasks_of_all, share) -> None:
    """Whatever it has written besides is left alone or written again."""
    spec, expected = made(bench, "strings", "several types")
    divided, left = bench.folder / "divided", [int(len(tasks_of_all) * share)]

    def stopping(function, tasks):
        for task in tasks:
            if left[0] == 0:
                raise StoppedError
            left[0] -= 1
            yield function(task)

    with pytest.raises(StoppedError):
        _divided(spec, divided, stopping)
    (unnoted := bench.folder / ".divided.unfinished/tasks/half.0123").mkdir()
    (unnoted / "numbers.npy").write_bytes(b"half")
    ran, notes = [], Notes()

    def rest(function, tasks):
        ran.extend(tasks := list(tasks))
        return map(function, tasks)

    _divided(spec, divided, rest, notes)
    assert _digests(divided) == expected
    assert "goes on after" in notes.notes[0]
    copies = [each for each in tasks_of_all if each.function == "copy"]
    assert len(tasks_of_all) * (1 - share) - 1 <= len(ran) <= len(tasks_of_all) * (1 - share) + len(copies) + 1


def test_an_import_of_one_machine_is_not_gone_on_with(bench: Workbench, made, monkeypatch) -> None:
    (spec, expected), notes = made(bench, "counting", "held out"), Notes()

    def stopped(*given):
        raise StoppedError

    with monkeypatch.context() as patched, pytest.raises(StoppedError):
        patched.setattr(importer, "write_spool", stopped)
        import_tables(spec, bench.folder / "divided", memory_gb=TOTAL / 1e9)
    _divided(spec, bench.folder / "divided", progress=notes)
    assert _digests(bench.folder / "divided") == expected
    assert "begins anew, because that one ran on one machine" in notes.notes[0]


def test_bad_rows_are_named_as_on_one_machine(bench: Workbench) -> None:
    _tables(bench, "strings")
    for dangling in ("error", "drop"):
        ids = ["user 3", "user 1", "user 3"] if dangling == "drop" else ["user 3", "user 1"]
        bench.table("some.parquet", {"id": ids})
        spec = bench.spec([{**USERS, "files": "some.parquet"}], [{**FOLLOWS, "dangling": dangling}])
        expected = bench.sentence_of(spec)
        with refused(f"{'duplicate' if dangling == 'drop' else 'id-out-of-range'} user") as caught:
            _divided(spec, bench.folder / "divided")
        assert str(caught.value) == expected
        assert not (bench.folder / "divided").exists()


def test_an_empty_table_is_refused_or_allowed(bench: Workbench) -> None:
    _tables(bench, "strings")
    bench.table("none.parquet", {"a": pa.array([], pa.string()), "b": pa.array([], pa.string())})
    empty = {**FOLLOWS, "files": "none.parquet"}
    with refused("missing-data none.parquet"):
        _divided(bench.spec([SPLIT], [empty]), bench.folder / "divided")
    for nodes in ([SPLIT], [{"type": "user"}]):
        spec = bench.spec(nodes, [{**empty, "allow_empty": True}])
        import_tables(spec, bench.out, force=True)
        run_import(spec, bench.folder / "divided", True, memory_gb=TOTAL / 1e9, mapped=map)
        assert _digests(bench.folder / "divided") == _digests(bench.out)


def test_a_node_that_does_not_see_the_folders_says_so(tmp_path: Path) -> None:
    work, journal = tmp_path / "work", FolderJournal(tmp_path / "work")
    setting = Setting(str(tmp_path / "spec.yaml"), "", str(work), 1.0, journal.owner)
    with refused("file-not-found share --out"):
        run_task(ShardTask(setting, "number", "tasks/0", {}))
    work.mkdir()
    (tmp_path / "spec.yaml").write_text("")
    journal.resume(Sources("", {}))
    with refused("external-failure 0.0.0"):
        run_task(ShardTask(replace(setting, version="0.0.0"), "number", "tasks/0", {}))
    # Another process goes on with the folder.
    FolderJournal(work).resume(Sources("", {}))
    with refused("external-failure another command"):
        run_task(ShardTask(setting, "number", "tasks/0", {}))
    assert [path.name for path in work.iterdir()] == ["journal"]


def test_a_spec_that_changes_meanwhile_changes_nothing(bench: Workbench, made) -> None:
    spec, expected = made(bench, "strings", "several types")
    divided, ran = bench.folder / "divided", []

    def changing(function, tasks):
        for task in tasks:
            ran.append(task)
            if len(ran) == 3:
                spec.write_text("nodes: []")
            yield function(task)

    _divided(spec, divided, changing)
    assert _digests(divided) == expected


# The same on the nodes of a Ray cluster.

QUICK_LOSS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
"""Ray notices a lost node after seconds."""
NODE = {"num_cpus": 1, "memory": 2_500_000_000, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def ray_nodes():
    """A Ray cluster of two nodes of this host."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # Ray's own, about files it has not closed.
        warnings.simplefilter("ignore")
        head = {**NODE, "include_dashboard": False, "_system_config": QUICK_LOSS}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**NODE)
        cluster.wait_for_nodes(60)
        yield cluster
        cluster.shutdown()


@pytest.mark.slow
def test_an_import_on_ray_is_that_of_one_machine(bench: Workbench, ray_nodes) -> None:
    _tables(bench, "strings")
    spec = bench.spec(*SPECS["several types"])
    import_tables(spec, bench.out)
    told = [str(spec), "--out", str(bench.folder / "ray"), "--ray", ray_nodes.address, "--memory-gb"]
    result = CliRunner().invoke(data, ["import", *told, "1", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["edges"] == Graph.open(bench.out).num_edges
    assert _digests(bench.folder / "ray") == _digests(bench.out)
    # The parts of a graph are written by tasks too.
    cut(Graph.open(bench.out), Cut(3, method="random"), bench.folder / "here")
    with ray_tasks(ray_nodes.address) as mapped:
        cut(Graph.open(bench.out), Cut(3, method="random"), bench.folder / "parts", mapped=mapped)
    assert _digests(bench.folder / "parts") == _digests(bench.folder / "here")
    refusal = CliRunner().invoke(data, ["import", *told, "2000", "--force"])
    assert "--memory-gb" in str(refusal.exception) and "2000 GB" in str(refusal.exception)


KILLED = """
import os, signal, sys
from penstock.cluster.launch.ray_cluster import ray_tasks
from penstock.graph.tables import distributed
from penstock.graph.tables.importer import run_import

done = []
for name in ("_LEAST_ROWS", "_GROUP_ROWS", "_RANGE_EDGES"):
    setattr(distributed, name, 500)
with ray_tasks(sys.argv[3], 1.0) as mapped:
    def killing(function, tasks):
        for result in mapped(function, tasks):
            yield result
            done.append(result)
            if len(done) == 30:
                os.kill(os.getpid(), signal.SIGKILL)

    run_import(sys.argv[1], sys.argv[2], memory_gb=1.0, mapped=killing)
"""


@pytest.mark.long
def test_a_driver_that_is_killed_is_gone_on_with(bench: Workbench, ray_nodes) -> None:
    _tables(bench, "strings")
    spec, notes = bench.spec(*SPECS["several types"]), Notes()
    import_tables(spec, bench.out)
    command = [sys.executable, "-c", KILLED, str(spec), str(bench.folder / "ray"), ray_nodes.address]
    assert subprocess.run(command, env=os.environ, timeout=300).returncode == -signal.SIGKILL
    with ray_tasks(ray_nodes.address, 1.0) as mapped:
        _divided(spec, bench.folder / "ray", mapped, notes, memory_gb=1.0)
    assert _digests(bench.folder / "ray") == _digests(bench.out)
    assert "goes on after" in notes.notes[0]


@pytest.mark.long
def test_a_node_that_is_lost_changes_nothing(bench: Workbench, ray_nodes) -> None:
    """The last test: one node is left."""
    _tables(bench, "strings")
    spec = bench.spec(*SPECS["several types"])
    import_tables(spec, bench.out)
    done = []
    with ray_tasks(ray_nodes.address, 1.0) as mapped:

        def losing(function, tasks):
            for result in mapped(function, tasks):
                done.append(result)
                if len(done) == 10:
                    (other,) = ray_nodes.worker_nodes
                    ray_nodes.remove_node(other, allow_graceful=False)
                yield result

        _divided(spec, bench.folder / "ray", losing, memory_gb=1.0)
    assert not ray_nodes.worker_nodes
    assert _digests(bench.folder / "ray") == _digests(bench.out)
