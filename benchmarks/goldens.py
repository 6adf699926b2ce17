"""What a change of structure must leave as it is: losses to the last bit, documents, pages and help.

A dozen jobs of every kind are trained (mini-batches, typed, links, triples, whole graphs, explained sampling,
clusters of two workers, captured steps in Triton's interpreter, a job through the queue), and every command answers
with `--json` and `--help`. Losses and metrics are kept as hexadecimal floats; of documents the keys and types, and
values where they do not depend on time; of pages a hash without the date. Times, paths and memory are left out.
Run, in the root of each of two checkouts: python benchmarks/goldens.py --out FILE [--only WORD,...] [--parallel 2]
[--keep FOLDER] [--gpu], and then: python benchmarks/goldens.py --compare A B, which exits with 1 if anything differs.
With --gpu the jobs are those of one GPU: captured, launched, filled by the host, summed, triples, whole graphs.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path.cwd()
INSTALLED = ROOT / ".venv/bin/python"
PYTHON = (
    str(INSTALLED) if sys.prefix == sys.base_prefix and INSTALLED.exists() else str(Path(sys.executable).absolute())
)
EXAMPLES = ROOT / "docs/examples"
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "COLUMNS": "100",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PENSTOCK_OPERATORS": "shipped",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / ".gpu/site")]),
}
ENVIRONMENT.pop("PENSTOCK_QUEUE", None)

SMALL = ["--device", "cpu", "--threads", "1", "--seed", "3"]
SAGE = ["--model", "sage", "--hidden", "16", "--fanouts", "5,3", "--batch-size", "256", "--epochs", "3", *SMALL]
TRIPLES = (
    "--task knowledge-graph-completion --model embedding --embedding 16 --corrupt both --embedding-lr 0.05 --lr 0.05"
)
LINK = ["--task", "link-prediction", "--model", "sage", "--hidden", "16", "--fanouts", "4,3", "--batch-size", "1024"]
WHOLE = ["--sampler", "whole", "--model", "gcn", "--layers", "2", "--hidden", "16", "--epochs", "3", *SMALL]
TWO = ["--cluster", "2x1"]

# Name: (what it needs, words behind `penstock`; {name} is the folder or file of another step).
TRAINED = {
    "sage": (["arxiv"], ["--graph", "{arxiv}", *SAGE]),
    "gat-labor": (["arxiv"], ["--graph", "{arxiv}", *SAGE, "--model", "gat", "--heads", "2", "--sampler", "labor"]),
    "gin-saint": (
        ["arxiv"],
        ["--graph", "{arxiv}", *SAGE, "--model", "gin", "--sampler", "saint-vertex", "--batch-size", "4000"],
    ),
    "typed": (["mag"], ["--graph", "{mag}", *SAGE, "--model", "rgcn", "--embedding", "8", "--hidden", "8"]),
    "link": (["collab"], ["--graph", "{collab}", *LINK, "--epochs", "2", *SMALL]),
    "triples-complex": (
        ["triples"],
        [
            "--graph",
            "{triples}",
            *TRIPLES.split(),
            "--scorer",
            "complex",
            "--negatives",
            "all",
            "--loss",
            "softmax",
            "--batch-size",
            "16",
            "--epochs",
            "3",
            *SMALL,
        ],
    ),
    "triples-transe": (
        ["triples"],
        [
            "--graph",
            "{triples}",
            *TRIPLES.split(),
            "--scorer",
            "transe",
            "--margin",
            "3",
            "--loss",
            "margin",
            "--negatives-per-edge",
            "16",
            "--batch-size",
            "16",
            "--epochs",
            "3",
            *SMALL,
        ],
    ),
    "whole": (["arxiv"], ["--graph", "{arxiv}", *WHOLE, "--bins", "3", "--dropout", "0.3"]),
    "whole-link": (["collab"], ["--graph", "{collab}", *WHOLE, "--task", "link-prediction", "--epochs", "2"]),
    "cluster-sage": (["arxiv"], ["--graph", "{arxiv}", *SAGE, "--epochs", "2", *TWO]),
    "cluster-link": (["collab"], ["--graph", "{collab}", *LINK, "--epochs", "2", *SMALL, *TWO]),
    "cluster-whole": (["arxiv"], ["--graph", "{arxiv}", *WHOLE, "--epochs", "2", *TWO]),
    "cluster-explained": (
        ["arxiv"],
        [
            "--graph",
            "{arxiv}",
            *SAGE,
            "--sampler",
            "explained",
            "--explain-every",
            "2",
            "--batch-size",
            "128",
            "--epochs",
            "2",
            *TWO,
        ],
    ),
}
# On one GPU: steps captured, launched, summed among workers, filled by the host, on triples and on the whole graph.
CUDA = ["--device", "cuda", "--threads", "2", "--seed", "3"]
SAGE_CUDA = ["--model", "sage", "--hidden", "32", "--fanouts", "5,3", "--batch-size", "256", "--epochs", "3", *CUDA]
TRIPLES_CUDA = ["--graph", "{triples}", *TRIPLES.split(), "--batch-size", "16", "--epochs", "3", *CUDA]
COMPLEX = ["--scorer", "complex", "--negatives", "all", "--loss", "softmax"]
TRANSE = ["--scorer", "transe", "--margin", "3", "--loss", "margin", "--negatives-per-edge", "16"]
WHOLE_CUDA = [*WHOLE, *CUDA, "--dropout", "0.3"]
TRAINED_CUDA = {
    "cuda-captured": (["arxiv"], ["--graph", "{arxiv}", *SAGE_CUDA, "--dropout", "0.3"]),
    "captured-gat": (["arxiv"], ["--graph", "{arxiv}", *SAGE_CUDA, "--model", "gat", "--heads", "2"]),
    "captured-clipped": (["arxiv"], ["--graph", "{arxiv}", *SAGE_CUDA, "--model", "gcn", "--clip", "0.1"]),
    "launched": (["arxiv"], ["--graph", "{arxiv}", *SAGE_CUDA, "--capture", "false"]),
    "host-filled": (["arxiv"], ["--graph", "{arxiv}", *SAGE_CUDA, "--placement", "{{features: pinned}}"]),
    "host-gathered": (["arxiv"], ["--graph", "{arxiv}", *SAGE_CUDA, "--placement", "{{features: host}}"]),
    "host-aggregated": (
        ["arxiv"],
        ["--graph", "{arxiv}", *SAGE_CUDA, "--placement", "{{features: host}}", "--first-layer", "aggregate"],
    ),
    "host-drawn": (["arxiv"], ["--graph", "{arxiv}", *SAGE_CUDA, "--sample-on", "host"]),
    "cuda-typed": (["mag"], ["--graph", "{mag}", *SAGE_CUDA, "--model", "rgcn", "--embedding", "8"]),
    "cuda-link": (["collab"], ["--graph", "{collab}", *LINK, "--epochs", "2", *CUDA]),
    "cuda-complex": (["triples"], [*TRIPLES_CUDA, *COMPLEX]),
    "cuda-transe": (["triples"], [*TRIPLES_CUDA, *TRANSE]),
    "cuda-whole": (["arxiv"], ["--graph", "{arxiv}", *WHOLE_CUDA]),
    "cuda-whole-bins": (["arxiv"], ["--graph", "{arxiv}", *WHOLE_CUDA, "--bins", "3"]),
    "cuda-summed": (["arxiv", "shared"], ["--graph", "{arxiv}", *SAGE_CUDA, "--cluster", "{shared}"]),
    "cuda-shared-launched": (
        ["arxiv", "shared"],
        ["--graph", "{arxiv}", *SAGE_CUDA, "--cluster", "{shared}", "--capture", "false"],
    ),
}
INTERNALS = {"cluster-explained": {"explain_delay": 1, "explain_steps": 5}}
"""Of jobs that are trained by benchmarks/with_internals.py."""
MADE = {
    "arxiv": ["data", "make", "synthetic-arxiv", "--scale", "0.01"],
    "mag": ["data", "make", "synthetic-mag", "--scale", "0.001"],
    "collab": ["data", "make", "synthetic-collab", "--scale", "0.01"],
}
# Name: (needs, words, whether values are compared as well as keys, pages that are written).
COMMANDS = {
    "data-list": ([], ["data", "list"], True, []),
    "data-inspect": (["arxiv"], ["data", "inspect", "{arxiv}"], True, []),
    "data-inspect-mag": (["mag"], ["data", "inspect", "{mag}"], True, []),
    "data-export": (["mag"], ["data", "export", "{mag}", "--out", "tables", "--format", "csv"], False, []),
    "data-import": (["data-export"], ["data", "import", "{data-export}/tables/spec.yaml", "--out", "again"], False, []),
    "partition": (["arxiv"], ["partition", "{arxiv}", "--parts", "2", "--out", "parts"], True, []),
    "simulate": (
        [],
        ["simulate", str(EXAMPLES / "training.yaml"), "--compare", "--timeline", "t.html"],
        True,
        ["t.html"],
    ),
    "simulate-llm": ([], ["simulate", str(EXAMPLES / "mixtral.yaml"), "--timeline", "t.html"], True, ["t.html"]),
    "simulate-trace": ([], ["simulate", str(EXAMPLES / "shuffles.yaml"), "--compare"], True, []),
    "simulate-sweep": (
        [],
        ["simulate", str(EXAMPLES / "training.yaml"), "--sweep", "nic_gbps=1,10", "--chart", "c.html"],
        True,
        ["c.html"],
    ),
    "simulate-queue": (
        [],
        ["simulate", "--queue", str(EXAMPLES / "queue-trace.yaml"), "--chart", "q.html"],
        True,
        ["q.html"],
    ),
    "simulate-shop": ([], ["simulate", "--shop", str(EXAMPLES / "group.fjs"), "--compare"], False, []),
    "paths-show": ([], ["paths", "show"], True, []),
    "recipes": ([], ["recipes"], True, []),
    "memory": (["arxiv"], ["memory", "--graph", "{arxiv}", *SAGE], False, []),
    "evaluate": (["sage"], ["evaluate", "{sage}/run"], True, []),
    "predict": (["typed"], ["predict", "{typed}/run", "--out", "p.parquet"], False, []),
    "embed": (["sage"], ["embed", "{sage}/run", "--out", "e.parquet"], False, []),
    "export": (["sage"], ["export", "{sage}/run", "--out", "exported"], False, []),
    "explain": (
        ["sage"],
        ["explain", "{sage}/run", "--vertex", "17", "--steps", "10", "--out", "v.html"],
        True,
        ["v.html"],
    ),
    "report": (["sage"], ["report", "{sage}/run"], False, []),
    "compare": (["sage", "gat-labor"], ["compare", "{sage}/run", "{gat-labor}/run"], False, []),
    "profile": (["arxiv"], ["profile", "--graph", "{arxiv}", *SAGE, "--iterations", "3", "--out", "p.json"], False, []),
    "plan": (
        ["profile"],
        ["plan", "--graph", "{arxiv}", *SAGE, "--profile", "{profile}/p.json", "--steps", "50", "--out", "plan.json"],
        False,
        [],
    ),
    "plan-execution": (
        ["arxiv"],
        ["plan", "--execution", "--graph", "{arxiv}", *SAGE, "--out", "plan.json"],
        False,
        [],
    ),
    "bench-sampling": (
        ["arxiv"],
        ["bench", "sampling", "--graph", "{arxiv}", "--fanouts", "5,3", "--batches", "4"],
        False,
        [],
    ),
}

LOADER = """
import hashlib, json, sys
import numpy, torch
import penstock as ps

