"""The pages in a browser, light and dark, from a phone's width to a large screen's: what scripts do, and the layout."""

import json
import re
import struct
import subprocess
import sys
from html import escape
from pathlib import Path

import pytest
from synthetic_runs import DEFAULTS, write_cluster_run, write_run

import penstock as ps
from browser import CHROMIUM, browser
from in_process import forget_commands
from knowledge_graph import TRIPLES, family_graph
from penstock.cli.main import run as run_command
from penstock.report import write_report
from penstock.train.job import job_defaults
from training_graphs import community_graph, trained, typed_graph

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
SCHEMES = {"dark": 0, "light": 1}

# Runs before the page's own script, to hear its errors, and after it, to ask.
LISTENER = "<script>var troubles = []; addEventListener('error', (event) => troubles.push(event.message));</script>"
PROBE = """<script>
const root = document.documentElement, tip = document.getElementById("tip");
const point = (target) => {
  const box = target.getBoundingClientRect();
  const where = { clientX: box.left + box.width / 2, clientY: box.top + 5, bubbles: true };
  target.dispatchEvent(new PointerEvent("pointermove", where));
  return tip.hidden ? "" : tip.textContent;
};
const background = () => getComputedStyle(document.body).backgroundColor;
const found = { width: innerWidth, overflow: root.scrollWidth - root.clientWidth, before: background() };
found.curve = point(document.querySelector("[data-hover]"));
found.bar = point(document.querySelectorAll(".bar.compute")[4]);
found.lit = document.querySelectorAll(".lit").length;
document.getElementById("theme").click();
found.after = background();
found.troubles = troubles.join("; ");
found.ready = root.dataset.ready;
for (const key in found) parent.document.body.setAttribute("data-found-" + key, found[key]);
</script>"""


# A window cannot be as narrow as a phone; a frame can. Frames take the scheme of what is around them.
FRAME = """<!doctype html><meta charset="utf-8"><style>* {{ color-scheme: light dark; border: 0; margin: 0 }}</style>
<body><iframe width="{width}" height="800" srcdoc="{page}"></iframe></body>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    graph = {"name": "graph-" + "w" * 90, "nodes": {"n" * 200: 5}, "edges": {"e" * 200: 5}, "bytes": 5}
    folder = write_run(tmp_path_factory.mktemp("browser") / "run", graph=graph, machine={"m" * 90: "v" * 90})
    return write_report(folder, DEFAULTS)


def browse(page, profile, scheme, size, *more):
    settings = [f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"]
    command = [CHROMIUM, *FLAGS, *settings, f"--window-size={size}", *more, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1200, "light")])
def test_nothing_overflows_and_the_script_works(page, tmp_path, width, scheme):
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', LISTENER, page.read_text())
    probed = tmp_path / "probed.html"
    probed.write_text(FRAME.format(width=width, page=escape(text.replace("</body>", f"{PROBE}</body>"))))
    shown = browse(probed, tmp_path / "profile", scheme, "1280,900", "--dump-dom")
    found = dict(re.findall(r'data-found-(\w+)="([^"]*)"', shown.partition("<iframe")[0]))
    assert found["ready"] == "yes"
    assert found["troubles"] == ""
    assert found["width"] == str(width)
    assert found["overflow"] == "0"
    assert re.fullmatch(r"epoch 1[12]\d\.\d+", found["curve"])
    assert re.fullmatch(r"compute · epoch \d+, batch \d+ · \d+ ms", found["bar"])
    assert int(found["lit"]) >= 2
    light, dark = "rgb(244, 246, 245)", "rgb(13, 19, 21)"
    assert (found["before"], found["after"]) == ((dark, light) if scheme == "dark" else (light, dark))


def test_the_script_runs_under_the_pages_own_policy(page, tmp_path):
    assert 'data-ready="yes"' in browse(page, tmp_path / "profile", "light", "360,800", "--dump-dom")


def test_it_can_be_seen(page, tmp_path):
    shots = {}
    for size in ("360,800", "1280,900"):
        for scheme in SCHEMES:
            shot = tmp_path / f"{size}-{scheme}.png"
            browse(page, tmp_path / "profile", scheme, size, f"--screenshot={shot}")
            shots[size, scheme] = shot.read_bytes()
            assert struct.unpack(">II", shots[size, scheme][16:24]) == tuple(map(int, size.split(",")))
    assert len(set(shots.values())) == 4
    # A blank page of either size is a few kilobytes.
    assert min(map(len, shots.values())) > 12_000


SIZES = (400, 1100, 1600)
EVERY_LOOK = [(width, dark, opened) for width in SIZES for dark in (False, True) for opened in (False, True)]
"""Widths in pixels, light and dark, with details closed and opened."""
LOOKS = [look for look in EVERY_LOOK if (SIZES.index(look[0]) + sum(look[1:])) % 2 == 0]
"""Half of them: each width is seen light and dark, closed and opened, and each scheme closed and opened."""
SEVERAL_LOOKS = pytest.mark.parametrize(
    "looks", [pytest.param(LOOKS, id="pairs"), pytest.param(EVERY_LOOK, id="all", marks=pytest.mark.long)]
)
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MODULE = """
import torch

