"""Shares of features that workers hand each other over their own connections: here in one process, on the host."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from wired import template_for, wired

from host_shares import PAGE, shared_on_host
from penstock.cluster.rendezvous import Rendezvous
from penstock.cluster.worker.gpu_shares import GpuShares
from penstock.store.device.shards import reason_against_sharing, shared_by_gpus, to_shares
from penstock.wire.message import Message
from refusals import refused

HOST = torch.device("cpu")
ROWS = np.arange(3 * PAGE, dtype=np.float32).reshape(-1, 6)


@pytest.fixture
def run(monkeypatch):
    """A controller's handlers and three workers."""
    shared_on_host(monkeypatch)
    endpoint, members = wired(template_for(3, patience=2.0), Rendezvous(3).handlers(), range(3))
    yield endpoint, members
    for each in (*members, endpoint):
        each.close()


def at_once(members, action):
    """What each of some members does, in a thread of its own."""
    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(action, members))


def table_of(shares, rows=ROWS):
    """The rows as a worker maps them."""
    with shared_by_gpus(shares.group()):
        return to_shares(rows, HOST)


def restarted(run, rank):
    """A member that takes the place of another, which is gone."""
    _, members = run
    members[rank].close()
    own = members[rank].setup.model_copy(update={"incarnation": 1})
    made = members[rank] = type(members[rank])(own)
    for other in members:
        if other is not made:
            made.endpoint.meet(other.setup.task.id, other.endpoint.address)
            other.endpoint.meet(own.task.id, made.endpoint.address)
    return made


def test_workers_agree_and_read_each_other(run):
    _, members = run

    def work(member):
        shares = GpuShares(member)
        group = shares.group()
        assert (group.count, group.rank, group.held) == (3, member.setup.task.rank, 0)
        assert reason_against_sharing(HOST, group, shares.agree) == ""
        found = shares.agree("room", lambda: "" if group.rank else "no room")
        return found, table_of(shares)

    for found, table in at_once(members, work):
        assert found == ["no room", "", ""] and torch.equal(table, torch.from_numpy(ROWS))


def test_a_lost_worker_finds_its_share_with_the_others(run):
    def work(member):
        shares = GpuShares(member)
        reason_against_sharing(HOST, shares.group(), shares.agree)
        return table_of(shares)

    tables = at_once(run[1], work)
    again = GpuShares(restarted(run, 1))
    # The pages by which group was tried do not count.
    assert again.group().held == -(-ROWS.nbytes // (3 * PAGE)) * PAGE
    assert again.agree("memory can be shared", lambda: pytest.fail("it is known")) == ["", "", ""]
    assert torch.equal(table_of(again, -ROWS), tables[0])
    # One that is lost next finds what the returned worker has, too.
    third = GpuShares(restarted(run, 2))
    assert torch.equal(table_of(third, -ROWS), tables[0])


def test_a_worker_that_is_lost_before_its_rows_are_there(run):
    """The others wait for it, and what it was asked before is asked again."""
    _, members = run
    found = []
    others = [GpuShares(member) for member in members[:2]]
    threads = [threading.Thread(target=lambda each=each: found.append(table_of(each))) for each in others]
    for thread in threads:
        thread.start()
    last = GpuShares(restarted(run, 2))
    assert torch.equal(table_of(last), torch.from_numpy(ROWS))
    for thread in threads:
        thread.join(30)
    assert len(found) == 2 and all(torch.equal(table, torch.from_numpy(ROWS)) for table in found)


def test_the_run_ends_while_a_worker_waits(run):
    _, members = run
    shares = [GpuShares(member) for member in members]
    members[0].stopped.set()
    with refused("closed controller"):
        shares[0].agree("m", lambda: "")
    with refused("closed controller"):
        table_of(shares[0])


def test_only_workers_ask_for_shares(run):
    endpoint, members = run
    GpuShares(members[0])
    endpoint.meet("worker-0", members[0].endpoint.address)
    for message in (Message("share", {"name": "x", "rank": 0}), Message("shares-held", {"rank": 0})):
        with refused("not-permitted controller"):
            endpoint.channel("worker-0", "test").call(message)
    with refused("malformed-message rank"):
        members[1].endpoint.channel("worker-0", "test").call(Message("share", {"name": "x", "rank": "0"}))