def fed(digest, value):
    if isinstance(value, torch.Tensor):
        digest.update(str((value.dtype, tuple(value.shape))).encode() + value.contiguous().cpu().numpy().tobytes())
    elif isinstance(value, numpy.ndarray):
        digest.update(str((value.dtype, value.shape)).encode() + numpy.ascontiguousarray(value).tobytes())

found = {}
cases = {
    "neighbour": dict(fanouts=[5, 3], batch_size=256, seed=1),
    "labor": dict(fanouts=[5, 3], batch_size=256, seed=1, sampler="labor"),
    "pairs": dict(fanouts=[4], batch_size=512, seed=1, task="link-prediction", split="train"),
}
for name, fields in cases.items():
    split = fields.pop("split", "train")
    graph = sys.argv[2] if name == "pairs" else sys.argv[1]
    digest, batches = hashlib.sha256(), 0
    batch_loader = ps.loader(graph, split, device="cpu", **fields)
    for _ in range(2):
        for batch in batch_loader:
            batches += 1
            for field in ("x", "edge_index", "y", "n_id", "e_id", "edge_label", "edge_label_index"):
                value = getattr(batch, field, None)
                for each in (value.values() if isinstance(value, dict) else [value]):
                    fed(digest, each)
    found[name] = {"batches": batches, "sha256": digest.hexdigest()}
    if hasattr(batch_loader, "close"):
        batch_loader.close()