class TwoLayerNet(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.second = torch.nn.Linear(inputs, 8), torch.nn.Linear(8, outputs)

    def forward(self, x, edge_index):
        return self.second(torch.relu(self.first(x)))
"""
EXPLANATIONS = {
    "made": 7, "explained_rows": 256, "halo_rows": 2038, "scores_histogram": [0, 0, 3, 2, 22, 51, 73, 64, 30, 11],
    "columns_sent": {"node": 109}, "columns_in_all": {"node": 128}, "vertices": {"remote": 13_359, "all": 89_251},
    "rows": {"bytes": 5.5e6, "bytes_as_stored": 6.5e6}, "seconds": 9.5, "cores": 0.13, "waited_s": 22.6,
}  # fmt: skip
PASSES = {name: {"busy_s": busy, "wait_s": 9 - busy, "threads": 1, "depth": 1} for name, busy in
          (("forward", 0.7), ("exchange", 0.9), ("backward", 6.1), ("update", 1.3))}  # fmt: skip


def a_vertex_run(folder):
    return trained(community_graph(), folder, epochs=4).path


def a_typed_run(folder):
    return trained(typed_graph(), folder, model="rgcn").path


def a_link_run(folder):
    return trained(community_graph(), folder, task="link-prediction", rank_against=20).path


def a_knowledge_graph_run(folder):
    return trained(family_graph(), folder, **{**TRIPLES, "epochs": 12, "fanouts": []}).path


def a_whole_graph_run(folder):
    return trained(community_graph(), folder, sampler="whole", layers=2, epochs=12).path


def a_cluster_run(folder):
    return write_cluster_run(folder)


def a_whole_graph_cluster_run(folder):
    exposed = {"exchange": "bins", "exposed_communication_s": 0.5, "largest_exposed_communication_s": 0.75}
    return write_cluster_run(folder, stages=PASSES, bins=[4, 4], keep="host", recomputed=True, scope="all", **exposed)


def a_run_by_explanations(folder):
    return write_cluster_run(folder, explanations=EXPLANATIONS)


def a_run_of_a_module(folder):
    file = folder.parent / "a_module_of_ones_own.py"
    file.write_text(MODULE)
    return trained(community_graph(), folder, module=f"{file}:TwoLayerNet").path


def a_run_without_validation(folder):
    return trained(community_graph(), folder, evaluate_every=-1).path


def a_failed_run(folder):
    message = "The loss is nan at epoch 1, batch 2 (step 2): training stopped. Lower lr, or set clip, and train again."
    return write_run(folder, epochs=2, state="failed", message=message)


def an_interrupted_run(folder):
    return write_run(folder, epochs=3, state="interrupted", message="Interrupted at epoch 4, batch 2.")


def a_running_run(folder):
    return write_run(folder, epochs=3, state="running")


def a_resumed_run(folder):
    run = write_run(folder, epochs=6)
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"kind": "resumed", "epoch": 5, "step": 72, "time": 1.0}) + "\n")
    return run


def a_run_of_one_epoch(folder):
    return write_run(folder, epochs=1)


def a_run_on_a_gpu(folder):
    placed = {"topology": "device", "features": "pinned", "cache_rows": 5_000, "hit_rate": 0.82}
    placed["why"] = ["The features take 28 GB and 20 GB are free, so that they are in pinned memory."]
    more = {"device": "cuda:0", "device_peak_mb": 8_000.0, "device_predicted_mb": 8_400.0, "placement": placed}
    return write_cluster_run(folder, **more, batches_per_second=450.0)


RUNS = (
    a_vertex_run, a_typed_run, a_link_run, a_knowledge_graph_run, a_whole_graph_run, a_cluster_run,
    a_whole_graph_cluster_run, a_run_by_explanations, a_run_of_a_module, a_run_without_validation, a_failed_run,
    an_interrupted_run, a_running_run, a_resumed_run, a_run_of_one_epoch, a_run_on_a_gpu,
)  # fmt: skip


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("window")) as started:
        yield started


def look_at(window, page, looks):
    """Faults of the page's layout at widths, light and dark, closed and with everything opened."""
    window.problems.clear()
    window.open(page.as_uri())
    window.wait_for("document.documentElement.dataset.ready")
    found = []
    for width, dark, opened in looks:
        window.resize(width, 900, dark)
        window.get(f"document.querySelectorAll('details').forEach((each) => {{ each.open = {json.dumps(opened)}; }})")
        window.get("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        faults = window.layout_faults()
        found += [f"{width} px, {'dark' if dark else 'light'}, opened {opened}: {fault}" for fault in faults]
    assert window.problems == []
    window.open("about:blank#")
    return found


@SEVERAL_LOOKS
@pytest.mark.parametrize("make", RUNS, ids=lambda make: make.__name__)
def test_a_report_of_every_kind_has_no_fault_of_layout(window, tmp_path, make, looks):
    assert look_at(window, write_report(make(tmp_path / "a-run"), job_defaults()), looks) == []


@SEVERAL_LOOKS
@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", EXAMPLES / "training.yaml", "--timeline"),
        ("simulate", EXAMPLES / "pipeline.yaml", "--timeline"),
        ("simulate", "--shop", EXAMPLES / "group.fjs", "--timeline"),
        ("simulate", EXAMPLES / "training.yaml", "--sweep", "nic_gbps=1,10", "--sweep", "gnn.workers=2,4", "--chart"),
        ("simulate", "--queue", EXAMPLES / "queue-trace.yaml", "--chart"),
        ("paths", "simulate", "key-value-store", "--workload", "ycsb-b", "--load", "0.5", "--requests", 500, "--chart"),
    ],
    ids=("gantt", "language-model", "shop", "sweep", "queue-simulation", "paths"),
)  # fmt: skip
def test_the_pages_of_simulations_have_no_fault_of_layout(window, tmp_path, monkeypatch, arguments, looks):
    monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments), str(tmp_path / "page.html")])
    forget_commands()
    assert run_command() == 0
    assert look_at(window, tmp_path / "page.html", looks) == []


