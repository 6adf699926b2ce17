"""Hosts in a box: separate, limited, cleaned up after; and a run over them."""

import os
import socket
import sys
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from boxed_hosts import boxed, hosts_or_skip, resent_bytes
from cluster_runs import cluster_file, in_parts, result_of, run_on
from forks import ForkedProgram
from penstock.cluster import run
from training_graphs import community_graph

MEGABYTE = 1_000_000


def namespaces_of(process):
    """Those that a process has made."""
    return {path.name for path in Path("/run/netns").glob(f"{boxed.PREFIX}{process}s*")}


def test_links_are_limited_and_counted_and_gone_at_the_end():
    with hosts_or_skip([50, 20]) as (near, far):
        assert len(namespaces_of(os.getpid())) == 3
        with far.entered():
            server = socket.create_server((far.address, 0))
        with near.entered():
            caller = socket.create_connection(server.getsockname())
        with server, caller:
            taking, _ = server.accept()
            sending = threading.Thread(target=caller.sendall, args=(bytes(2 * MEGABYTE),))
            sending.start()
            arrived = 0
            with taking:
                while arrived < 2 * MEGABYTE:
                    arrived += len(taking.recv(1 << 16))
            sending.join()
        sent, received = near.carried()
        # With headers, and with what the slower link has dropped.
        assert 2 * MEGABYTE < sent < 2.4 * MEGABYTE + resent_bytes(near)
        assert received < 0.1 * sent
        assert far.carried()[1] > 2 * MEGABYTE
        # Packets had to wait for the link: the sender's at its own rate, or the receiver's at the switch.
        shown = near.run("tc", "-s", "class", "show", "dev", boxed.DEVICE)
        assert "rate 50Mbit ceil 50Mbit" in shown
        assert "overlimits 0 " not in shown
        # This process is back where it was, and cannot reach them.
        with pytest.raises(OSError):
            socket.create_server((near.address, 0))
    assert not namespaces_of(os.getpid())


MAKER = """
import sys, time
sys.path.append({folder!r})
import hosts
with hosts.hosts([10, 10]):
    print("made", flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_left_is_removed():
    with hosts_or_skip([10]):
        pass
    child = ForkedProgram(["python", MAKER.format(folder=str(Path(boxed.__file__).parent))])
    try:
        while child.said()[0] != "made\n":
            assert child.poll() is None, child.said()
            time.sleep(0.02)
        # Not while their maker lives.
        boxed.remove_leftovers()
        assert len(namespaces_of(child.pid)) == 3
    finally:
        child.kill()
        child.communicate()
    assert len(namespaces_of(child.pid)) == 3
    boxed.remove_leftovers()
    assert not namespaces_of(child.pid)


def test_without_root_the_benchmark_says_so(monkeypatch, capsys):
    import testbed

    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["testbed.py"])
    assert testbed.main() == 2
    assert "needs root" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.usefixtures("tasks_are_programs")  # a fork would be on the host of the process that forks
def test_a_run_over_hosts_of_different_rates(tmp_path):
    graph = community_graph().save(tmp_path / "graph")
    parts = in_parts(graph, 2, tmp_path)
    with hosts_or_skip([50, 200]) as bed:
        machines = {f"m{number}": host for number, host in enumerate(bed)}
        listed = [{"name": name, "address": host.address} for name, host in machines.items()]
        cluster = cluster_file(tmp_path, machines=listed, partition=parts)

        def on_hosts(cluster, run):
            return boxed.HostLauncher(run, machines)

        before = [host.carried()[1] for host in bed]
        with patch.object(run, "make_launcher", on_hosts), bed[0].entered():
            run_on(cluster, graph.path, tmp_path / "run", epochs=2, evaluate_every=-1)
        received = [host.carried()[1] - then for host, then in zip(bed, before, strict=True)]
    result = result_of(tmp_path / "run")
    answered = [result["flows"][f"worker-{rank}>store-m{1 - rank}/features"][1] for rank in (0, 1)]
    assert sum(answered) >= result["bytes_received"] == result["bytes_minimum"] > 0
    # What the wire counts has come over the links, with gradients and headers.
    assert all(link > flow > 0 for link, flow in zip(received, answered, strict=True))
    assert result["recoveries"] == []
