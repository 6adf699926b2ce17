"""Classes on a real interface, with real packets: what is counted where, not how long it took."""

import socket
import threading

import numpy as np
import pytest

from penstock.cluster.shaping import (
    FlowGroup,
    FlowGroups,
    carry_out,
    classes_of,
    clear_commands,
    look,
    refuse_foreign,
    set_commands,
)
from penstock.hardware.cluster import Machine
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.options import WireOptions
from penstock.wire.transport.tls import make_credentials
from refusals import refused

MARKED, CAPPED = 10, 40
GROUPS = FlowGroups(
    groups=[
        FlowGroup(name="wire", dscp=MARKED, share=0.5, priority=0),
        FlowGroup(name="capped", dscp=CAPPED, share=0.1, ceiling=0.1),
        FlowGroup(name="gradients", share=0.2),
    ]
)
DEVICE, MEGABYTE = "eth0", 1_000_000


@pytest.fixture
def shaped(pair):
    """The first host's interface with the classes; the second is as it was."""
    near, far = pair
    classes = classes_of(GROUPS, Machine(name="near", nic_gbps=0.1), (far.address,))
    with near.entered():
        carry_out(DEVICE, [*clear_commands(DEVICE), *set_commands(classes, DEVICE)])
    return near, far


def counted(host):
    """What left the host so far, by group."""
    with host.entered():
        train_state = look(DEVICE)
    assert train_state.ours
    names = [group.name for group in GROUPS.groups] + ["rest"]
    return dict(zip(names, train_state.classes[1:], strict=True))


def send(near, far, size, dscp=None):
    """So many bytes over a connection of their own; back when all have arrived."""
    with far.entered():
        server = socket.create_server((far.address, 0))
    arrived = []

    def take():
        connection, _ = server.accept()
        with connection:
            while got := connection.recv(1 << 16):
                arrived.append(len(got))

    taking = threading.Thread(target=take)
    taking.start()
    with near.entered():
        caller = socket.socket()
    with server, caller:
        if dscp is not None:
            caller.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        caller.connect(server.getsockname())
        caller.sendall(bytes(size))
        caller.shutdown(socket.SHUT_WR)
        taking.join()
    assert sum(arrived) == size


def test_packets_are_counted_in_their_groups_class(shaped):
    near, far = shaped
    send(near, far, MEGABYTE, MARKED)
    send(near, far, 2 * MEGABYTE)
    found = counted(near)
    # Headers are some percent; nothing is sent twice unless it was dropped.
    assert MEGABYTE < found["wire"].bytes < 1.2 * MEGABYTE
    assert 2 * MEGABYTE < found["gradients"].bytes < 2.4 * MEGABYTE
    # Neighbour discovery is no one's.
    assert found["rest"].bytes < 10_000
    assert found["capped"].bytes == 0


def test_a_ceiling_makes_packets_wait(shaped):
    near, far = shaped
    send(near, far, MEGABYTE, CAPPED)
    found = counted(near)
    assert found["capped"].bytes > MEGABYTE
    assert found["capped"].overlimits > 0
    assert found["capped"].rate == found["capped"].ceiling == "10Mbit"


def test_the_wires_mark_reaches_the_kernel(shaped):
    near, far = shaped
    keys, options = make_credentials(["asker", "server"]), WireOptions(security="token", dscp=MARKED)
    with near.entered():
        server = Endpoint(keys["server"], near.address, options)
    with far.entered():
        asker = Endpoint(keys["asker"], far.address, options)
    with server, asker:
        server.serve("rows", lambda message, sender: Message("rows", arrays=(np.zeros(MEGABYTE, np.uint8),)))
        asker.meet("server", server.address)
        answer = asker.channel("server", "features").call(Message("rows"))
        assert answer.arrays[0].nbytes == MEGABYTE
    found = counted(near)
    # Answers are the server's to mark: it asked nothing.
    assert found["wire"].bytes > MEGABYTE
    assert found["gradients"].bytes < 10_000


def test_both_ways_packets_are_of_their_flows_class(pair):
    """Answers too: a server has a socket for every class, at which the flows of that class ask."""
    marks = [46, 34, 10]
    groups = FlowGroups(groups=[FlowGroup(name=f"c{mark}", dscp=mark) for mark in marks], strict=True)
    for host in pair:
        with host.entered():
            classes = classes_of(groups, Machine(name="m", nic_gbps=0.1), ())
            carry_out(DEVICE, [*clear_commands(DEVICE), *set_commands(classes, DEVICE)])
    near, far = pair
    keys, options = make_credentials(["asker", "server"]), WireOptions(security="token", dscp_classes=marks)
    with near.entered():
        server = Endpoint(keys["server"], near.address, options)
    with far.entered():
        asker = Endpoint(keys["asker"], far.address, options)
    sizes = {0: 100_000, 1: 200_000, 2: 400_000}
    with server, asker:
        server.serve("rows", lambda message, sender: Message("rows", arrays=message.arrays))
        asker.meet("server", server.address)
        for priority, size in sizes.items():
            asker.channel("server", str(priority), priority).call(Message("rows", arrays=(np.zeros(size, np.uint8),)))
    for host in pair:
        with host.entered():
            found = look(DEVICE).classes[1:]
        for each, size in zip(found, sizes.values(), strict=False):
            assert size < each.bytes < 1.2 * size + 10_000
        assert found[-1].bytes < 10_000


def test_what_fails_half_way_leaves_nothing(pair):
    near, _ = pair
    classes = classes_of(GROUPS, Machine(name="near", nic_gbps=0.1), ("10.77.0.2",))
    commands = [
        *clear_commands(DEVICE),
        *set_commands(classes, DEVICE),
        ["tc", "class", "add", "dev", DEVICE, "nonsense"],
    ]
    with near.entered():
        with refused("external-failure nonsense"):
            carry_out(DEVICE, commands)
        assert not look(DEVICE).made


def test_a_strangers_queue_is_refused(pair):
    near, _ = pair
    with near.entered():
        train_state = look(DEVICE)
        assert train_state.foreign and not train_state.ours
        with refused("in-use"):
            refuse_foreign(train_state, DEVICE)
