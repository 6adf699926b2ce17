"""The page: what it says about a run, and that it is one harmless file whatever the run is called."""

import json
import math
import os
from html.parser import HTMLParser

import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import DEFAULTS, write_run
from typer.testing import CliRunner

from penstock.cli.report import report_command
from penstock.report import write_report
from penstock.report.markup import breakable, card, page_text
from refusals import refused

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\'"&' + "w" * 300
VOID = {"meta", "path", "rect", "circle"}


class Page(HTMLParser):
    """Checks nesting while it reads; keeps tags, attributes and the text outside style and script."""

    def __init__(self, text):
        super().__init__()
        self.raw = text
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        # Where a long name may be broken is no part of what it says.
        self.feed(text.replace("<wbr>", ""))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def page_of(folder, defaults=None):
    """The run's page, after checking that it is well formed and loads nothing."""
    text = write_report(folder, defaults).read_text()
    # The one `src=` that may occur is the harmless text of a hostile name.
    for outside in ("http://", "https://", "src=", "@import", "url("):
        assert outside not in text.replace("&lt;img src=x", "")
    page = Page(text)
    assert page.tags.count("script") == 1
    assert not {"src", "href", "srcset"} & set(page.attributes)
    assert not [name for name in page.attributes if name.startswith("on")]
    return page


def test_a_finished_run_says_everything(tmp_path):
    page = page_of(write_run(tmp_path / "run"), DEFAULTS)
    for words in (
        "finished 20 July 2026, 14:03",
        "sage on synthetic-arxiv",
        "Node classification",
        "218 k parameters",
        "71.84 % test accuracy",
        "time 1 min 46 s",
        "vertices a second 2.91 k",
        "peak memory 2.04 GiB",
        "Compute limits this run: it was at work 96 % of the training time; choosing seeds and gathering features"
        " mostly waited.",
        "at epoch 23",
        "sample 62 % 1 min 02 s of work for each thread · 2 threads · queue of 4 batches",
        "The median epoch took",
        "of the machine's 23.54 GiB",
        "lr 0.003 default 0.001",
        "10 settings left at their defaults",
        "169,343",
        "node → to → node 2,315,598",
        "40 classes",
        "AMD EPYC 7B13",
        "Gathering uses 2 threads.",
    ):
        assert words in page.text, words
    assert page.tags.count("svg") == 7


def test_without_defaults_all_settings_are_shown_alike(tmp_path):
    page = page_of(write_run(tmp_path / "run"))
    assert "default" not in page.text
    assert "batch_size 1024" in page.text


def test_the_same_value_written_differently_is_no_choice(tmp_path):
    assert "fanouts 15, 10, 5 default" not in page_of(write_run(tmp_path / "run"), DEFAULTS).text


def test_a_running_run(tmp_path):
    page = page_of(write_run(tmp_path / "run", epochs=3, state="running"))
    assert "Still running when this page was written." in page.text
    assert "validation accuracy so far" in page.text
    assert "test accuracy" not in page.text


def test_a_run_that_has_not_reached_its_first_epoch(tmp_path):
    folder = write_run(tmp_path / "run", epochs=1, state="running")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:4]))
    assert "training, by step" in page_of(folder).text


def test_a_failed_run_says_so_first(tmp_path):
    message = "Batch 7 cannot be gathered: <features> are too short."
    page = page_of(write_run(tmp_path / "run", epochs=2, state="failed", message=message))
    assert f"This run failed. {message}" in page.text
    assert page.text.index(message) < page.text.index("validation accuracy")


def test_an_interrupted_run_without_a_message(tmp_path):
    run = write_run(tmp_path / "r", state="interrupted")
    words = "This run was interrupted. The page shows what was done until then; resume with: penstock train --resume"
    assert f"{words} {run}" in page_of(run).text


