"""Around every test with real processes: it ends in time, and leaves nothing behind."""

import os
import signal
import socket
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster_runs import MARK, marked_processes
from forks import forking_process

LIMIT = 150
"""Seconds a test may take."""


@pytest.fixture(autouse=True)
def ends_in_time():
    """No hang holds up the other tests."""

    def late(number, frame):
        raise TimeoutError(f"the test took more than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def leaves_nothing(monkeypatch):
    """No process, no shared memory, no listening socket."""
    # It outlives the test, which must not be the one to start it.
    forking_process()
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    memory, sockets = _shared_memory(), _listening()
    yield
    assert marked_processes(mark) == []
    assert _shared_memory() <= memory
    assert _listening() <= sockets


def _shared_memory():
    """Files of this user: the folders there are those that tests, of this run or another, write into."""
    folder, found = Path("/dev/shm"), set()
    for path in folder.iterdir() if folder.exists() else ():
        with suppress(FileNotFoundError):  # What another process has removed meanwhile.
            if path.is_file() and path.stat().st_uid == os.getuid():
                found.add(path.name)
    return found


def _listening():
    own = psutil.Process().net_connections(kind="inet")
    return {each.laddr for each in own if each.status == psutil.CONN_LISTEN and each.family == socket.AF_INET}