print("GOLDEN " + json.dumps(found))
"""

# Captured steps in Triton's interpreter, with the parts of a test, whose imports are kept right with the sources.
CAPTURED = """
import importlib.util, json, os, sys
os.environ["TRITON_INTERPRET"] = "1"
import pytest, torch
root = sys.argv[1]
sys.path[:0] = [root + "/tests", root + "/tests/train/device"]
from interpreted_kernels import launch_faster, overflow_unchecked
launch_faster()
overflow_unchecked(pytest.MonkeyPatch())
import test_captured_steps as steps
from training_graphs import community_graph
session = steps.session_of(community_graph(120))
done, weights = steps.learned(session)
import hashlib
digest = hashlib.sha256()
for name in sorted(weights):
    digest.update(name.encode() + weights[name].detach().cpu().numpy().tobytes())
print("GOLDEN " + json.dumps({"losses": [float(step.loss).hex() for step in done], "weights": digest.hexdigest()}))
"""

HELP = """
import json, os, sys, tempfile
import typer
from penstock.cli import main  # before the module of that name takes its place

from penstock.cli.main import COMMANDS

pages = [["--help"], ["--version"]]
for name, command in COMMANDS.items():
    pages.append([name, "--help"])
    if isinstance(command, typer.Typer):
        for each in command.registered_commands:
            pages.append([name, each.name or each.callback.__name__.replace("_", "-"), "--help"])
