"""A service that others flood: silent connections, bodies without a token, hostile requests, no descriptors left."""

import errno
import json
import logging
import os
import random
import resource
import socket
import sqlite3
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.cli.main import _of_system
from penstock.service import gate, scheduler
from penstock.service import gate as connections
from penstock.service.workers.pool import ProcessName
from queue_parts import answering_parts, make_parts
from refusals import refused
from training_graphs import community_graph

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from hostile_requests import hostile_request, status_of

TOKEN = "the-token"
PATIENCE_S = 60
HALF = b"GET /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n"


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


@contextmanager
def connection(client, said=b""):
    with socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE_S) as found:
        found.sendall(said)
        yield found


def heard(found):
    """All that comes until the service closes the connection."""
    text = b""
    with suppress(ConnectionResetError):
        while piece := found.recv(65536):
            text += piece
    return text


def request(*lines, body=b""):
    return "\r\n".join([*lines, "Host: 127.0.0.1", "", ""]).encode() + body


def test_connections_are_fewer_than_descriptors(monkeypatch):
    for allowed, most in ((20000, 256), (1024, 256), (256, 64), (40, 10), (resource.RLIM_INFINITY, 256)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, allowed=allowed: (allowed, allowed))
        assert connections.most_connections() == most
        assert connections.most_connections() + connections.most_pending() <= allowed / 2 or allowed < 0


def test_half_open_connections_give_way_to_others(client, monkeypatch):
    monkeypatch.setattr(connections, "most_connections", lambda: 4)
    opened = [socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE_S) for _ in range(12)]
    for each in opened:
        with suppress(OSError):
            each.sendall(HALF)
    # Those that have waited longest are closed, and whoever says what it wants is answered.
    assert [heard(each) for each in opened[:8]] == [b""] * 8
    assert client.get("/api/jobs").status == 200
    assert heard(opened[8]) == b""
    for each in opened:
        each.close()


def test_a_stream_with_the_token_does_not_give_way(client, monkeypatch):
    monkeypatch.setattr(connections, "most_connections", lambda: 2)
    asked = request("GET /api/events HTTP/1.1", f"Authorization: Bearer {TOKEN}")
    with connection(client, asked) as first, connection(client, asked) as second:
        for each in (first, second):
            text = b""
            while b"retry: 2000" not in text:
                text += each.recv(65536) or pytest.fail("the stream was closed")
            assert text.startswith(b"HTTP/1.1 200")
        # Both places are taken by those who may: there is none for others, and the streams go on.
        with connection(client) as other:
            assert heard(other) == b""
        for each in (first, second):
            each.setblocking(False)
            with suppress(BlockingIOError):
                assert each.recv(65536) != b""


@contextmanager
def answered(client, asked):
    """A connection and the beginning of its answer; a request that a busy machine takes up too late gets none."""
    for _ in range(100):
        with connection(client, asked) as made:
            text = b""
            with suppress(ConnectionError):
                text = made.recv(65536)
            if text:
                yield made, text
                return
    raise AssertionError("no request was answered")


def test_a_request_that_does_not_come_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    with connection(client) as silent, connection(client, HALF) as half:
        assert heard(silent) == heard(half) == b""
    # A byte after an answer does not keep a connection open for ever.
    with answered(client, request("GET /api HTTP/1.1")) as (again, page):
        assert page.startswith(b"HTTP/1.1 200")
        with suppress(ConnectionError):
            again.sendall(b"G")
        heard(again)
    # Neither does a page that nobody reads; a stream with the token stays.
    asked = request("GET /api/events HTTP/1.1", f"Authorization: Bearer {TOKEN}")
    with answered(client, asked) as (stream, text), connection(client) as silent:
        assert heard(silent) == b""
        while b"event: devices" not in text:
            more = stream.recv(65536)
            assert more
            text += more


def test_a_body_that_does_not_come_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr(gate, "BODY_S", 0.2)
    monkeypatch.setattr(gate, "_DROPPED_S", 0.2)
    asked = request("POST /api/jobs HTTP/1.1", f"Authorization: Bearer {TOKEN}", "Content-Length: 100", body=b"{")
    with connection(client, asked) as late:
        answer = heard(late)
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "closed"


