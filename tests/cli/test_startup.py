"""What a command imports before it answers, and how it introduces itself: help, completion, the first line."""

import os
import re
import subprocess
import sys

from in_process import command
from penstock.cli.job_flags import SHORT_HELP
from penstock.cli.main import COMMANDS
from penstock.train.job import JobFields
from training_graphs import community_graph

HEAVY = ("torch", "numba", "pyarrow", "scipy", "zmq", "ray", "networkx")
INSIDE = """
import os, sys
watched, *commands = sys.argv[1:]
watched = watched.split(",")
from penstock.cli import main
try:
    for words in commands or [""]:
        sys.argv = ["penstock", *words.split()]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        sys.modules["penstock.cli.main"].app.registered_commands.clear()
finally:
    assert not os.path.exists(f"/tmp/perf-{os.getpid()}.map"), "a file for a profiler"
    print("imported:" + ",".join(name for name in watched if name in sys.modules), file=sys.stderr)
"""
ALL_COMPLETED = """
import ast, os, sys
watched, typed = map(ast.literal_eval, sys.argv[1:])
from penstock.cli.main import app, run
sys.argv = ["penstock"]
for words in typed:
    print(end="\\f")
    os.environ.update(_PENSTOCK_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1))
    app.registered_commands.clear()
    app.registered_groups.clear()
    try:
        run()
    except SystemExit as end:
        assert not end.code, words
    imported = [name for name in watched if name in sys.modules]
    assert not imported, f"{words} imports {imported}"
"""
ALL_HELP = """
import ast, sys
watched, pages = map(ast.literal_eval, sys.argv[1:])
from penstock.cli.main import app, run
for words in pages:
    print(end="\\f")
    sys.argv = ["penstock", *words]
    app.registered_commands.clear()
    app.registered_groups.clear()
    assert run() == 0
    imported = [name for name in watched if name in sys.modules]
    assert not imported, f"{words} imports {imported}"
"""
HELP = [
    [],
    *([name] for name in COMMANDS),
    *(["data", name] for name in ("import", "inspect", "export", "list", "make")),
    *(["bench", name] for name in ("sampling", "training")),
    *(["net", name] for name in ("show", "apply", "clear")),
]


def run_watched(watched, *commands, **variables):
    """Commands in a process of their own: its output, and which of the watched modules it imported."""
    program = [sys.executable, "-c", INSIDE, ",".join(watched), *commands]
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_JIT_PROFILE"} | variables
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    *_, last = done.stderr.splitlines()
    return done.stdout, [name for name in last.removeprefix("imported:").split(",") if name]


def test_help_imports_nothing_large():
    """Help is read by people who wait for it. One process gives all of it: what any page imports stays imported."""
    watched, pages = repr(HEAVY), [[*words, "--help"] for words in HELP]
    pages += [[name, "--help-all"] for name in ("train", "profile", "plan")]
    done = subprocess.run([sys.executable, "-c", ALL_HELP, watched, repr(pages)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts = done.stdout.split("\f")[1:]
    assert len(texts) == len(pages)
    for words, text in zip(pages, texts, strict=True):
        assert "Usage: penstock" in text, words
        assert "--checkpoint-minutes" in text or words[-1] != "--help-all", words


def test_the_service_imports_neither_torch_nor_kernels():
    """It lives as long as its queue, and forks programs that import them."""
    program = "import sys, penstock.service.app; print(*{'torch', 'numba', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == []


def test_training_does_not_import_the_compiler(tmp_path):
    """Nothing is compiled, so torch's compiler is not loaded; neither is what other sources of graphs need.

    Nor does training leave a file for a profiler: on ARM, oneDNN writes perf-PID.map for every process that computes,
    unless it is told not to.
    """
    community_graph().save(tmp_path / "graph")
    few = "--fanouts 4,3 --hidden 8 --epochs 2 --device cpu --threads 1"
    watched = ["torch._dynamo", "torch", "scipy.sparse", "pyarrow.compute", "networkx", "mtkahypar", "ray", "zmq"]
    train = f"train --graph {tmp_path / 'graph'} --run {tmp_path / 'run'} {few} --checkpoint-steps 1 --json"
    _, imported = run_watched(watched, train, f"train --resume {tmp_path / 'run'} --epochs 3 --json")
    assert imported == ["torch"]


def test_a_line_comes_before_the_imports(tmp_path):
    """Nobody should wonder whether anything happens; with --json stderr stays empty."""
    text = "import penstock.cli.train, sys; sys.meta_path.insert(0, Finder()); penstock.cli.train.train_command({})"
    finder = """
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise SystemExit("stopped at torch")
"""
    for quiet, said in ((False, "Training: the graph data/mine.\nstopped at torch\n"), (True, "stopped at torch\n")):
        given = f"graph='data/mine', as_json={quiet}"
        done = subprocess.run(
            [sys.executable, "-c", finder + text.format(given)], capture_output=True, text=True, check=False
        )
        assert done.stdout == ""
        assert done.stderr == said


def test_the_short_help_has_the_flags_that_most_runs_need(monkeypatch, capsys):
    """A new field of a job is in the long help by itself; the short one says that there is more."""
    assert set(SHORT_HELP) <= set(JobFields.model_fields)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    _, short, _ = command(monkeypatch, capsys, "train", "--help")
    _, long, _ = command(monkeypatch, capsys, "train", "--help-all")
    # Python keeps `from` to itself, so the field of the flag --from is `from_run`, and the short help has the flag.
    flags = {f"--{name.replace('_', '-')}" for name in JobFields.model_fields if name != "from_run"}
    assert "--from" in short and "--from" in long
    shown = set(re.findall(r"--[a-z][a-z-]*", short))
    assert shown & flags == {f"--{name.replace('_', '-')}" for name in SHORT_HELP}
    assert flags <= set(re.findall(r"--[a-z][a-z-]*", long))
    assert f"{len(flags) - len(SHORT_HELP)} more" in " ".join(short.replace("│", " ").split())
    assert len(short.splitlines()) < 90 < len(long.splitlines())


def test_a_shell_completes_commands_flags_and_choices():
    """Also flags that the short help leaves out; and without waiting for torch."""
    answers = {
        "penstock tr": {"train"},
        "penstock data ma": {"make"},
        "penstock train --weight-d": {"--weight-decay"},
        "penstock train --checkpoint-": {"--checkpoint-steps", "--checkpoint-minutes"},
        "penstock train --model ga": {"gat", "gatv2"},
    }
    words = [sys.executable, "-c", ALL_COMPLETED, repr(HEAVY), repr([*answers])]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [set(text.split()) for text in done.stdout.split("\f")[1:]]
    assert found == [*answers.values()]


def test_the_script_for_a_shell_is_printed():
    text, imported = run_watched(HEAVY, _PENSTOCK_COMPLETE="source_bash")
    assert "_PENSTOCK_COMPLETE=complete_bash" in text
    assert imported == []


def test_python_can_run_the_package():
    """`python -m penstock` is the command line."""
    done = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("penstock ")
    done = subprocess.run([sys.executable, "-m", "penstock", "trian"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "train" in done.stderr
