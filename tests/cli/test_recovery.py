"""Partitioning and importing, killed at any file or on a full disk: nothing half made is left in the result's place.

The same command, given again, ends with the bytes of one that nothing happened to, and removes what the other left.
"""

import json
import os
import signal
import subprocess

import numpy as np
import pytest

from forks import forked_command, run_forked
from penstock import Graph
from penstock.graph.files import claimed
from penstock.graph.new_folders import new_folder
from penstock.partition import open_partition
from refusals import refused
from training_graphs import community_graph

KILLED = """
import os, signal, sys
from penstock.cli import main
from penstock.graph import arrays, files

made, opened = [], arrays.open_bytes

def open_bytes(path, *how):
    made.append(path)
    if len(made) == {file}:
        os.kill(os.getpid(), signal.SIGKILL)
    return opened(path, *how)

arrays.open_bytes = files.open_bytes = open_bytes
sys.argv = {words!r}
main()
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A graph folder and tables."""
    folder = tmp_path_factory.mktemp("inputs")
    community_graph(2000).save(folder / "graph")
    draws = np.random.default_rng(0)
    rows = "".join(f"v{n},{value:.3f},{n % 3}\n" for n, value in enumerate(draws.random(2000)))
    (folder / "nodes.csv").write_text("id,a,y\n" + rows)
    pairs = draws.integers(0, 2000, (9000, 2)).tolist()
    (folder / "edges.csv").write_text("src,dst\n" + "".join(f"v{a},v{b}\n" for a, b in pairs))
    (folder / "spec.yaml").write_text(
        "nodes: [{type: v, files: nodes.csv, id: id, features: [a], label: y}]\n"
        "edges: [{type: [v, to, v], files: edges.csv, source: src, destination: dst}]\n"
    )
    return folder


WORDS = {
    "partition": ["partition", "graph", "--parts", "3", "--out"],
    "import": ["data", "import", "spec.yaml", "--out"],
}
LEFT = ".out.unfinished"
"""What a killed command leaves."""


def words(what, inputs, out):
    return [str(inputs / each) if (inputs / each).exists() else each for each in WORDS[what]] + [str(out)]


def content(folder):
    """Every file of a folder by its path, without what is different in every run."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name, data in found.items():
        if name.endswith(".json"):
            found[name] = {key: value for key, value in json.loads(data).items() if key not in ("seconds", "name")}
    return found


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """What the commands make where nothing happens, and how many files they write."""
    made = {}
    for what in WORDS:
        folder = tmp_path_factory.mktemp(what) / "out"
        done = forked_command(*words(what, inputs, folder))
        assert done.returncode == 0, done.stderr
        made[what] = content(folder)
    return made


@pytest.mark.parametrize("what", WORDS)
def test_killed(what, inputs, whole, tmp_path):
    out = tmp_path / "out"
    arrays = sum(name.endswith(".npy") for name in whole[what])
    for file in (1, 3, arrays - 1, arrays):
        script = KILLED.format(file=file, words=["penstock", *words(what, inputs, out)])
        done = run_forked(["python", script])
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not out.exists()
        left = [path.name for path in tmp_path.iterdir()]
        assert left == [LEFT]
        for read in (Graph.open, open_partition):
            with refused("wrong-file"):
                read(tmp_path / left[0])
    done = forked_command(*words(what, inputs, out))
    assert done.returncode == 0, done.stderr
    assert content(out) == whole[what]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("what", WORDS)
def test_a_full_disk(what, inputs, whole, tmp_path):
    """At sizes from nothing to almost enough: one sentence each, and nothing left but what a cut goes on with, as the
    sentence says; then there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount here")
    try:
        need = sum(len(each) for each in whole[what].values() if isinstance(each, bytes))
        for share in (0.0, 0.2, 0.5, 0.9):
            size = max(4096, int(need * share) // 4096 * 4096)
            subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
            done = forked_command(*words(what, inputs, disk / "out"), "--json")
            assert done.returncode == 2 and done.stderr.count("\n") == 1, (share, done.stderr)
            assert "No space left on device" in done.stderr and str(disk / "out") in done.stderr
            goes_on = what == "partition" and "the same command then goes on" in done.stderr
            assert list(disk.iterdir()) == [disk / LEFT] * goes_on
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        done = forked_command(*words(what, inputs, disk / "out"))
        assert done.returncode == 0, done.stderr
        assert content(disk / "out") == whole[what]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_lasting_folder_is_removed_by_the_next_writer_unless_it_has_a_journal(tmp_path):
    left = tmp_path / ".g.unfinished"
    for name, stays in (("x.npy", False), ("journal", True)):
        left.mkdir()
        (left / name).write_bytes(b"half")
        with new_folder(tmp_path / "g", force=True) as made:
            (made / "graph.json").write_text('{"format": "penstock-graph"}')
        assert left.exists() == stays


def test_what_a_process_that_lives_is_writing_stays(tmp_path):
    """A folder that is replaced, too: killed between two renames, the old one is the only one."""
    for name in (".g.writing-00000000", ".g.writing-11111111", ".g.replaced-22222222", ".other.writing-33333333"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.npy").write_bytes(b"half")
    with claimed(tmp_path / ".g.writing-11111111"), new_folder(tmp_path / "g") as made:
        (made / "x").write_text("whole")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"g", ".g.writing-11111111", ".g.replaced-22222222", ".other.writing-33333333"}
    (tmp_path / "g" / "graph.json").write_text('{"format": "penstock-graph"}')
    with new_folder(tmp_path / "g", force=True) as made:
        (made / "x").write_text("again")
    assert {path.name for path in tmp_path.iterdir()} == {"g", ".other.writing-33333333"}