def test_the_token_is_looked_at_before_the_body(client):
    """Nothing of the body was sent, so that nothing of it can have been read."""
    for size in (1000, gate.MOST_BODY_BYTES, 1 << 40):
        with connection(client, request("POST /api/jobs HTTP/1.1", f"Content-Length: {size}")) as found:
            assert found.recv(65536).startswith(b"HTTP/1.1 401")
    asked = request("POST /api/jobs HTTP/1.1", "Content-Length: 100", "Expect: 100-continue")
    with connection(client, asked) as found:
        assert heard(found).startswith(b"HTTP/1.1 401")
    # A client that has sent all of a body hears the answer, and not that the connection was reset.
    client.headers.clear()
    assert client.post("/api/jobs", body=b" " * gate.MOST_BODY_BYTES).status == 401


def test_what_turns_out_to_be_no_http_gets_one_answer(client):
    failures = []

    class Kept(logging.Handler):
        def emit(self, record):
            failures.append(record.getMessage())

    log, kept = logging.getLogger("uvicorn.error"), Kept(logging.ERROR)
    log.addHandler(kept)
    try:
        for shown in ([], [f"Authorization: Bearer {TOKEN}"]):
            asked = request("POST /api/jobs HTTP/1.1", *shown, "Transfer-Encoding: chunked", body=b"no number\r\n")
            with connection(client, asked) as found:
                assert heard(found).count(b"HTTP/1.1 400") == 1
        # A body that is cut short is not taken for a whole one.
        cut = request("POST /api/jobs/1/cancel HTTP/1.1", shown[0], "Content-Length: 9", body=b"{}")
        with connection(client, cut) as found:
            found.shutdown(socket.SHUT_WR)
            assert b" 404 " not in heard(found)
        assert client.get("/api/jobs").status == 200
    finally:
        log.removeHandler(kept)
    assert failures == []


def test_a_request_names_this_host(client):
    """A page of somebody else's, whose name was made to lead here, names its own."""
    named = ("localhost", "LOCALHOST:8700", "127.0.0.1", "[::1]:8700", "10.1.2.3:80", socket.gethostname())
    for host in named:
        for path in ("/", "/api", "/api/jobs"):
            assert client.get(path, headers={"Host": host}).status == 200, host
    for host in ("evil.example", "evil.example:8700", "127.0.0.1.evil.example", "localhost.evil.example", "", "a:b:c"):
        for path in ("/", "/api", "/api/jobs"):
            answer = client.get(path, headers={"Host": host})
            assert (answer.status, answer.json()["code"]) == (403, "not-permitted"), host


def test_a_host_that_was_named_is_this_one(parts):
    with answering_parts(parts, TOKEN, host="Queue.Example") as client:
        assert client.get("/", headers={"Host": "queue.example:80"}).status == 200
        assert client.get("/", headers={"Host": "other.example"}).status == 403


def test_numbers_that_are_too_large_and_halves_of_characters_are_refused(client, tmp_path):
    for number in (1 << 63, 1 << 64, 10**400, -1):
        asked = [f"/api/jobs/{number}{part}" for part in ("", "/log", "/metrics", "/report")]
        for path in (*asked, f"/api/jobs?before={number}", f"/api/jobs/1/log?offset={number}"):
            assert 400 <= client.get(path).status < 500, path
        for part in ("cancel", "retry"):
            assert 400 <= client.post(f"/api/jobs/{number}/{part}").status < 500
    assert client.get(f"/api/jobs?before={(1 << 63) - 1}").status == 200
    graph = str(tmp_path / "graph")
    for job in ({"graph": "\ud800"}, {"graph": graph, "run": "/x\udfff"}, {"graph": graph, "\ud800": 1}):
        answer = client.post("/api/jobs", fields={"job": job})
        assert (answer.status, answer.json()["code"]) == (400, "invalid-value"), answer.text
    answer = client.post("/api/jobs", fields={"job": {"graph": graph}, "sweep": {"lr": ["\ud800"]}})
    assert answer.status == 400
    assert client.post("/api/jobs", fields={"job": {}, "\ud800": 1}).status == 400
    for field, more in (("job", ""), ("job", ', "sweep": {"lr": [0.1]}'), ("changes", ', "job": {}')):
        deep = f'{{"{field}": {{"graph": {"[" * 900}{"]" * 900}}}{more}}}'
        assert client.post("/api/jobs", body=deep, headers={"Content-Type": "application/json"}).status == 400
    assert client.get("/api/jobs").json()["counts"] == {}