def test_a_run_that_may_have_died_says_how_to_go_on(tmp_path):
    run = write_run(tmp_path / "r", epochs=2, state="running")
    assert "Still running when this page was written." in page_of(run).text
    os.utime(run / "metrics.jsonl", (1e9, 1e9))
    words = page_of(run).text
    assert "Not finished when this page was written. It had last written" in words
    assert f"if its process has ended, resume with: penstock train --resume {run}" in words


def test_settings_that_the_run_decided_are_not_listed_as_chosen(tmp_path):
    run = write_run(tmp_path / "run", decided={"threads": 2})
    job = yaml.safe_load((run / "job.yaml").read_text())
    defaults = {**DEFAULTS, "threads": 0, "run": None}
    (run / "job.yaml").write_text(yaml.safe_dump({**job, "threads": 2, "run": "runs/a"}))
    text = page_of(run, defaults).text
    assert "threads 2 default 0" not in text and "Left open, and decided by the run threads 2" in text
    assert "run runs/a" in text and "default none" not in text.replace("patience", "")


def test_a_clusters_settings_are_shown(tmp_path):
    run = write_run(tmp_path / "run")
    machines = [{"name": "m0", "workers": 1}, {"name": "m1", "workers": 2}]
    cluster = {"machines": machines, "launcher": "local", "reduce": "servers", "servers": 1, "wire_type": "int8"}
    cluster |= {"partition": str(tmp_path / "run" / "parts"), "method": "metis", "failure": {"restarts": 9}}
    (run / "cluster.json").write_text(json.dumps(cluster))
    page = page_of(run, DEFAULTS)
    for said in (
        "Cluster machines 2: m0, m1",
        "workers 1, 2",
        "launcher local",
        "reduce servers",
        "wire_type int8",
        "failure restarts 9",
        "parts cut for this run by metis",
        "of the first worker, side by side",
    ):
        assert said in page.text, said
    assert "servers 1" not in page.text
    (run / "cluster.json").write_text("{")
    assert "cluster.json could not be read" in page_of(run, DEFAULTS).text


def test_a_knowledge_graph_has_a_scorer_entities_and_learned_vectors(tmp_path):
    graph = {"name": "families", "nodes": {"entity": 200}, "edges": {"entity__next__entity": 144}, "bytes": 99}
    graph |= {"features": {"entity": 16}, "learned": ["entity"]}
    run = write_run(tmp_path / "run", graph=graph, task="knowledge-graph-completion", model="embedding")
    job = yaml.safe_load((run / "job.yaml").read_text())
    for scorer, model, title in (
        ("complex", "embedding", "ComplEx on families"),
        ("auto", "embedding", "ComplEx on families"),
        ("transe", "rgcn", "rgcn with TransE on families"),
    ):
        (run / "run.json").write_text(json.dumps({**json.loads((run / "run.json").read_text()), "model": model}))
        (run / "job.yaml").write_text(yaml.safe_dump({**job, "scorer": scorer, "model": model}))
        page = page_of(run, DEFAULTS)
        assert f"<h1>{title}</h1>" in page.raw
    for said in ("1 relation · 200 entities · 144 triples", "triples a second", "entities count vectors", "16 learned"):
        assert said in page.text, said
    assert "features 16" not in page.text and "count features" not in page.text


def test_a_module_of_ones_own_has_no_layers_of_the_job(tmp_path):
    run = write_run(tmp_path / "run", model="TwoLayerNet")
    assert "layers of" not in page_of(run, DEFAULTS).text
    assert "3 layers of 256" in page_of(write_run(tmp_path / "other"), DEFAULTS).text


def test_narrow_cards_stand_in_two_columns_and_a_lone_one_is_wide():
    narrow, wide = card("a", ""), card("b", "", wide=True)
    laid = page_text("t", "", [narrow, wide, narrow, "", narrow, wide], "x").partition('<div class="cards">')[2]
    assert laid.count("columns-of-cards") == 1
    group = laid.partition('<div class="columns-of-cards">')[2].partition("</div>")[0]
    assert group.count(narrow) == 2 and wide not in group