@SEVERAL_LOOKS
@pytest.mark.parametrize("make", [community_graph, typed_graph])
def test_explanations_have_no_fault_of_layout(window, tmp_path, make, looks):
    run = trained(make(), tmp_path / "run", epochs=1)
    page = ps.explain(run, vertex=17, steps=30).page(tmp_path / "page.html")
    assert look_at(window, page, looks) == []


FAULTY = """<!doctype html><meta name="viewport" content="width=device-width, initial-scale=1">
<script>document.documentElement.dataset.ready = "yes";</script>
<style>body {{ font: 15px sans-serif; margin: 0 }} .card {{ width: 300px; {card} }} </style>
<body><main><section class="card">{text}</section></main></body>"""


@pytest.mark.parametrize(
    ("card", "text", "fault"),
    [
        ("", "<p>Well set, /data/<wbr>folder, and <b>nothing</b> else.</p>", None),
        ("", "<p style='white-space: nowrap'>A line that runs out of the card that it stands in</p>", "runs out of"),
        ("", "<p>under</p><p style='margin-top: -34px'>over it</p>", "lies over"),
        ("", "<p style='width: 40px; overflow-wrap: anywhere'>unbreakable</p>", "is broken in the middle"),
        ("", "<p style='width: 60px; overflow: hidden; white-space: nowrap'>more than fits</p>", "is cut off"),
        ("", "<div style='width: 3000px'>wide</div>", "the page is"),
        ("overflow-x: auto;", "<p style='white-space: nowrap'>A line that runs out of its card, and scrolls</p>", None),
        ("", "<details><p style='margin-top: -40px'>closed</p><summary>closed</summary></details>", None),
    ],
)
def test_faults_are_found(window, tmp_path, card, text, fault):
    (tmp_path / "page.html").write_text(FAULTY.format(card=card, text=text))
    window.resize(1100, 900)
    window.open((tmp_path / "page.html").as_uri())
    found = window.layout_faults()
    assert (found == []) if fault is None else any(fault in each for each in found), found
