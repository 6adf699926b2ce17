"""The command line as a user and as a script meet it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from forks import forked_command as run
from forks import run_forked
from in_process import command
from penstock import Graph
from penstock.cli.output import check_new_file
from penstock.version import __version__
from random_graphs import directed_graph
from refusals import Refusal, refused

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


def started(*arguments):
    """One command as a program of its own; its output as text."""
    command = [*PENSTOCK, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def run_json(*arguments, run=run):
    """The object a successful command prints; nothing else may be on stdout or stderr."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def sentence(*arguments, run=run):
    """The error sentence of a command that must fail, asked for both ways."""
    plain = run(*arguments)
    assert plain.returncode == 2, plain.stderr
    assert plain.stdout == ""
    *progress, last = plain.stderr.splitlines()
    assert last.startswith("Error: ")
    assert "Traceback" not in plain.stderr
    assert all(line.endswith(" s") for line in progress)
    as_object = run(*arguments, "--json")
    assert as_object.returncode == 2
    assert as_object.stdout == ""
    error = json.loads(as_object.stderr)
    text = Refusal(error["error"], error["code"])
    assert last.removeprefix("Error: ") == text
    return text


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "graph"
    directed_graph().save(folder)
    return folder


def test_version():
    assert started("--version").stdout == f"penstock {__version__}\n"
    assert run_json("--version") == {"version": __version__}


@pytest.mark.parametrize(
    "command",
    [[], ["data"], ["partition"], *(["data", name] for name in ("make", "import", "inspect", "export", "list"))],
)
def test_help_has_an_example(command):
    text = run(*command, "--help").stdout
    assert "Example" in text or command == ["data"]
    assert "Usage" in text


def test_list():
    names = [row["name"] for row in run_json("data", "list")["datasets"]]
    assert "synthetic-products" in names
    assert "synthetic-products" in run("data", "list").stdout


def test_make(tmp_path):
    found = run_json("data", "make", "synthetic-arxiv", "--scale", 0.01, "--out", tmp_path / "g")
    assert set(found) == {"path", "nodes", "edges", "seconds", "peak_rss_mb"}
    opened = Graph.open(found["path"])
    assert (opened.num_nodes, opened.num_edges) == (found["nodes"], found["edges"])
    sized = run_json("data", "make", "synthetic-arxiv", "--nodes", 500, "--out", tmp_path / "h")
    assert sized["nodes"] == 500


def test_inspect(graph):
    found = run_json("data", "inspect", graph)
    assert found["node_types"]["node"]["count"] == 1500
    assert found["node_types"]["node"]["fields"] == {"x": {"dtype": "float32", "shape": [1500, 1]}}
    assert found["node_types"]["node"]["splits"]["train"] == 500
    assert found["edge_types"]["node__to__node"]["count"] == 9000
    assert found["degree"]["mean"] == 6.0
    assert isinstance(found["warnings"], list)
    assert "In-degree" in run("data", "inspect", graph).stdout


def test_partition(graph, tmp_path):
    found = run_json("partition", graph, "--parts", 3, "--trainers", 2, "--out", tmp_path / "p")
    wanted = {"path", "method", "parts", "trainers", "edge_cut", "edge_cut_fraction", "comm_volume", "max_send"}
    assert wanted | {"max_recv", "balance", "seconds", "peak_rss_mb"} <= set(found)
    assert set(found["balance"]) == {"vertices", "edges", "train"}
    assert max(found["balance"].values()) <= 1.05
    document = json.loads((tmp_path / "p" / "partition.json").read_text())
    assert document["metrics"]["edge_cut"] == found["edge_cut"]


def test_balance_is_reported_whatever_was_asked(graph, tmp_path):
    found = run_json("partition", graph, "--parts", 2, "--balance", "vertices", "--out", tmp_path / "p")
    assert set(found["balance"]) == {"vertices", "edges", "train"}


def test_compare_writes_nothing(graph, tmp_path):
    before = sorted(graph.parent.rglob("*"))
    found = run_json("partition", graph, "--parts", 2, "--compare", "--methods", "random,chunk,metis+balanced")
    assert [row["method"] for row in found["compare"]] == ["random", "chunk", "metis"]
    assert found["compare"][2]["refine"] == "balanced"
    assert sorted(graph.parent.rglob("*")) == before
    table = run("partition", graph, "--parts", 2, "--compare", "--methods", "random,chunk").stdout
    assert "edges cut" in table


def test_progress_is_plain_lines_off_a_terminal(graph, tmp_path):
    done = run("partition", graph, "--parts", 2, "--out", tmp_path / "p")
    assert "METIS, 3 constraints" in done.stderr
    assert "\x1b" not in done.stderr


