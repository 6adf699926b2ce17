"""The picture of a simulation: its bars, how full its links are, the page and the trace."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from penstock.report.gantt import Shown, bars, pace_sentence, path_by_kind, path_sentence, write_timeline
from penstock.report.gantt.bars import lay_out
from penstock.report.gantt.drawing import link_use_over_time
from penstock.simulate import POLICIES, CriticalStep, Pace, critical_path, lower_bound
from penstock.simulate.document import WorkloadDocument, read_workload
from penstock.simulate.scenario import build_scenario
from refusals import refused

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">{kind}'
CHROMIUM = shutil.which("chromium")
BROWSER = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1200,900"]


@pytest.fixture(scope="module")
def training():
    return build_scenario(read_workload(EXAMPLES / "training.yaml"), 6)


def laid_out(scenario, policy="oes"):
    found = scenario.simulate(policy, segments=True)
    path = critical_path(found)
    return found, path, lay_out(found, scenario.placement, path)


def shown(scenario, title="training", policy="oes"):
    found = scenario.simulate(policy, segments=True)
    return Shown(title, policy, found, scenario.placement, lower_bound(found.case))


def check_rows(laid):
    for band in laid.bands:
        for lane in band.lanes:
            assert {bar.row for bar in lane.bars} == set(range(lane.rows))
            for row in range(lane.rows):
                mine = sorted((bar.start, bar.end) for bar in lane.bars if bar.row == row)
                assert all(before[1] <= after[0] for before, after in pairwise(mine))


def all_bars(laid, *labels):
    return [bar for band in laid.bands for lane in band.lanes if lane.label in labels for bar in lane.bars]


def test_every_item_has_its_bar_and_none_covers_another(training):
    found, path, laid = laid_out(training)
    check_rows(laid)
    load, timed = training.load, found.ends > found.starts
    drawn = all_bars(laid, *load.task_kinds)
    assert sum(bar.items for bar in drawn) == len(drawn) == timed[:, : load.tasks].sum()
    crossing = timed[:, load.tasks :]
    for way in ("out", "in"):
        drawn = all_bars(laid, way)
        assert len(drawn) == crossing.sum()
        assert sum(bar.bytes for bar in drawn) == pytest.approx(training.amounts.sizes[crossing].sum())
    marked = {(bar.name, bar.iteration) for bar in all_bars(laid, "out", *load.task_kinds) if bar.critical}
    assert marked == {(step.name, step.iteration) for step in path}
    assert laid.notes == [
        f"Tasks and flows that take no time (as flows within a machine) are not drawn: {(~timed).sum():,}."
    ]


@pytest.mark.parametrize(
    ("most", "apart"),
    [
        ("MOST_PAIR_BARS", "machine and direction"),
        ("MOST_ROWS", "machine and direction"),
        (None, "pair of machines"),
    ],
)
def test_too_many_are_merged_and_it_is_said(training, monkeypatch, most, apart):
    whole = laid_out(training)[2]
    monkeypatch.setattr(bars, "MOST_FLOW_BARS", 10)
    monkeypatch.setattr(bars, "MOST_TASK_BARS", 10)
    if most:
        monkeypatch.setattr(bars, most, 3)
    _, path, laid = laid_out(training)
    check_rows(laid)
    for way in ("out", "in"):
        assert len(all_bars(laid, way)) < len(all_bars(whole, way))
        for measure in ("items", "bytes"):
            sums = [sum(getattr(bar, measure) for bar in all_bars(each, way)) for each in (laid, whole)]
            assert sums[0] == pytest.approx(sums[1])
    assert [bar.critical for bar in all_bars(laid, "worker")].count(True) <= sum(step.kind == "worker" for step in path)
    assert "one bar per machine, kind and iteration" in laid.notes[0]
    assert f"one bar per {apart}, kind and iteration; a trace (.json) has them all" in laid.notes[1]
    names = {bar.name for bar in all_bars(laid, "out")}
    assert ("pull fast0 → slow1" in names) == (apart == "pair of machines")


@pytest.mark.parametrize("policy", POLICIES)
def test_links_carry_all_bytes_and_are_never_overfull(training, policy):
    found = training.simulate(policy, segments=True)
    use = link_use_over_time(found, 97)
    assert use.mean(axis=1) == pytest.approx(found.link_use, rel=1e-6)
    assert use.min() >= 0 and use.max() <= 1 + 1e-6
    # The same from the rates of single flows.
    expected, length, load = np.zeros((len(use), 97)), found.makespan / 97, training.load
    for n, flow in zip(*np.nonzero(found.ends[:, load.tasks :] > found.starts[:, load.tasks :]), strict=True):
        ends = training.placement[[load.sources[flow], load.targets[flow]]]
        for start, end, rate in found.segments(flow, n):
            since, until = (np.clip(when / length - np.arange(97), 0, 1) for when in (start, end))
            expected[training.network.path(*ends)] += rate * (until - since)
    assert use == pytest.approx(expected / training.network.capacities[:, None], abs=1e-6)


def test_links_need_rates(training):
    with refused("option-missing segments=True"):
        link_use_over_time(training.simulate("oes"), 10)


def test_the_path_in_words():
    steps = [CriticalStep("s", "sampler", 0, 0, 6, 0, ""), CriticalStep("p", "pull", 0, 6, 9, 1.5, "m0 out")]
    steps += [CriticalStep("q", "pull", 1, 9, 9.5, 0.3, "m1 in"), CriticalStep("w", "worker", 1, 9.5, 10, 0, "")]
    shares = path_by_kind(steps)
    assert [(each.kind, each.steps, each.seconds) for each in shares] == [
        ("sampler", 1, 6), ("pull", 2, 3.5), ("worker", 1, 0.5),
    ]  # fmt: skip
    assert path_sentence(shares) == "sampler 60 %, pull 35 % (18 % waiting, mostly for m0 out), worker 5 %"


class Page(HTMLParser):
    """Tags, attributes and the text outside style and script; the script that is data."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.data, self.inside = [], [], [], "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.inside = "data" if ("type", "application/json") in attrs else tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "data":
            self.data += data
        elif self.inside not in ("script", "style"):
            self.words.append(data)