def test_hostile_requests_are_refused_and_never_fail(client, parts, tmp_path):
    draws, found = random.Random(0), set()
    for at in range(600):
        asked = hostile_request(draws, TOKEN if at % 2 else None, str(parts.folder.path), complete=True)
        status = status_of(("127.0.0.1", client.port), asked)
        assert status != "late" and not status.startswith("5"), (status, asked)
        found.add(status)
    assert {"200", "400", "401", "403", "404", "405"} <= found
    assert client.get("/api/jobs").status == 200


@contextmanager
def no_descriptors(but=0):
    """Within it this process can open nothing more, or only so many."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = _free_descriptors(but) if but else 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _free_descriptors(count):
    """The limit that leaves so many descriptors: the system gives the lowest that is free."""
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
    for each in opened:
        os.close(each)
    return max(opened) + 1


def test_a_scheduler_without_descriptors_tries_again(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "_PAUSE_S", 0.0)
    said = []
    monkeypatch.setattr(parts.scheduler, "_say", said.append)
    (job,) = parts.operations.submit({"graph": str(tmp_path / "graph")}, {}, 0)
    with no_descriptors():
        for _ in range(3):
            parts.scheduler._ticked()
    assert len(said) == 3
    assert all("open files" in line and "ulimit -n" in line and "pace" not in line for line in said), said
    assert parts.database.job(job.id).state == "submitted"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")
def test_a_start_that_fails_leaves_no_descriptors_open(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "_PAUSE_S", 0.0)
    parts.operations.submit({"graph": str(tmp_path / "graph")}, {}, 0)
    parts.pool.prepare()
    first = len(list(Path("/proc/self/fd").iterdir()))
    # Each tick gets one descriptor further than the one before: the log, two pipes, a look at the new process.
    for more in range(6):
        with no_descriptors(but=more):
            parts.scheduler._ticked()
        assert parts.database.job(1).state == "submitted"
        assert len(list(Path("/proc/self/fd").iterdir())) == first
    parts.pool.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems are asked with ps")
def test_a_process_that_cannot_be_looked_at_has_not_ended():
    mine = ProcessName.of(os.getpid())
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        assert mine.is_alive
    assert mine.is_alive


def test_too_many_open_files_are_no_full_disk():
    assert "ulimit -n" in _of_system(OSError(errno.EMFILE, "Too many open files"))
    assert "disk" not in _of_system(OSError(errno.EMFILE, "Too many open files"))
    assert "disk is full" in _of_system(OSError(errno.ENOSPC, "No space left on device"))


def test_a_locked_database_is_waited_for(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "_PAUSE_S", 0.0)
    said = []
    monkeypatch.setattr(parts.scheduler, "_say", said.append)
    parts.operations.submit({"graph": str(tmp_path / "graph")}, {}, 0)
    parts.database._connection.execute("PRAGMA busy_timeout = 0")
    monkeypatch.setattr(parts.pool, "fork", lambda *given: pytest.fail("nothing can be started"))
    other = sqlite3.connect(parts.folder.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with refused("not-available queue.sqlite"):
        parts.operations.submit({"graph": str(tmp_path / "graph")}, {}, 0)
    with refused("not-available queue.sqlite"):
        parts.operations.cancel(1)
    other.execute("ROLLBACK")
    assert parts.operations.cancel(1).state == "cancelled"
    # What reads alone can be refused, too.
    monkeypatch.setattr(parts.database, "_connection", _Locked())
    parts.scheduler._ticked()
    assert "locked" in said[0]
    other.close()


class _Locked:
    """A connection to a database that somebody else has locked."""

    def execute(self, *given):
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    def close(self):
        """There is nothing to close."""
