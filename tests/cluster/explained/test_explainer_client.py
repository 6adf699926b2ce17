"""The worker's side of its explainer: one that dies, stops or says nothing is replaced, and none is left behind."""

import os
import threading

import numpy as np
import psutil
import pytest

from penstock.cluster.worker.explained import explainer_client
from penstock.cluster.worker.explained.explainer_client import ExplainerClient
from refusals import refused

# An explainer without a model: it answers with the sum of what it was given. The first ones misbehave.
EXPLAINER = """
import json, os, signal, struct, sys, time

def read():
    (length,) = struct.unpack(">Q", sys.stdin.buffer.read(8))
    header = json.loads(sys.stdin.buffer.read(length))
    sizes = [8 * int(shape[0]) for _, _, shape in header["arrays"]]
    return header["document"], [struct.unpack(f"<{size // 8}d", sys.stdin.buffer.read(size)) for size in sizes]

def say(**document):
    header = json.dumps({"document": document, "arrays": []}).encode()
    os.write(1, struct.pack(">Q", len(header)) + header)

started = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(started, b".")
bad = os.fstat(started).st_size <= int(sys.argv[3])
read()
say(alive=True)
while True:
    asked, arrays = read()
    say(alive=True)
    if "fault" in asked:
        say(error="It cannot be done.", code="not-finite")
    elif not bad:
        say(total=sum(map(sum, arrays)), seed=asked["seed"])
    elif sys.argv[2] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif sys.argv[2] == "pauses":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif sys.argv[2] == "is silent":
        time.sleep(3600)
    else:
        os.write(1, struct.pack(">Q", 1000) + b"{")
        time.sleep(3600)
"""


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Makes clients whose first `bad` explainers misbehave in one way."""
    made = []

    def make(how, bad):
        arguments = ["-c", EXPLAINER, str(tmp_path / "started"), how, str(bad)]
        monkeypatch.setattr(explainer_client, "ARGUMENTS", arguments)
        made.append(ExplainerClient({}, patience=0.5, start_patience=60.0))
        return made[-1]

    yield make
    for each in made:
        each.close()
    children = psutil.Process().children()
    assert not [child for child in children if "started" in " ".join(child.cmdline())]


@pytest.mark.parametrize("how", ["dies", "pauses", "is silent", "says half"])
def test_one_that_is_lost_is_replaced(client, how):
    asking = client(how, 1)
    first = asking.ask({"seed": 3}, {"x": np.arange(5.0)})
    assert first.document == {"total": 10.0, "seed": 3}
    assert asking.lost >= 1
    pid = asking.pid
    assert asking.ask({"seed": 4}, {"x": np.arange(3.0)}).document == {"total": 3.0, "seed": 4}
    assert asking.pid == pid or asking.lost > 1


def test_one_that_is_prepared_answers_and_one_that_cannot_start_is_no_error(client, monkeypatch):
    asking = client("", 0)
    asking.prepare()
    pid = asking.pid
    assert pid is not None and asking.ask({"seed": 1}, {}).document["seed"] == 1 and asking.pid == pid
    monkeypatch.setattr(explainer_client, "ARGUMENTS", ["-c", "raise SystemExit(1)"])
    asking.close()
    asking.open()
    asking.prepare()
    assert asking.pid is None


def test_after_several_losses_the_run_hears_of_it(client):
    with refused("external-failure memory"):
        client("dies", 99).ask({"seed": 1}, {})


def test_what_an_explainer_refuses_is_said_and_it_goes_on(client):
    asking = client("", 0)
    with refused("not-finite"):
        asking.ask({"seed": 1, "fault": True}, {})
    assert asking.ask({"seed": 1}, {}).document["total"] == 0


def test_closing_ends_a_request_and_the_process(client):
    asking = client("is silent", 99)
    asking._patience = 3600.0
    errors = []

    def ask():
        with refused("closed"):
            asking.ask({"seed": 1}, {})
        errors.append("closed")

    thread = threading.Thread(target=ask)
    thread.start()
    while asking.pid is None:
        os.sched_yield()
    asking.close()
    thread.join()
    assert errors == ["closed"] and asking.pid is None
    asking.open()