def page_of(scenario, path, title="training"):
    write_timeline(shown(scenario, title), path)
    text = path.read_text()
    for outside in ("http://", "https://", "@import", "url("):
        assert outside not in text
    page = Page(text)
    assert page.tags.count("script") == 2
    assert not {"src", "href", "srcset"} & set(page.attributes)
    assert not [name for name in page.attributes if name.startswith("on")]
    return page


def test_the_page_says_what_it_shows(training, tmp_path):
    page = page_of(training, tmp_path / "page.html")
    words = " ".join(" ".join(page.words).split())
    found = shown(training).timeline
    for said in (
        "4 machines",
        "23 tasks",
        "72 flows in each iteration",
        "flow policy oes",
        "iterations 6",
        "rack b up",
    ):
        assert said in words, said
    assert f"{found.makespan:.3g} s makespan" in words
    assert "Critical path: batch" in words and "Tasks and flows that take no time" in words
    data = json.loads(page.data)
    assert data["ends"] == found.iteration_ends.tolist() and len(data["ends"]) == 6
    assert len(data["bands"]) == page.attributes.count("data-band")
    used = [band for band in data["bands"] if "use" in band]
    assert {band["link"] for band in used} == set(found.network.link_names)
    assert max(max(band["use"]) for band in used) == 100


def test_a_plans_page_has_the_plans_iteration_and_gap(training, tmp_path):
    """Not those of the few iterations that are drawn, which begin with an empty pipeline."""
    pace = Pace(0.0075184, 0.0070928)
    assert (
        pace_sentence(pace) == "an iteration takes 7.518 ms, where no schedule takes less than 7.093 ms: a gap of 6 %"
    )
    write_timeline(shown(training)._replace(pace=pace), tmp_path / "page.html")
    words = " ".join(" ".join(Page((tmp_path / "page.html").read_text()).words).split())
    assert "7.518 ms an iteration, in the long run" in words
    assert "no schedule takes less than 7.093 ms gap to that 6 %" in words
    assert "drawn: the first 6 iterations" in words and "makespan" not in words


def test_names_do_no_harm(tmp_path):
    machines = [{"name": HOSTILE[:70] + end, "nic_gbps": 1} for end in "ab"]
    tasks = [{"name": f"{HOSTILE} {k}", "kind": HOSTILE, "machine": machines[k]["name"], "seconds": 1} for k in (0, 1)]
    flow = {"from": tasks[0]["name"], "to": tasks[1]["name"], "bytes": 1e6, "kind": HOSTILE}
    fields = {"machines": machines, "tasks": tasks, "flows": [flow | {"name": "f"}]}
    scenario = build_scenario(WorkloadDocument.model_validate(fields))
    page = page_of(scenario, tmp_path / "page.html", HOSTILE)
    assert "img" not in page.tags
    assert f"{HOSTILE} 0" in json.loads(page.data)["names"]