BAD = {
    "no such graph": (["partition", "nowhere", "--parts", "2", "--out", "{out}"], "neither a path"),
    "one part": (["partition", "{graph}", "--parts=1", "--out", "{out}"], "cuts nothing"),
    "no part": (["partition", "{graph}", "--parts=0", "--out", "{out}"], "at least 1"),
    "more parts than vertices": (["partition", "{graph}", "--parts=1501", "--out", "{out}"], "fewer than 1501 parts"),
    "more trainers than vertices": (
        ["partition", "{graph}", "--parts=2", "--trainers", "900", "--out", "{out}"],
        "fewer than",
    ),
    "unknown method": (["partition", "{graph}", "--parts=2", "--method", "mets", "--out", "{out}"], "mean 'metis'"),
    "unknown refinement": (["partition", "{graph}", "--parts=2", "--refine", "x", "--out", "{out}"], "no refinement"),
    "unknown constraint": (["partition", "{graph}", "--parts=2", "--balance", "x", "--out", "{out}"], "know 'x'"),
    "absent split": (["partition", "{graph}", "--parts=2", "--balance", "test", "--out", "{out}"], "no test vertices"),
    "tolerance": (["partition", "{graph}", "--parts=2", "--tolerance", "0.9", "--out", "{out}"], "out of range"),
    "no output": (["partition", "{graph}", "--parts=2"], "--out"),
    "unknown option": (["partition", "{graph}", "--part", "2"], "--part"),
    "unknown data set": (["data", "make", "synthetic-arxv", "--out", "{out}"], "synthetic-arxiv"),
    "bad scale": (["data", "make", "synthetic-arxiv", "--scale", "0", "--out", "{out}"], "out of range"),
    "two sizes": (["data", "make", "synthetic-arxiv", "--scale", "1", "--nodes", "5", "--out", "{out}"], "not both"),
    "bad threads": (["partition", "{graph}", "--parts=2", "--threads", "-1", "--out", "{out}"], "--threads"),
    "huge seed": (["data", "make", "synthetic-arxiv", "--seed", "9" * 30, "--out", "{out}"], "--seed"),
    "long name": (["partition", "{graph}", "--parts=2", "--out", "{out}" + "x" * 300], "too long"),
    "both": (["partition", "{graph}", "--parts=2", "--compare", "--out", "{out}"], "writes nothing"),
    "refinement to compare": (["partition", "{graph}", "--parts=2", "--compare", "--methods=metis+x"], "no refinement"),
    "itself": (["partition", "{graph}", "--parts=2", "--out", "{graph}", "--force"], "is being cut"),
    "inspect nothing": (["data", "inspect", "nowhere"], "neither a path"),
    "unwritable": (
        ["data", "make", "synthetic-arxiv", "--nodes", "99", "--out", "/proc/penstock/g"],
        "Could not write",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(case, graph, tmp_path, monkeypatch, capsys):
    def run_here(*arguments):
        return subprocess.CompletedProcess(arguments, *command(monkeypatch, capsys, *arguments))

    arguments, expected = BAD[case]
    out = tmp_path / "out"
    filled = [text.format(graph=graph, out=out) for text in arguments]
    # Few of them go the way of a program: all are answered by the same lines.
    alone = case in ("no such graph", "unknown option", "unwritable")
    assert expected in sentence(*filled, run=run if alone else run_here)
    assert list(tmp_path.iterdir()) == []


def test_json_before_the_command_is_explained():
    done = run("--json")
    assert done.returncode == 2
    assert json.loads(done.stderr)["code"] == "usage"


def test_existing_output_survives(graph, tmp_path):
    run_json("partition", graph, "--parts", 2, "--out", tmp_path / "p")
    before = (tmp_path / "p" / "partition.json").read_text()
    assert "--force" in sentence("partition", graph, "--parts", 3, "--out", tmp_path / "p")
    assert (tmp_path / "p" / "partition.json").read_text() == before
    assert run_json("partition", graph, "--parts", 3, "--out", tmp_path / "p", "--force")["parts"] == 3


SMALL_FILES = """
import resource, signal, sys
from penstock.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
sys.argv = {words!r}
main()
"""
"""A command whose files may grow to a megabyte only: to the program, a disk that fills up."""


def with_small_files(*arguments):
    """One command on a disk that fills up."""
    return run_forked(["python", SMALL_FILES.format(words=["penstock", *map(str, arguments)])])


@pytest.mark.parametrize("command", ["make", pytest.param("partition", marks=pytest.mark.long)])
def test_a_disk_that_fills_up(command, tmp_path):
    if command == "make":
        arguments = ["data", "make", "synthetic-arxiv", "--scale", 0.05, "--out", tmp_path / "out" / "g"]
    else:
        big = tmp_path / "big"
        run_json("data", "make", "synthetic-arxiv", "--scale", 0.1, "--out", big)
        arguments = ["partition", big, "--parts", 2, "--method", "random", "--out", tmp_path / "out" / "p"]
    text = sentence(*arguments, run=with_small_files)
    assert "Could not write" in text
    assert "File too large" in text
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    "method", ["hypergraph", *(pytest.param(each, marks=pytest.mark.long) for each in ("metis", "random"))]
)
def test_ctrl_c_in_the_middle(method, tmp_path):
    """Interrupt at whatever point it has reached: nothing is left, the exit code says so, there is no traceback."""
    big = tmp_path / "big"
    run_json("data", "make", "synthetic-products", "--scale", 0.02, "--out", big)
    out = tmp_path / "out"
    command = [*PENSTOCK, "partition", str(big), "--parts", "16", "--method", method, "--out", str(out / "p")]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    child.stderr.readline()  # it has begun: the first step is over
    os.killpg(child.pid, signal.SIGINT)
    stdout, stderr = child.communicate(timeout=60)
    if child.returncode == 0:
        pytest.skip("it finished before the interrupt arrived")
    assert child.returncode == 130
    assert "Traceback" not in stderr
    assert "Interrupted: nothing was written." in stderr
    assert stdout == ""
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.parametrize("delay", [0.05, 0.3, 0.6])
def test_ctrl_c_while_starting(delay, graph, tmp_path):
    """Before the first progress line too: a sentence and 130, or a command that had already finished."""
    # The interpreter's own start is not ours to answer for: wait until our first line is about to run.
    start = "import sys; from penstock.cli import main; print('up', file=sys.stderr, flush=True); main()"
    command = [sys.executable, "-c", start, "partition", str(graph), "--parts", "4", "--out", str(tmp_path / "p")]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stderr.readline() == "up\n"
    try:
        child.wait(delay)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert child.returncode in (0, 130)
    assert (tmp_path / "p").exists() == (child.returncode == 0)


def test_a_polite_kill_cleans_up(tmp_path):
    big = tmp_path / "big"
    run_json("data", "make", "synthetic-products", "--scale", 0.02, "--out", big)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [
        *PENSTOCK,
        "partition",
        str(big),
        "--parts",
        "16",
        "--method",
        "hypergraph",
        "--out",
        str(tmp_path / "p"),
    ]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(scratch)})
    child.stderr.readline()
    child.terminate()
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Interrupted" in stderr
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "p").exists()


