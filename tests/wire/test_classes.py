"""Classes of packets: a socket each at both ends, so that requests and answers bear the mark of their flow."""

import socket
from dataclasses import replace

import pytest
from meetings import Meeting, echo, until
from pydantic import ValidationError

from penstock.errors import PenstockError
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.options import WireOptions
from penstock.wire.request_server import ReceivedRequest
from penstock.wire.sockets import endpoint
from penstock.wire.transport.tls import make_credentials
from refusals import refused

MARKS = [46, 34, 10]


def test_flows_go_in_at_the_door_of_their_class(meeting: Meeting, security: str) -> None:
    a, b = meeting("a", "b", dscp_classes=MARKS, security=security, egress="coflow")
    assert b.address.count(",") == 2
    b.serve("echo", echo)
    for priority, flow in ((-1, "first"), (0, "gradients"), (1, "lists"), (2, "features"), (7, "last")):
        assert a.channel("b", flow, priority).call(Message("echo", {"f": flow})).body["f"] == flow
    assert [each.socket.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) for each in b._exchange.listeners] == [
        mark << 2 for mark in MARKS
    ]
    for listener, mark in zip(b._exchange.listeners, MARKS, strict=True):
        accepted = [each.first.socket for each in listener.groups.values()]
        assert {each.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) for each in accepted} == {mark << 2}
    asking = {flow: link.group.first.socket for (_, flow), link in a._links.items() if link.group is not None}
    marks = {flow: own.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2 for flow, own in asking.items()}
    assert marks == {"first": 46, "gradients": 46, "lists": 34, "features": 10, "last": 10}
    ports = {flow: "tcp://{}:{}".format(*own.getpeername()) for flow, own in asking.items()}
    assert ports["gradients"] == ports["first"] == endpoint(b.address, 0)
    assert (ports["lists"], ports["features"]) == (endpoint(b.address, 1), endpoint(b.address, 2))
    assert len(set(ports.values())) == 3


def test_strangers_are_refused_at_every_door(meeting: Meeting, security: str) -> None:
    _, b = meeting("a", "b", dscp_classes=MARKS, security=security)
    known = b._credentials
    stranger = replace(make_credentials(["a"])["a"], peers=known.peers, authority=known.authority)
    with Endpoint(stranger, options=b._options) as endpoint:
        endpoint.meet("b", b.address)
        channels = [endpoint.channel("b", f"f{n}", n) for n in range(len(MARKS))]
        calls = [channel.start(Message("echo")) for channel in channels]
        until(lambda: all("refuses this task" in channel.state for channel in channels))
    for call in calls:
        with refused("closed"):
            call.result()
    assert b.refused >= len(MARKS)
    assert b.flows() == []


def test_an_address_has_one_port_or_several() -> None:
    assert endpoint("tcp://10.0.0.1:1,22,333", 1) == "tcp://10.0.0.1:22"
    assert endpoint("tcp://[fd00::1]:1,22", 5) == "tcp://[fd00::1]:22"
    assert endpoint("tcp://10.0.0.1:1", 2) == "tcp://10.0.0.1:1"


@pytest.mark.parametrize("address", ["tcp://a:1,", "tcp://a:1,b", "tcp://a:1" + ",1" * 8, "tcp://a,b:1"])
def test_addresses_that_are_none(meeting: Meeting, address: str) -> None:
    a, _ = meeting("a", "b")
    with refused("invalid-value"):
        a.meet("b", address)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dscp": 1, "dscp_classes": [2]}, "give one of them"),
        ({"dscp_classes": [2, 2]}, "the same"),
        ({"dscp_classes": [64]}, "63"),
        ({"dscp_classes": list(range(9))}, "at most 8 items"),
        ({"send_buffer_bytes": 1}, "4096"),
        ({"send_buffer_bytes": 1 << 31}, "2147483647"),
        ({"heartbeat": 1e12}, "1000000"),
    ],
)
def test_options_that_cannot_be(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        WireOptions.model_validate(fields)


def test_what_the_kernel_keeps_can_be_bounded(meeting: Meeting) -> None:
    a, b = meeting("a", "b", send_buffer_bytes=65536)
    b.serve("echo", echo)
    a.channel("b").call(Message("echo"))
    group = a._links["b", ""].group
    assert group is not None
    sockets = [group.first.socket, *(each.first.socket for each in b._exchange.listeners[0].groups.values())]
    # Linux says twice what was asked for: half of it is for its own bookkeeping.
    assert {each.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) for each in sockets} <= {65536, 131072}


def test_a_post_that_cannot_be_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that was only half made must not be waited for."""
    options = WireOptions(dscp_classes=MARKS)
    monkeypatch.setattr(options, "dscp_classes", [46, 1 << 40])
    with pytest.raises((OverflowError, TypeError, PenstockError)):
        Endpoint(make_credentials(["a"])["a"], options=options)


def test_a_peer_that_comes_back_elsewhere_is_found_at_every_door(meeting: Meeting) -> None:
    a, b = meeting("a", "b", dscp_classes=MARKS, egress="coflow")
    unanswered: list[ReceivedRequest] = []
    b._serving.request = unanswered.append  # type: ignore[method-assign]
    calls = [a.channel("b", f"f{n}", n).start(Message("echo", {"f": f"f{n}"})) for n in range(len(MARKS))]
    until(lambda: len(unanswered) >= len(MARKS))
    b.close()
    with Endpoint(b._credentials, options=b._options) as again:
        again.serve("echo", echo)
        assert again.address != b.address
        a.meet("b", again.address)
        assert [call.result().body["f"] for call in calls] == ["f0", "f1", "f2"]
        connections = [link.group.first for link in a._links.values() if link.group is not None]
        found = ["tcp://{}:{}".format(*each.socket.getpeername()) for each in connections]
        assert found == [endpoint(again.address, place) for place in range(len(MARKS))]
