"""Nothing is left of a post that was closed: no thread, no descriptor."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from meetings import echo, until

from penstock.wire.channel import PeerLost
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.options import WireOptions
from penstock.wire.transport.tls import make_credentials

DESCRIPTORS = Path("/proc/self/fd")


def used(security: str) -> None:
    """Posts that talk, one of them to a peer that is not there, and are closed."""
    run = make_credentials(["a", "b", "c"])
    options = WireOptions.model_validate({"security": security})
    with Endpoint(run["a"], options=options) as a, Endpoint(run["b"], options=options) as b:
        b.serve("echo", echo)
        a.meet("b", b.address)
        for flow in ("", "x", "y"):
            a.channel("b", flow).call(Message("echo", arrays=(np.zeros(50_000),)))
        with pytest.raises(PeerLost):
            a.channel("c").call(Message("echo"), timeout=0.01)


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="descriptors are counted in /proc")
def test_nothing_is_left(security: str) -> None:
    # ZeroMQ's Python binding keeps one thread of its own, started by the first message that is not copied.
    used(security)
    descriptors, threads = len(list(DESCRIPTORS.iterdir())), threading.active_count()
    for _ in range(3):
        used(security)
    until(lambda: threading.active_count() <= threads)
    assert len(list(DESCRIPTORS.iterdir())) <= descriptors


def test_closing_twice_is_closing(security: str) -> None:
    endpoint = Endpoint(make_credentials(["a"])["a"], options=WireOptions.model_validate({"security": security}))
    endpoint.close()
    endpoint.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wire-a")]


FORGETFUL = """
import numpy as np
from penstock.wire.message import Message
from penstock.wire.endpoint import Endpoint
from penstock.wire.transport.tls import make_credentials
run = make_credentials(["a", "b"])
a, b = Endpoint(run["a"]), Endpoint(run["b"])
b.serve("echo", lambda message, sender: message)
a.meet("b", b.address)
a.channel("b").call(Message("echo", arrays=(np.zeros(100_000),)))
a.channel("b", "x").start(Message("echo", arrays=(np.zeros(100_000),)))
raise SystemExit(3)
"""


def test_a_process_ends_also_when_nobody_closed() -> None:
    done = subprocess.run([sys.executable, "-c", FORGETFUL], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3, "")
