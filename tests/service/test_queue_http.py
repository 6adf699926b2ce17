"""The HTTP interface: who may use it, what it answers, and what it never says."""

import http.client
import json
import time
from pathlib import Path

import pytest

from penstock.service.app import make_app
from penstock.service.gate import MOST_BODY_BYTES
from penstock.service.scheduler import Served
from queue_parts import answering_parts, make_parts
from training_graphs import community_graph

TOKEN = "the-token"


@pytest.fixture
def parts(tmp_path):
    found = make_parts(tmp_path / "queue", allowed=[tmp_path.resolve()])
    community_graph(30).save(tmp_path / "graph")
    yield found
    found.close()


@pytest.fixture
def client(parts):
    with answering_parts(parts, TOKEN) as client:
        yield client


def refusal(answer, status, code):
    """The sentence of a refusal."""
    assert (answer.status, answer.json()["code"]) == (status, code), answer.text
    return answer.json()["error"]


def test_everything_with_data_needs_the_token(client, parts):
    client.headers.clear()
    schema = make_app(Served(parts.operations, parts.scheduler, parts.feed), TOKEN).openapi()
    assert len(schema["paths"]) >= 8
    for path, methods in schema["paths"].items():
        for method in methods:
            given = client.request(method.upper(), path.replace("{number}", "1"))
            refusal(given, 401, "not-permitted")
    for wrong in (f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer t\xe9"):
        answer = client.get("/api/jobs", headers={"Authorization": wrong})
        assert TOKEN not in refusal(answer, 401, "not-permitted").replace("TOKEN", "")
    # A token in an address would be written into logs and histories.
    refusal(client.get(f"/api/jobs?token={TOKEN}"), 401, "not-permitted")


def test_no_other_site_may_ask(client):
    asked = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "GET"}
    answer = client.request("OPTIONS", "/api/jobs", headers=asked)
    assert "access-control-allow-origin" not in answer.headers
    answer = client.get("/api/jobs", headers={"Origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_job_is_queued_shown_and_cancelled(client, tmp_path):
    answer = client.post("/api/jobs", fields={"job": {"graph": str(tmp_path / "graph")}, "priority": 2})
    assert answer.status == 201
    (job,) = answer.json()["jobs"]
    assert (job["id"], job["state"], job["priority"]) == (1, "submitted", 2)
    listed = client.get("/api/jobs").json()
    assert (listed["counts"], listed["next"], [each["id"] for each in listed["jobs"]]) == ({"submitted": 1}, None, [1])
    shown = client.get("/api/jobs/1").json()
    assert shown["document"]["graph"] == str((tmp_path / "graph").resolve())
    assert shown["result"] is None
    assert client.get("/api/jobs/1/log").json() == {"text": "", "next": 0, "final": False}
    assert client.get("/api/jobs/1/metrics").json() == {"records": [], "next": 0, "final": False}
    assert client.post("/api/jobs/1/cancel").json()["state"] == "cancelled"
    assert "cancelled" in refusal(client.post("/api/jobs/1/cancel"), 409, "closed")
    assert client.get("/api/jobs/1/log").json()["final"] is True


def test_a_job_that_failed_or_was_cancelled_is_tried_again(client, parts, tmp_path):
    client.post("/api/jobs", {"job": {"graph": str(tmp_path / "graph"), "run": str(tmp_path / "mine")}})
    assert "submitted" in refusal(client.post("/api/jobs/1/retry"), 409, "closed")
    client.post("/api/jobs/1/cancel")
    again = client.post("/api/jobs/1/retry").json()
    assert (again["state"], again["code"], again["reason"]) == ("submitted", None, "It is tried again.")
    parts.database.change(1, state="failed", code="diverged", tries=1, lost=3, host_bytes=5, ended=9.0)
    again = client.post("/api/jobs/1/retry").json()
    assert (again["state"], again["code"], again["ended"]) == ("interrupted", None, None)
    assert parts.database.job(1).lost == 0
    # Another job has taken its run folder: neither may overwrite the other's.
    parts.database.change(1, state="failed")
    client.post("/api/jobs", {"job": {"graph": str(tmp_path / "graph"), "run": str(tmp_path / "mine")}})
    assert "mine" in refusal(client.post("/api/jobs/1/retry"), 409, "in-use")
    parts.operations.draining = True
    refusal(client.post("/api/jobs/1/retry"), 409, "closed")
    refusal(client.post("/api/jobs/77/retry"), 409, "closed")


def test_a_report_is_given_to_who_has_the_token_and_never_from_elsewhere(client, parts, tmp_path):
    client.post("/api/jobs", {"job": {"graph": str(tmp_path / "graph")}})
    assert client.get("/api/jobs/1").json()["report"] is None
    refusal(client.get("/api/jobs/1/report"), 404, "file-not-found")
    run = Path(parts.database.job(1).run)
    run.mkdir(parents=True)
    (run / "report.html").write_text("<p>the run</p>")
    assert client.get("/api/jobs/1").json()["report"] == str(run / "report.html")
    assert client.get("/api/jobs/1/report").text == "<p>the run</p>"
    refusal(client.get("/api/jobs/1/report", headers={"Authorization": "Bearer wrong"}), 401, "not-permitted")
    (run / "report.html").unlink()
    (run / "report.html").symlink_to("/etc/hostname")
    refusal(client.get("/api/jobs/1/report"), 403, "not-permitted")


def test_a_sweep_is_a_job_for_each_combination_or_none_at_all(client, tmp_path):
    job = {"graph": str(tmp_path / "graph")}
    answer = client.post("/api/jobs", fields={"job": job, "sweep": {"lr": [0.1, 0.2], "hidden": [8, 16, 32]}})
    names = [each["name"] for each in answer.json()["jobs"]]
    assert len(names) == 6
    assert names[0] == "graph sage, lr=0.1, hidden=8"
    assert {each["sweep"] for each in answer.json()["jobs"]} == {1}
    documents = [client.get(f"/api/jobs/{number}").json()["document"] for number in range(1, 7)]
    assert [(each["lr"], each["hidden"]) for each in documents][3:] == [(0.2, 8), (0.2, 16), (0.2, 32)]
    refusal(client.post("/api/jobs", fields={"job": job, "sweep": {"lr": [0.1, -1]}}), 400, "invalid-document")
    refusal(client.post("/api/jobs", fields={"job": job, "sweep": {"lr": []}}), 413, "too-large")
    many = {"seed": list(range(1001))}
    refusal(client.post("/api/jobs", fields={"job": job, "sweep": many}), 413, "too-large")
    named = {**job, "run": str(tmp_path / "run")}
    refusal(client.post("/api/jobs", fields={"job": named, "sweep": {"lr": [0.1, 0.2]}}), 409, "in-use")
    assert client.get("/api/jobs").json()["counts"] == {"submitted": 6}


def test_jobs_are_told_apart_by_their_names(client, tmp_path):
    job = {"graph": str(tmp_path / "graph"), "model": "gcn"}

    def names(**fields):
        return [each["name"] for each in client.post("/api/jobs", fields={"job": job, **fields}).json()["jobs"]]

    assert names() == ["graph gcn"]
    assert names(changes={"seed": 1, "model": "gat"}) == ["graph gat, seed=1"]
    assert names(changes={"seed": 1}, sweep={"lr": [0.1, 0.2]}) == [
        "graph gcn, seed=1, lr=0.1",
        "graph gcn, seed=1, lr=0.2",
    ]
    assert names(changes={"seed": 1}, name="  the\nbest ") == ["the best"]
    assert names(name="mine", sweep={"seed": [3, 4]}) == ["mine, seed=3", "mine, seed=4"]
    assert client.get("/api/jobs/2").json()["document"]["seed"] == 1
    (long,) = names(changes={"optimiser_options": {"betas": [0.5] * 500}})
    assert long.startswith("graph gcn, optimiser_options={'betas': [0.5") and len(long) < 250
    refusal(client.post("/api/jobs", fields={"job": job, "name": "x" * 101}), 400, "invalid-document")


def test_the_best_job_of_a_sweep_is_marked_wherever_the_list_is_cut(client, parts, tmp_path):
    job = {"graph": str(tmp_path / "graph")}
    client.post("/api/jobs", fields={"job": job, "sweep": {"lr": [0.1, 0.2, 0.3]}})
    client.post("/api/jobs", fields={"job": job})

    def best(query=""):
        return [each["id"] for each in client.get(f"/api/jobs{query}").json()["jobs"] if each["best"]]

    assert best() == []
    for number, value in ((1, 0.5), (2, 0.75), (4, 0.9)):
        parts.database.change(number, metric={"name": "accuracy", "better": "higher", "val": value})
    assert best() == [2]
    assert best("?limit=1&before=2") == []
    assert client.get("/api/jobs/2").json()["best"] is True
    # What a running job has reached is not in the database yet.
    now = {"seconds": 7.5, "metric": {"name": "accuracy", "better": "higher", "val": 0.8, "epoch": 2}}
    parts.scheduler.live = lambda: {3: now}
    assert best() == [3]
    assert client.get("/api/jobs/3").json()["seconds"] == 7.5
    parts.scheduler.live = lambda: {3: {**now, "metric": {"name": "rmse", "better": "lower", "val": 0.8}}}
    assert best() == []


def test_a_job_cannot_take_the_run_folders_of_those_to_come(client, parts, tmp_path):
    job = {"graph": str(tmp_path / "graph")}
    taken = {**job, "run": str(parts.folder.job(2) / "run")}
    assert "run" in refusal(client.post("/api/jobs", fields={"job": taken}), 403, "not-permitted")
    for _ in range(3):
        assert client.post("/api/jobs", fields={"job": job}).status == 201


def test_lists_go_on_where_they_ended(client, tmp_path):
    job = {"graph": str(tmp_path / "graph")}
    client.post("/api/jobs", fields={"job": job, "sweep": {"seed": [1, 2, 3]}})
    first = client.get("/api/jobs?limit=2").json()
    assert ([each["id"] for each in first["jobs"]], first["next"]) == ([3, 2], 2)
    assert [each["id"] for each in client.get("/api/jobs?limit=2&before=2").json()["jobs"]] == [1]
    assert client.get("/api/jobs?state=ended&state=failed").json()["jobs"] == []


def test_bad_requests_are_one_sentence(client, tmp_path):
    refusal(client.get("/api/jobs/99"), 404, "unknown-name")
    refusal(client.get("/api/nothing"), 404, "unknown-name")
    refusal(client.get("/api/jobs/nine"), 400, "invalid-document")
    refusal(client.get("/api/jobs?limit=100000"), 400, "invalid-document")
    refusal(client.post("/api/jobs", fields={"job": 3}), 400, "invalid-document")
    refusal(client.post("/api/jobs", fields={"job": {}, "more": 1}), 400, "invalid-document")
    refusal(client.post("/api/jobs", body=b"{"), 400, "invalid-document")
    refusal(client.post("/api/jobs", fields={"job": {"graph": "/etc/passwd"}}), 403, "not-permitted")
    refusal(client.post("/api/jobs", fields={"job": {"module": "os:getcwd"}}), 403, "untrusted-code")


def test_requests_are_bounded_whatever_they_say_of_their_size(client):
    refusal(client.post("/api/jobs", body=b" " * (MOST_BODY_BYTES + 1)), 413, "too-large")

    def endless():
        for _ in range(40):
            yield b" " * (MOST_BODY_BYTES // 16)

    refusal(client.post("/api/jobs", body=endless()), 413, "too-large")


def test_a_drained_service_takes_no_more(client, tmp_path):
    assert client.post("/api/drain").json() == {"running": 0}
    refusal(client.post("/api/jobs", fields={"job": {"graph": str(tmp_path / "graph")}}), 409, "closed")
    assert client.get("/api/devices").json()["draining"] is True


def test_devices_say_what_they_have(client):
    answer = client.get("/api/devices").json()
    assert answer["policy"] == "fit"
    (device,) = answer["devices"]
    assert (device["name"], device["cores"], device["running"]) == ("cpu", 2.0, [])


def test_the_page_of_the_interface_names_every_operation_and_loads_nothing(client):
    page = client.get("/api", headers={"Authorization": ""})
    assert page.status == 200
    for path in client.get("/api/openapi.json").json()["paths"]:
        assert path in page.text
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_events_tell_of_changes(client, parts, tmp_path):
    client.post("/api/jobs", fields={"job": {"graph": str(tmp_path / "graph")}})
    feed = parts.feed
    (event,) = feed.after(0)
    assert (event.kind, event.fields["id"], event.fields["state"]) == ("job", 1, "submitted")
    client.post("/api/jobs/1/cancel")
    assert [each.fields["state"] for each in feed.after(event.number)] == ["cancelled"]
    assert feed.after(feed.newest) == []
    assert feed.after(feed.newest + 1) is None
    for _ in range(2100):
        feed.add("job", {})
    assert feed.after(event.number) is None


def test_events_are_streamed_until_the_service_ends(client, tmp_path):
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
    connection.request("GET", "/api/events", headers=client.headers)
    stream = connection.getresponse()
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.readline() == b"retry: 2000\n"
    client.post("/api/jobs", fields={"job": {"graph": str(tmp_path / "graph")}})
    found = {}
    while set(found) != {"devices", "job"}:
        line = stream.readline().decode()
        assert line
        if line.startswith("event: "):
            found[line.split()[1]] = json.loads(stream.readline().decode().removeprefix("data: "))
    assert (found["job"]["id"], found["job"]["state"]) == (1, "submitted")
    assert found["devices"]["devices"][0]["name"] == "cpu"
    connection.close()


@pytest.mark.long  # it measures time
def test_ten_thousand_jobs_do_not_slow_the_interface_down(client, parts, tmp_path):
    job = {"name": "a", "document": {}, "priority": 0, "kind": "cpu", "cores": 1, "run": "", "likeness": "x"}
    for _ in range(10):
        parts.database.add([job] * 1000, lambda number: tmp_path / str(number))
    fields = {"job": {"graph": str(tmp_path / "graph")}}
    for ask in (
        lambda: client.post("/api/jobs", fields=fields),
        lambda: client.get("/api/jobs?limit=100"),
        lambda: client.get("/api/jobs?state=submitted&before=5000&limit=100"),
        lambda: client.get("/api/jobs/9000"),
    ):
        took = []
        for _ in range(3):
            start = time.perf_counter()
            assert ask().status < 300
            took.append(time.perf_counter() - start)
        assert min(took) < 0.2