def test_paths_break_behind_slashes_and_units_stay_with_their_numbers():
    assert breakable("/data/my_graph a/b") == "/<wbr>data/<wbr>my_<wbr>graph a/<wbr>b"
    assert breakable("worker-0>store-m1/features") == "worker-0&gt;<wbr>store-m1/<wbr>features"
    assert breakable("319 ms and 12 s, 86 %, 3 sets") == "319\u00a0ms and 12\u00a0s, 86\u00a0%, 3 sets"


def test_one_epoch_is_dots_and_no_curve(tmp_path):
    page = page_of(write_run(tmp_path / "run", epochs=1))
    assert "epochs 1 best epoch 1" in page.text
    assert "median epoch" not in page.text and "The shortest epoch" not in page.text


def test_a_loss_that_is_no_number(tmp_path):
    page = page_of(write_run(tmp_path / "run", epochs=6, loss=lambda epoch: math.nan if epoch > 4 else 1 / epoch))
    assert "The loss was not a finite number at epoch 5." in page.text
    page = page_of(write_run(tmp_path / "all", epochs=2, loss=lambda epoch: math.inf))
    assert "No finite loss was recorded." in page.text


def test_thousands_of_epochs_make_a_small_page(tmp_path):
    folder = write_run(tmp_path / "run", epochs=3000, loss=lambda epoch: 3 * math.exp(-epoch / 300) + 1e-3)
    page = page_of(folder)
    assert (folder / "report.html").stat().st_size < 500_000
    assert "logarithmic" in page.text


def test_without_a_trace(tmp_path):
    page = page_of(write_run(tmp_path / "run", events=False))
    assert "Timeline" not in page.text
    assert "Memory GiB resident" in page.text


def test_a_bare_run(tmp_path):
    (tmp_path / "run.json").write_text('{"format": "penstock-run", "version": 1, "state": "running"}')
    assert tmp_path.name in page_of(tmp_path).text


def test_hostile_names_are_text(tmp_path):
    graph = {
        "name": HOSTILE,
        "nodes": {HOSTILE: 3},
        "edges": {HOSTILE: 4},
        "features": {HOSTILE: 2},
        "classes": HOSTILE,
    }
    folder = write_run(
        tmp_path / "run",
        state=HOSTILE,
        message=HOSTILE,
        graph=graph,
        task=HOSTILE,
        machine={HOSTILE: HOSTILE},
        metric={"name": HOSTILE},
        started=HOSTILE,
        result={"val": {HOSTILE: 1.0}, "test": {HOSTILE: 2.0}, "stages": {HOSTILE: {"busy_s": 1}}},
    )
    (folder / "job.yaml").write_text(json.dumps({"model": HOSTILE, HOSTILE: HOSTILE}))
    record = {"kind": "epoch", "epoch": 1, "val": {HOSTILE: 0.5}, "stages": {HOSTILE: {"busy_s": 1}}}
    note = {"kind": "note", "text": HOSTILE}
    (folder / "metrics.jsonl").write_text(f"{json.dumps(record)}\n{json.dumps(note)}\n")
    thread = {"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": HOSTILE}}
    bar = {"ph": "X", "name": HOSTILE, "ts": 0, "dur": 9, "tid": 1, "args": {"epoch": 1, "batch": 1}}
    (folder / "events.jsonl").write_text(f"[\n{json.dumps(thread)},\n{json.dumps(bar)},\n")
    page = page_of(folder, {HOSTILE: "x"})
    assert page.text.count("<script>alert(1)</script>") > 10
    assert "img" not in page.tags


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.integers(0, 9), st.floats(0, 1), st.text(max_size=5)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
_RESULT = ("seconds", "epochs", "val", "test", "best_epoch", "limiting_stage", "stages", "peak_rss_mb", "train_loss")
_RECORD = ("epoch", "step", "time", "loss", "seconds", "seeds_per_second", "val", "test", "stages", "rss_mb", "text")
odd = {
    "document": st.dictionaries(
        st.sampled_from(["state", "message", "started", "graph", "task", "metric", "parameters", "machine"]),
        json_values,
    ),
    "graph": st.dictionaries(st.sampled_from(["name", "nodes", "edges", "bytes", "features", "classes"]), json_values),
    "result": st.dictionaries(st.sampled_from(_RESULT), json_values),
    "records": st.lists(
        st.tuples(
            st.sampled_from(["epoch", "step", "note", "resumed"]),
            st.dictionaries(st.sampled_from(_RECORD), json_values),
        ),
        max_size=6,
    ),
    "job": json_values,
}


