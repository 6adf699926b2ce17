"""What Prometheus reads: its text format, the token, and figures that agree with the HTTP interface."""

import re

import pytest

from penstock.service.pages import exposition
from queue_parts import answering_parts, make_parts

LINE = re.compile(r'^(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)+)\} (\S+)$')


def samples(text: str) -> dict[tuple[str, str], float]:
    """Every sample by its name and labels; each family is described before its samples."""
    found, described = {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# "):
            kind, name = line.split(" ")[1:3]
            described.add((kind, name))
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        assert {("HELP", name), ("TYPE", name)} <= described
        assert (name, labels) not in found
        found[name, labels] = float(value)
    return found


def running(number: int, **changes) -> dict:
    fields = {
        "id": number,
        "granted_device_bytes": None,
        "granted_host_bytes": 100,
        "device_bytes": 0,
        "host_bytes": 80,
    }
    return fields | {"cores": 2, "steps": 7, "speed": None} | changes


def test_figures_by_state_device_and_job() -> None:
    devices = [
        {"name": "cuda:0", "bytes": 1000, "host_bytes": 500, "cores": 8.0, "running": [
            running(3, granted_device_bytes=400, device_bytes=390, speed=0.75), running(4, granted_device_bytes=100)]},
        {"name": 'odd "name"\\\n', "bytes": 0, "host_bytes": 500, "cores": 8.0, "running": []},
    ]  # fmt: skip
    found = samples(exposition({"waiting": 2, "running": 2}, devices))
    assert found["penstock_jobs", 'state="waiting"'] == 2
    assert found["penstock_jobs", 'state="failed"'] == 0
    gpu = 'device="cuda:0"'
    assert found["penstock_device_memory_bytes", gpu] == 1000
    assert found["penstock_device_memory_granted_bytes", gpu] == 500
    assert found["penstock_device_memory_peak_bytes", gpu] == 390
    assert found["penstock_host_memory_peak_bytes", gpu] == 160
    assert found["penstock_cores_granted", gpu] == 4
    assert found["penstock_job_steps_total", 'job="3",device="cuda:0"'] == 7
    assert found["penstock_job_speed", 'job="3",device="cuda:0"'] == 0.75
    assert ("penstock_job_speed", 'job="4",device="cuda:0"') not in found
    assert found["penstock_device_jobs", r'device="odd \"name\"\\\n"'] == 0


@pytest.fixture
def client(tmp_path):
    parts = make_parts(tmp_path / "queue")
    with answering_parts(parts, "the-token") as client:
        yield client
    parts.close()
    parts.pool.close()


def test_it_is_served_to_those_who_know_the_token(client) -> None:
    answer = client.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert samples(answer.text)["penstock_device_jobs", 'device="cpu"'] == 0
    client.headers.clear()
    assert client.get("/metrics").status == 401
    page = client.get("/")
    assert page.status == 200 and "script-src 'sha256-" in page.headers["content-security-policy"]
    assert "unsafe-inline" not in page.headers["content-security-policy"].partition("script-src")[2]