def test_the_trace_has_every_item(training, tmp_path):
    path = tmp_path / "trace.json"
    write_timeline(shown(training), path)
    events = json.loads(path.read_text())["traceEvents"]
    found = training.simulate("oes")
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == (found.ends > found.starts).sum()
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(found.makespan * 1e6)
    assert sum(event["args"].get("bytes", 0) for event in slices) == pytest.approx(
        training.amounts.sizes[(found.ends > found.starts)[:, training.load.tasks :]].sum()
    )
    # Slices of one thread must not overlap: viewers would nest them.
    for thread in {event["tid"] for event in slices}:
        mine = sorted((event["ts"], event["ts"] + event["dur"]) for event in slices if event["tid"] == thread)
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(mine))
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {"fast0", "fast1", "slow0", "slow1", "links"}
    counters = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in counters} == set(found.network.link_names)
    assert all(0 <= event["args"]["percent"] <= 100 for event in counters)


PROBE = """<script>
const axis = document.querySelector(".band.axis canvas"), tip = document.getElementById("tip");
const send = (node, kind, x, y, more) => {
  const box = node.getBoundingClientRect();
  const where = { clientX: box.left + box.width * x, clientY: box.top + y, bubbles: true, cancelable: true, ...more };
  node.dispatchEvent(kind === "wheel" ? new WheelEvent(kind, where) : new PointerEvent(kind, where));
  return tip.hidden ? "" : [...tip.children].map((line) => line.textContent).join("; ");
};
const chain = document.querySelector(".band.chain canvas");
const strip = document.querySelector(".links .band:last-child canvas");
const first = send(chain, "pointermove", 0.01, 10), heat = send(strip, "pointermove", 0.3, 5);
for (let turn = 0; turn < 20; turn++) send(axis, "wheel", 1, 5, { deltaY: -100 });
const last = send(chain, "pointermove", 0.99, 10);
document.body.dataset.found = JSON.stringify({ first, heat, last });
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")
def test_the_script_draws_tells_and_zooms(training, tmp_path):
    write_timeline(shown(training), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    probed = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", PROBE)
    (tmp_path / "probed.html").write_text(probed)
    doms = [_browse(tmp_path, name) for name in ("page.html", "probed.html")]
    # Under the page's own policy, too, the script runs.
    assert all('data-drawn="yes"' in dom for dom in doms)
    path = critical_path(training.simulate("oes"))
    (told,) = re.findall(r'data-found="([^"]*)"', doms[1])
    told = json.loads(told.replace("&quot;", '"').replace("&gt;", ">").replace("&amp;", "&"))
    assert told["first"].startswith(f"{path[0].name}; {path[0].kind} · iteration 0; ")
    assert told["last"].startswith(f"{path[-1].name}; {path[-1].kind} · iteration 5; ")
    assert re.fullmatch(r"rack b down: \d+ % of its rate; around .*", told["heat"])


def _browse(folder, name):
    command = [*BROWSER, f"--user-data-dir={folder / 'profile'}", "--dump-dom", (folder / name).as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_language_model_has_devices_and_its_names_are_whole(tmp_path):
    scenario = build_scenario(read_workload(EXAMPLES / "pipeline.yaml"), 1)
    found = shown(scenario, "pipeline", "hermod")._replace(language_model=True)
    write_timeline(found, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<span>8 devices</span>" in text
    labels = re.findall(r'<span class="side[^>]*>([^<]*)</span>', text)
    # Switches that only have a name are not drawn; every name that is drawn is written out.
    assert not {"switch", "leaf", "pod", "fabric"} & set(labels)
    assert {"backward", "server 0 GPU 0 NVLink out"} <= set(labels)
    assert not [label for label in labels if "…" in label]
    widths = [int(width) for width in re.findall(r"--lane:(\d+)px", text)]
    assert widths[0] >= 5.5 * len("backward") and widths[1] >= 5.5 * len("server 0 GPU 0 NVLink out")