@given(**odd)
def test_whatever_is_in_the_documents_there_is_a_page(tmp_path, document, graph, result, records, job):
    fixed = {"graph": graph, **document, "result": result, "format": "penstock-run", "version": 1}
    (tmp_path / "run.json").write_text(json.dumps(fixed))
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    lines = [json.dumps({**fields, "kind": kind}) + "\n" for kind, fields in records]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    page_of(tmp_path, {"model": "sage"})


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", epochs=1)
    before = write_report(folder).read_text()

    def no_space(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", no_space)
    with refused("write-failed"):
        write_report(folder)
    assert (folder / "report.html").read_text() == before
    assert sorted(each.name for each in folder.iterdir()) == [
        "events.jsonl",
        "job.yaml",
        "metrics.jsonl",
        "report.html",
        "run.json",
    ]


def test_the_command(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", epochs=2)
    app = typer.Typer()
    app.command()(report_command)
    done = CliRunner().invoke(app, [str(folder), "--json"])
    page = folder / "report.html"
    assert json.loads(done.stdout) == {"path": str(page), "bytes": page.stat().st_size}
    assert CliRunner().invoke(app, [str(folder)]).stdout == f"Written to {page}\n"
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)))
    failed = CliRunner().invoke(app, [str(folder), "--open"])
    assert opened == [page.as_uri()]
    assert "open" in str(failed.exception)


def test_a_gpus_run_says_what_lay_where_and_what_was_predicted(tmp_path):
    folder = write_run(tmp_path / "run")
    facts = json.loads((folder / "run.json").read_text())
    assert "as predicted" not in page_of(folder).text
    facts["machine"]["gpu"] = "NVIDIA H200"
    facts["result"] |= {
        "device": "cuda",
        "placement": {
            "topology": "device",
            "features": "pinned",
            "cache_rows": 1234567,
            "hit_rate": 0.645,
            "why": ["As <asked>."],
        },
        "batches_per_second": 1013.2,
        "device_peak_mb": 2201.1,
        "device_predicted_mb": 2154.5,
        "feature_paths": {
            "pinned": {"rows": 4321, "bytes": 3 << 20, "seconds": 0.25},
            HOSTILE: "nonsense",
        },
    }
    (folder / "run.json").write_text(json.dumps(facts))
    text = page_of(folder).text
    for words in (
        "NVIDIA H200",
        "topology device",
        "features pinned",
        "1,234,567, 64 % of reads",
        "1,013",
        "-2.1 %",
        "As <asked>.",
        "4,321",
        "3 MiB",
    ):
        assert words in text, words


def test_finalists_are_shown_with_what_they_took(tmp_path):
    folder = write_run(tmp_path / "run")
    assert "Finalists" not in page_of(folder).text
    facts = json.loads((folder / "run.json").read_text())
    timed = [
        {"value": "auto", "predicted_s": 0.0123, "timed_s": 0.0177},
        {"value": HOSTILE, "predicted_s": None, "timed_s": 0.0163},
    ]
    facts["result"]["settled"] = {
        "first_layer": {"chosen": "auto", "decided_by": "timed", "finalists": timed, "reason": ""},
        "groups": {"chosen": 1, "decided_by": "rule", "finalists": [], "reason": "The run is too short."},
        "order": "nonsense",
    }
    (folder / "run.json").write_text(json.dumps(facts))
    text = page_of(folder).text
    for words in ("first_layer auto 12.3 ms 17.7 ms chosen", "16.3 ms", "groups is 1 by rule. The run is too short."):
        assert words in text, words
