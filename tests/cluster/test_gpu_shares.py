"""Shares of features that workers hand each other over their own connections: here in one process, on the host."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from wired import template_for, wired

from host_shares import PAGE, shared_on_host
from penstock.cluster.rendezvous import Rendezvous
from penstock.cluster.worker.device_placement import _decided_together, check_for_gpus
from penstock.cluster.worker.gpu_shares import GpuShares
from penstock.errors import PenstockError
from penstock.plan import Residence
from penstock.store.device.shards import current_gpu_group, reason_against_sharing, shared_by_gpus, to_shares
from penstock.train.device.decision import PlacementDecision
from penstock.train.job import make_job
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


def test_an_offer_that_cannot_be_fetched(run, monkeypatch):
    """As where the system does not pass descriptors: found out by the trial, and nobody waits for ever."""

    def work(member):
        shares = GpuShares(member)
        return reason_against_sharing(HOST, shares.group(), shares.agree)

    def fetch(offer):
        raise PenstockError("What is offered cannot be fetched (not permitted).", code="not-available")

    monkeypatch.setattr("penstock.cluster.worker.gpu_shares.fetch_descriptor", fetch)
    assert set(at_once(run[1], work)) == {"GPU 0: What is offered cannot be fetched (not permitted)"}


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


# What workers decide together.


def deciding(run, features, fits, reason="", topology="device"):
    """What each of three workers decides: `fits` says of each where the features would lie alone, and shared; the last
    one has its topology in a place.
    """
    _, members = run
    session = SimpleNamespace(
        job=make_job({"graph": "g", "placement": {"features": features}}), inputs=SimpleNamespace(device=HOST)
    )
    uncut = SimpleNamespace(is_uncut=True)

    def decide(rank):
        group = current_gpu_group()
        assert group is None or not group.all_fit
        shared = group is not None and fits[rank][1]
        place = "device" if shared or (group is None and fits[rank][0]) else "pinned"
        return PlacementDecision(
            Residence(topology if rank == 2 else "device", place, 0, 0, 0, ["Why."], shared=shared),
            *(None, None, True, False, ["Why."]),
        )

    def work(member):
        rank = member.setup.task.rank
        parts = SimpleNamespace(member=member, partition=uncut)
        return _decided_together(session, parts, lambda: decide(rank))

    with patch("penstock.cluster.worker.device_placement.reason_against_sharing", lambda *_: reason):
        return at_once(members, work)


@pytest.mark.parametrize("features", ["auto", "sharded"])
def test_features_are_shared_if_that_is_asked_or_needed(run, features):
    """One worker's GPU has room for all of them."""
    for decision, group in deciding(run, features, [(True, True), (False, True), (False, True)]):
        assert decision.residence.shared and group.count == 3 and current_gpu_group() is None


def test_features_that_fit_every_gpu_are_not_shared(run):
    for decision, group in deciding(run, "auto", [(True, True)] * 3):
        assert not decision.residence.shared and decision.residence.features == "device" and group is None


@pytest.mark.parametrize("last, topology", [((False, False), "device"), ((False, True), "host")])
def test_a_gpu_without_room_for_its_share(run, last, topology):
    """Each worker then does what it would do alone, and says why; so too if one leaves the graph with the stores."""
    found = deciding(run, "auto", [(True, True), (False, True), last], topology=topology)
    assert [decision.residence.features for decision, _ in found] == ["device", "pinned", "pinned"]
    for decision, group in found:
        assert group is None and not decision.residence.shared
        assert decision.why[-1] == "The features are not sharded over the GPUs: GPU 2 has no room for its share."


def test_gpus_that_cannot_read_each_other(run):
    reason = "GPU 1: cuMemMap answers CUDA_ERROR_NOT_SUPPORTED"
    for decision, group in deciding(run, "auto", [(False, True)] * 3, reason):
        assert group is None and decision.why[-1].endswith(f"GPUs: {reason}.")
    with refused("not-available sharded auto CUDA_ERROR_NOT_SUPPORTED"):
        deciding(run, "sharded", [(False, True)] * 3, reason)


@pytest.mark.parametrize("features", ["device", "pinned"])
def test_nothing_is_agreed_on_where_the_place_is_given(run, features):
    """Nor does a worker wait for the others."""
    _, members = run
    session = SimpleNamespace(job=make_job({"graph": "g", "placement": {"features": features}}))
    parts = SimpleNamespace(member=members[0], partition=SimpleNamespace(is_uncut=True))
    assert _decided_together(session, parts, lambda: features) == (features, None)


def test_shares_are_of_graphs_that_are_not_cut():
    asked = make_job({"graph": "g", "placement": {"features": "sharded"}})
    check_for_gpus(asked, False, False, far=False, cut=False)
    with refused("unsupported-combination gpus cut"):
        check_for_gpus(asked, False, False, far=False, cut=True)