pages += [[name, "--help-all"] for name in ("train", "profile", "plan")]
found = {}
for words in pages:
    with tempfile.TemporaryFile("w+") as out:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            sys.argv = ["penstock", *words]
            code = 0
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else bool(end.code)
            sys.stdout.flush()
            os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        found[" ".join(words)] = {"status": status, "text": out.read()}
print("GOLDEN " + json.dumps(found))
"""

# Imports everything once and forks a process for each command: on a busy machine imports take most of the time.
FORKS = """
import json, os, sys, traceback
from penstock.cli import main
from penstock.service.workers import warm
warm.import_everything()
print("READY", flush=True)
for line in sys.stdin:
    task = json.loads(line)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    if os.fork():
        continue
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with open(task["status"] + ".new", "w") as file:
            file.write(str(code))
        os.rename(task["status"] + ".new", task["status"])
        os._exit(0)
    os.chdir(task["cwd"])
    for number, name in ((0, os.devnull), (1, task["stdout"]), (2, task["stderr"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), number)
    sys.argv = ["penstock", *task["words"]]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""

STEPS = [*MADE, "triples", *TRAINED, *COMMANDS, "loader", "captured", "queue", "help"]
STEPS_CUDA = [*MADE, "triples", "shared", *TRAINED_CUDA]
# Never compared by value: times, speeds, memory, places, the machine.
VOLATILE = re.compile(
    r"seconds|_per_second|^time$|_ms$|rss|memory|_mb$|path|folder|^run$|^out$|^file|report$|chart$|started|took|elapsed|^bytes$|^written"
)
OPEN = {"flows"}
FIGURES = "val", "test", "val_loss", "loss", "lr"


class Golden:
    """Runs the steps, each in a folder of its own, and notes what came of them."""

    def __init__(self, folder, parallel, cold):
        self.forks, self.runs, self.cold = None, 0, cold
        self.folder, self.found, self.lock = (
            folder,
            {s: {} for s in ("jobs", "documents", "pages", "help", "errors")},
            threading.Lock(),
        )
        self.running, self.pool, self.slots = {}, ThreadPoolExecutor(64), threading.Semaphore(parallel)

    def step(self, name):
        with self.lock:
            if name not in self.running:
                self.running[name] = self.pool.submit(self._step, name)
            return self.running[name]

    def _step(self, name):
        needs = (TRAINED.get(name) or COMMANDS.get(name) or ([],))[0]
        needs = {
            "loader": ["arxiv", "collab"],
            "queue": ["arxiv"],
            "data-import": ["data-export"],
            "plan": ["arxiv", "profile"],
        }.get(name, needs)
        for each in needs:
            self.step(each).result()
        with self.slots:
            began = time.monotonic()
            (self.folder / name).mkdir()
            try:
                self._do(name)
            except Exception as error:
                self.note("errors", name, f"{type(error).__name__}: {error}")
            problem = self.found["errors"].get(name)
            print(
                f"{name}: {time.monotonic() - began:.1f} s{' FAILED ' + problem[:300] if problem else ''}",
                file=sys.stderr,
                flush=True,
            )

    def note(self, section, name, value):
        with self.lock:
            self.found[section][name] = value

    def _do(self, name):
        if name in MADE:
            self.document(name, self.penstock(name, [*MADE[name], "--out", "graph", "--json"]), True)
        elif name == "triples":
            lines = [f"n{i}\tbefore\tn{i + 1}\nn{i + 1}\tafter\tn{i}\nn{i}\ttwo-before\tn{i + 2}\n" for i in range(40)]
            (self.folder / name / "triples.tsv").write_text("".join(lines))
        elif name == "shared":
            machines = "machines: [{name: here, workers: 2, gpus: 1, address: 127.0.0.1}]\nshare_gpus: true\n"
            (self.folder / name / "cluster.yaml").write_text(machines)
        elif name in TRAINED:
            self.train(name)
        elif name in COMMANDS:
            _, words, exact, pages = COMMANDS[name]
            self.document(name, self.penstock(name, [*words, "--json"]), exact)
            for page in pages:
                self.page(name, self.folder / name / page, True)
            if name == "report":
                self.page(name, self.folder / "sage/run/report.html", False)
        elif name == "queue":
            self.queue()
        else:
            program = {"loader": LOADER, "captured": CAPTURED, "help": HELP}[name]
            given = {"loader": [self.place("arxiv"), self.place("collab")], "captured": [str(ROOT)]}.get(name, [])
            text = self.run(name, [PYTHON, "-c", program, *given])
            found = json.loads(text.rpartition("GOLDEN ")[2])
            if name == "help":
                for words, page in found.items():
                    page["sha256"] = hashlib.sha256(page["text"].encode()).hexdigest()
                    self.note("help", words, page)
            else:
                self.note("jobs", name, found)

    def place(self, name):
        """What a step has made."""
        inside = {**dict.fromkeys(MADE, "graph"), "triples": "triples.tsv", "shared": "cluster.yaml"}.get(name, "")
        return str(self.folder / name / inside).rstrip("/")

    def placed(self, words):
        """Words of a command, with the places of what they name."""
        words = [re.sub(r"(?<!\{)\{([\w-]+)\}", lambda m: self.place(m[1]), word) for word in words]
        return [word.replace("{{", "{").replace("}}", "}") for word in words]

    def penstock(self, name, words):
        words = self.placed(words)
        if self.cold:
            return json.loads(self.run(name, [PYTHON, "-m", "penstock", *words]))
        with self.lock:
            if self.forks is None:
                self.forks = subprocess.Popen(
                    [PYTHON, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True
                )
                if self.forks.stdout.readline() != "READY\n":
                    raise RuntimeError("the program that forks did not start: try --cold")
            self.runs += 1
            at = self.folder / "forks" / str(self.runs)
            at.mkdir(parents=True)
            task = {each: str(at / each) for each in ("status", "stdout", "stderr")}
            task |= {"cwd": str(self.folder / name), "words": words}
            self.forks.stdin.write(json.dumps(task) + "\n")
            self.forks.stdin.flush()
        until = time.monotonic() + 900
        while not (at / "status").exists():
            time.sleep(0.1)
            if time.monotonic() > until:
                raise RuntimeError(f"{words}: no end after 900 s")
        status, out, err = ((at / each).read_text() for each in ("status", "stdout", "stderr"))
        if status != "0":
            raise RuntimeError(f"exit status {status}: {out[-500:]} {err[-1500:]}")
        return json.loads(out)

    def run(self, name, command):
        done = subprocess.run(
            command, cwd=self.folder / name, env=ENVIRONMENT, capture_output=True, text=True, timeout=900
        )
        if done.returncode:
            raise RuntimeError(f"exit status {done.returncode}: {done.stdout[-500:]} {done.stderr[-1500:]}")
        return done.stdout

    def train(self, name):
        words = ["train", *TRAINED[name][1], "--run", "run", "--json"]
        if name in INTERNALS:
            program = [PYTHON, str(Path(__file__).with_name("with_internals.py")), json.dumps(INTERNALS[name])]
            result = json.loads(self.run(name, [*program, *self.placed(words)]))
        else:
            result = self.penstock(name, words)
        run = self.folder / name / "run"
        epochs, steps = [], []
        for line in (run / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record.get("kind") == "step":
                steps.append([record["step"], hexed(record["loss"])])
            elif record.get("kind") == "epoch":
                epochs.append({key: hexed(record[key]) for key in FIGURES if key in record})
        figures = {
            key: hexed(result.get(key))
            for key in ("train_loss", "val", "test", "best_epoch", "steps", "epochs", "state")
        }
        self.note("jobs", name, {"steps": steps, "epochs": epochs, "result": figures, "files": files_of(run)})
        self.document(f"{name} result", result, False)
        self.document(f"{name} run.json", json.loads((run / "run.json").read_text()), False)
        self.page(name, run / "report.html", False)

    def document(self, name, value, exact):
        self.note("documents", name, {"shape": shape(value), **({"values": stable(value)} if exact else {})})

    def page(self, name, path, exact):
        text = path.read_text()
        text = re.sub(r"\d{1,2} [A-Z][a-z]+ \d{4}, \d\d:\d\d", "DATE", text).replace(str(self.folder), "FOLDER")
        digest = lambda each: hashlib.sha256(each.encode()).hexdigest()  # noqa: E731
        found = {
            "style": digest("".join(re.findall(r"<style>(.*?)</style>", text, re.S))),
            "script": digest("".join(re.findall(r"<script>(.*?)</script>", text, re.S))),
            "headings": headings(text, exact),
        }
        self.note("pages", f"{name} {path.name}", {**found, **({"sha256": digest(text)} if exact else {})})

    def queue(self):
        """A service, a job, what commands say of both."""
        here = self.folder / "queue"
        job = {
            "graph": self.place("arxiv"),
            "model": "sage",
            "hidden": 16,
            "fanouts": [5, 3],
            "epochs": 2,
            "device": "cpu",
            "threads": 1,
            "seed": 3,
        }
        (here / "job.yaml").write_text(json.dumps(job))
        at = ["--folder", str(here / "service")]
        with (here / "serve.txt").open("w") as log:
            service = subprocess.Popen(
                [PYTHON, "-m", "penstock", "serve", *at, "--allow", str(self.folder)],
                cwd=here,
                env=ENVIRONMENT,
                stdout=log,
                stderr=log,
            )
        try:
            for _ in range(240):
                time.sleep(1)
                if service.poll() is not None:
                    raise RuntimeError((here / "serve.txt").read_text()[-1500:])
                try:
                    self.penstock("queue", ["queue", *at, "--json"])
                    break
                except RuntimeError:
                    continue
            submitted = self.penstock("queue", ["submit", "job.yaml", *at, "--json"])
            self.document("submit", submitted, False)
            number = re.search(r'"id": (\d+)', json.dumps(submitted))
            self.document("wait", self.penstock("queue", ["wait", number[1] if number else "1", *at, "--json"]), False)
            self.document("queue", self.penstock("queue", ["queue", *at, "--json"]), False)
            self.document("serve --drain", self.penstock("queue", ["serve", "--drain", *at, "--json"]), False)
            service.wait(60)
        finally:
            if service.poll() is None:
                service.terminate()
                try:
                    service.wait(60)
                except subprocess.TimeoutExpired:
                    service.kill()
        for log in sorted((here / "service").rglob("metrics.jsonl")):
            records = map(json.loads, log.read_text().splitlines())
            self.note("jobs", "queue", [hexed(each["loss"]) for each in records if each.get("kind") == "step"])


def headings(text, exact):
    """The titles of a page's cards; of a page with measured figures, without figures and units."""
    found = re.findall(r"<h[123][^>]*>(.*?)</h[123]>" if exact else r"<h[23][^>]*>(.*?)</h[23]>", text, re.S)
    return found if exact else sorted({re.sub(r'<span class="about">.*?</span>', "", each) for each in found})


def hexed(value):
    """Floats as exact text, wherever they are."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {key: hexed(each) for key, each in value.items()}
    return [hexed(each) for each in value] if isinstance(value, list) else value


def files_of(folder):
    """Names in a run folder, numbers and the names of tasks' logs aside."""
    return sorted({re.sub(r"\d+", "0", str(path.relative_to(folder))) for path in folder.rglob("*") if path.is_file()})


def shape(value):
    """Keys and types of a document; of a list, the types that its elements have."""
    if isinstance(value, dict):
        return {
            key: kinds_of(value[key]) if key in OPEN and isinstance(value[key], dict) else shape(value[key])
            for key in sorted(value)
        }
    if isinstance(value, list):
        kinds = {json.dumps(shape(each), sort_keys=True) for each in value}
        return ["list", *(json.loads(each) for each in sorted(kinds))]
    return type(value).__name__


def kinds_of(value):
    """A mapping whose keys depend on what happened to be sent together: only the types of its values."""
    return {"*": sorted({type(each).__name__ for each in value.values()})}


def stable(value, key=""):
    """The document's values, without those that depend on time, place or memory."""
    if isinstance(value, dict):
        return {name: stable(each, name) for name, each in value.items() if not VOLATILE.search(name)}
    if isinstance(value, list):
        return [stable(each) for each in value]
    return hexed(value)


def differences(a, b, at=""):
    """One line for each place where two documents differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            here = f"{at} / {key}" if at else key
            if key not in a or key not in b:
                yield f"{here}: only in {'B' if key not in a else 'A'}: {json.dumps(b.get(key, a.get(key)))[:200]}"
            else:
                yield from differences(a[key], b[key], here)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and a[:1] != ["list"]:
        for number, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{at}[{number}]")
    elif isinstance(a, str) and isinstance(b, str) and "\n" in a + b:
        import difflib

        lines = list(difflib.unified_diff(a.splitlines(), b.splitlines(), "A", "B", lineterm="", n=0))
        if lines:
            yield f"{at}:\n    " + "\n    ".join(lines[:12])
    elif a != b:
        yield f"{at}: {json.dumps(a)[:200]} != {json.dumps(b)[:200]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", default="")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="work in this new folder and leave it")
    parser.add_argument("--cold", action="store_true", help="a new Python for every command; slower")
    parser.add_argument("--gpu", action="store_true", help="jobs on one GPU instead of those on the CPU")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"))
    given = parser.parse_args()
    if given.compare:
        a, b = (json.loads(path.read_text()) for path in given.compare)
        if {a["about"]["complete"], b["about"]["complete"]} != {True}:
            both = [section for section in a if section != "about"]
            for section in both:  # what both have
                a[section], b[section] = (
                    {k: v for k, v in x[section].items() if k in a[section] and k in b[section]} for x in (a, b)
                )
        a.pop("about"), b.pop("about")
        found = list(differences(a, b))
        print("\n".join(found) if found else f"no difference in {sum(map(len, a.values()))} entries")
        sys.exit(bool(found))
    assert given.out and (ROOT / "src/penstock").is_dir(), "run it in a checkout's root, with --out FILE"
    folder = given.keep or Path(tempfile.mkdtemp(prefix="golden-"))
    folder = folder.absolute()
    folder.mkdir(exist_ok=True)
    golden, began = Golden(folder, given.parallel, given.cold), time.monotonic()
    steps = STEPS_CUDA if given.gpu else STEPS
    if given.gpu:
        TRAINED.clear()
        TRAINED.update(TRAINED_CUDA)
        ENVIRONMENT.pop("CUDA_VISIBLE_DEVICES")
    chosen = [each for each in steps if not given.only or each in given.only.split(",")]
    chosen = [each for each in chosen if each not in given.skip.split(",")]
    for future in [golden.step(each) for each in chosen]:
        future.result()
    if golden.forks is not None:
        golden.forks.stdin.close()
        golden.forks.wait(60)
    found = {
        "about": {"root": str(ROOT), "seconds": round(time.monotonic() - began), "complete": chosen == steps},
        **golden.found,
    }
    given.out.write_text(
        json.dumps(found, indent=1, sort_keys=True).replace(str(folder), "FOLDER").replace(str(ROOT), "ROOT")
    )
    if not given.keep:
        shutil.rmtree(folder, ignore_errors=True)
    entries = sum(len(section) for name, section in found.items() if name != "about")
    seconds = found["about"]["seconds"]
    print(f"{given.out}: {entries} entries, {len(golden.found['errors'])} errors, {seconds} s")
    sys.exit(bool(golden.found["errors"]))


if __name__ == "__main__":
    main()