def test_notes_are_in_the_json(graph):
    found = run_json("partition", graph, "--parts", 2, "--compare", "--methods", "chunk", "--tolerance", 1.0001)
    assert any("Parts differ" in note for note in found["notes"])


def test_starting_does_not_import_torch():
    """Commands that need no torch must not wait seconds for it."""
    code = "import sys, penstock.cli; print(any(m in sys.modules for m in ('torch', 'triton')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_page_is_not_written_at_an_address():
    with refused("invalid-value s3://lab/page.html"):
        check_new_file(Path("s3://lab/page.html"), False)


@pytest.mark.parametrize("features", [0, pytest.param(128, marks=pytest.mark.long)])
def test_memory_of_writing_parts_is_bounded(features, tmp_path):
    """Peak memory over that of an idle command stays within twice the graph's own size, features or not.

    Lists that are read and parts that are written are mapped, which is twice the graph; threads and what they allocate
    differ by some megabytes from run to run.
    """
    rng = np.random.default_rng(0)
    from penstock import EdgeSet, NodeSet
    from penstock.graph.csr import build_lists

    count, edges = (200_000, 2_000_000) if features else (250_000, 5_000_000)
    indptr, indices, _ = build_lists(rng.integers(0, count, edges), rng.integers(0, count, edges), count, count)
    nodes = NodeSet(count, {"x": rng.random((count, features), np.float32)} if features else {})
    big = Graph({"v": nodes}, {("v", "e", "v"): EdgeSet(indptr, indices)}).save(tmp_path / "big")
    directed_graph(100, 400).save(tmp_path / "small")
    cutting = ["partition", "--parts", 4, "--method", "random"]
    peaks = {
        name: run_json(*cutting, tmp_path / name, "--out", tmp_path / f"{name}4", run=started)
        for name in ("small", "big")
    }
    grown = (peaks["big"]["peak_rss_mb"] - peaks["small"]["peak_rss_mb"]) * (1 << 20)
    assert grown < 2 * big.nbytes + (8 << 20)
    assert Path(peaks["big"]["path"]).is_dir()
