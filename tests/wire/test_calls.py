"""Calls between posts of one process: answers, parts, errors, and the memory that travels."""

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from meetings import Meeting, echo, until

from penstock.errors import PenstockError
from penstock.wire.channel import RemoteError, own_meter
from penstock.wire.coflows import current_batch, within_batch
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from refusals import refused


def test_a_call_is_answered(meeting: Meeting, security: str) -> None:
    a, b = meeting("a", "b", security=security)
    b.serve("echo", echo)
    sent = (np.arange(100_000, dtype=np.float32), np.array(3, np.int8), np.empty((0, 4)))
    answer = a.channel("b").call(Message("echo", {"x": [1, {"y": b"z"}]}, sent))
    assert (answer.kind, answer.body) == ("back", {"x": [1, {"y": b"z"}], "sender": "a"})
    for one, other in zip(sent, answer.arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (a.refused, b.refused, a.malformed, b.malformed) == (0, 0, 0, 0)


def test_both_ways_and_to_oneself(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    for endpoint in (a, b):
        endpoint.serve("echo", echo)
    assert a.channel("b").call(Message("echo")).body["sender"] == "a"
    assert b.channel("a").call(Message("echo")).body["sender"] == "b"
    assert a.channel("a").call(Message("echo")).body["sender"] == "a"


def test_a_handler_at_once_needs_no_thread_of_its_own(meeting: Meeting, security: str) -> None:
    a, b = meeting("a", "b", security=security)
    ran = []

    def put_away(message: Message, sender: str) -> Message:
        ran.append((message.body["n"], message.arrays[0].sum(), threading.current_thread().name))
        if message.body["n"] == 1:
            raise PenstockError("There is no room for it.", code="invalid-value")
        return Message("heard", {"n": message.body["n"]})

    b.serve("rows", put_away, at_once=True)
    rows = np.ones(200_000, np.float32)
    calls = [a.channel("b").start(Message("rows", {"n": n}, (rows,))) for n in range(3)]
    assert [calls[n].result().body["n"] for n in (0, 2)] == [0, 2]
    with pytest.raises(RemoteError, match="no room"):
        calls[1].result()
    assert ran == [(n, 200_000, "wire-b") for n in range(3)]


def test_many_threads_on_one_channel(meeting: Meeting) -> None:
    a, b = meeting("a", "b", handler_threads=3, security="token")
    b.serve("echo", echo)
    channel, wrong = a.channel("b"), []

    def ask(number: int) -> None:
        pending = [channel.start(Message("echo", {"n": (number, n)})) for n in range(40)]
        wrong.extend(n for n, each in enumerate(pending) if each.result().body["n"] != [number, n])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    (count,) = a.flows()
    assert (count.sent_messages, count.received_messages) == (160, 160)


def test_a_channel_may_be_faster_than_its_link(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked before the wire's thread has heard of the channel waits for it, and nothing breaks."""
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    add, late = a._exchange.add, []
    monkeypatch.setattr(a._exchange, "add", late.append)
    pending = a.channel("b").start(Message("echo"))
    until(lambda: a.channel("b").flow.blocked and len(late) == 1)
    a._exchange.loop.soon(lambda: add(late[0]))
    assert pending.result().kind == "back"


def test_requests_beyond_what_can_be_held_wait_outside(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """While too many bytes of requests wait for a thread, no more are read; all are answered in the end."""
    monkeypatch.setattr("penstock.wire.request_server._INBOX_BYTES", 100_000)
    a, b = meeting("a", "b", handler_threads=1)
    go, begun = threading.Event(), threading.Semaphore(0)

    def slow(message: Message, sender: str) -> Message:
        begun.release()
        assert go.wait(20)
        return Message("done", message.body)

    b.serve("slow", slow)
    pending = [a.channel("b").start(Message("slow", {"n": n}, (np.zeros(10_000),))) for n in range(30)]
    assert begun.acquire(timeout=20)
    until(b._serving.full)
    until(lambda: not b._exchange._hears)
    go.set()
    assert [each.result().body["n"] for each in pending] == list(range(30))


def test_an_answer_may_be_asked_for_twice(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    pending = a.channel("b").start(Message("echo", {"n": 1}))
    assert pending.result() is pending.result()


@pytest.mark.parametrize("parts", [0, 1, 2, 50])
def test_parts_arrive_in_order(meeting: Meeting, security: str, parts: int) -> None:
    a, b = meeting("a", "b", security=security, window_bytes=1 << 16)

    def count(message: Message, sender: str) -> Iterator[Message]:
        for number in range(message.body["parts"]):
            yield Message("part", {"number": number}, (np.full(5000, number),))

    b.serve("count", count)
    got = list(a.channel("b").start(Message("count", {"parts": parts})).parts())
    assert [part.body["number"] for part in got] == list(range(parts))
    assert all((part.arrays[0] == number).all() for number, part in enumerate(got))


def test_parts_are_not_an_answer(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    b.serve("parts", lambda message, sender: [Message("one"), Message("two")])
    with refused("malformed-message"):
        a.channel("b").call(Message("parts"))


def test_an_error_of_ours_travels_as_its_sentence(meeting: Meeting) -> None:
    a, b = meeting("a", "b")

    def refuse(message: Message, sender: str) -> Message:
        raise PenstockError("There is no field 'y': use x.", code="field-missing")

    b.serve("pull", refuse)
    with refused("field-missing y", RemoteError):
        a.channel("b").call(Message("pull"))


def test_any_other_error_is_named_and_logged(meeting: Meeting, caplog: pytest.LogCaptureFixture) -> None:
    a, b = meeting("a", "b")

    def parts(message: Message, sender: str) -> Iterator[Message]:
        yield Message("part")
        raise KeyError("gone")

    b.serve("parts", parts)
    pending = a.channel("b").start(Message("parts")).parts()
    assert next(pending).kind == "part"
    with refused("unexpected-failure parts gone", RemoteError) as raised:
        next(pending)
    assert raised.value.type == "KeyError"
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("made", [None, 3, [3], Message("m", {"x": object()}), [Message("m", {"x": object()})]])
def test_what_is_no_answer_is_an_error(meeting: Meeting, made: object, caplog: pytest.LogCaptureFixture) -> None:
    a, b = meeting("a", "b")
    b.serve("ask", lambda message, sender: made)  # type: ignore[arg-type, return-value]
    b.serve("echo", echo)
    with pytest.raises(RemoteError):
        list(a.channel("b").start(Message("ask")).parts())
    assert a.channel("b").call(Message("echo")).kind == "back"


def test_unknown_kinds_and_peers(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    with refused("unknown-name ecko echo", RemoteError):
        a.channel("b").call(Message("ecko"))
    with refused("unknown-name c"):
        a.channel("c")
    with refused("invalid-value tcp://HOST:PORT"):
        a.meet("b", "nowhere")


def test_a_channel_is_one_connection_of_a_name(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    assert a.channel("b") is a.channel("b")
    urgent = a.channel("b", "urgent", -1)
    assert urgent is a.channel("b", "urgent", -1)
    with refused("duplicate -1 0"):
        a.channel("b", "urgent")
    urgent.call(Message("echo", arrays=(np.zeros(1000),)))
    a.channel("b").call(Message("echo"))
    for endpoint in (a, b):
        by_name = {count.name: count for count in endpoint.flows()}
        assert by_name.keys() == {"a>b", "a>b/urgent"}
        assert by_name["a>b/urgent"].priority == -1
    there, here = ({count.name: count for count in endpoint.flows()}["a>b/urgent"] for endpoint in (a, b))
    assert 8000 < there.sent_bytes == here.received_bytes < 8200
    assert 8000 < there.received_bytes == here.sent_bytes < 8200


def test_the_memory_itself_is_sent(meeting: Meeting) -> None:
    """Nothing copies a part before it leaves: while the way is blocked, a change of its memory is still sent."""
    a, b = meeting("a", "b", window_bytes=1 << 16)
    rows = np.zeros(1 << 14)

    def parts(message: Message, sender: str) -> Iterator[Message]:
        yield Message("rows", arrays=(rows,))

    b.serve("parts", parts)
    flow = b._egress.flow("a>b", 0, serving=True)
    flow.blocked = True
    pending = a.channel("b").start(Message("parts"))
    until(lambda: len(flow.queue) > 0)
    rows[:] = 7
    b._egress.unblock(flow)
    b._exchange.loop.soon()
    (got,) = pending.parts()
    assert (got.arrays[0] == 7).all()
    assert not got.arrays[0].flags.owndata


def test_done_tells_when_memory_is_free(meeting: Meeting, security: str) -> None:
    """A handler that has one buffer fills it again only after `done`: every part arrives as it was."""
    a, b = meeting("a", "b", security=security, window_bytes=1 << 20)
    buffer, free = np.empty(1 << 16, np.int64), threading.Semaphore()

    def parts(message: Message, sender: str) -> Iterator[Message]:
        for number in range(50):
            assert free.acquire(timeout=20)
            buffer[:] = number
            yield Message("part", arrays=(buffer,), done=free.release)

    b.serve("parts", parts)
    got = list(a.channel("b").start(Message("parts")).parts())
    assert [(int(part.arrays[0].min()), int(part.arrays[0].max())) for part in got] == [(n, n) for n in range(50)]
    assert free.acquire(timeout=20)


@pytest.mark.parametrize("length", [0, 10, 100_000])
def test_done_of_a_request(meeting: Meeting, length: int) -> None:
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    told = threading.Semaphore(0)
    a.channel("b").call(Message("echo", arrays=(np.zeros(length),), done=told.release))
    assert told.acquire(timeout=20)
    assert not told.acquire(blocking=False)


def test_parts_are_made_no_faster_than_they_leave(meeting: Meeting) -> None:
    """While nothing may leave, a handler makes eight parts and no more; other requests are answered meanwhile."""
    a, b = meeting("a", "b", handler_threads=1)
    made = []

    def parts(message: Message, sender: str) -> Iterator[Message]:
        for number in range(20):
            made.append(number)
            yield Message("part", {"number": number}, (np.zeros(100_000),))

    b.serve("parts", parts)
    b.serve("echo", echo)
    flow = b._egress.flow("a>b/slow", 0, serving=True)
    flow.blocked = True
    pending = a.channel("b", "slow").start(Message("parts"))
    while len(flow.queue) < 8:
        a.channel("b").call(Message("echo"))
    for _ in range(5):
        # The one thread is free, and has nothing to do for the slow flow.
        assert a.channel("b").call(Message("echo")).kind == "back"
    assert made == list(range(8))
    b._egress.unblock(flow)
    b._exchange.loop.soon()
    assert [part.body["number"] for part in pending.parts()] == list(range(20))


def test_a_slow_handler_is_asked_once(meeting: Meeting) -> None:
    """A call is repeated when nothing was heard for a while; over the same connection that starts nothing anew."""
    a, b = meeting("a", "b")
    begun, go = [], threading.Event()

    def slow(message: Message, sender: str) -> Message:
        begun.append(sender)
        assert go.wait(20)
        return Message("at last")

    b.serve("slow", slow)
    pending = a.channel("b").start(Message("slow"), timeout=1.0)
    until(lambda: sum(count.received_messages for count in b.flows()) >= 2)
    go.set()
    assert pending.result().kind == "at last"
    assert begun == ["a"]


def test_marks_are_set_at_both_ends(meeting: Meeting) -> None:
    a, b = meeting("a", "b", dscp=46)
    b.serve("echo", echo)
    a.channel("b").call(Message("echo"))
    group = a._links["b", ""].group
    assert group is not None
    sockets = [group.first.socket, *(each.first.socket for each in b._exchange.listeners[0].groups.values())]
    assert [each.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) for each in sockets] == [46 << 2] * 2


def test_listens_on_its_interface_alone(meeting: Meeting) -> None:
    (a,) = meeting("a")
    assert a.address.startswith("tcp://127.0.0.1:")
    with refused("invalid-value 203.0.113.1"):
        Endpoint(a._credentials, "203.0.113.1")


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_over_ipv6(meeting: Meeting) -> None:
    (a,) = meeting("a")
    with Endpoint(a._credentials, "::1") as endpoint:
        endpoint.serve("echo", echo)
        a.meet("a", endpoint.address)
        assert a.channel("a").call(Message("echo")).kind == "back"


def test_a_turn_goes_with_a_call_and_with_what_its_handler_asks(meeting: Meeting) -> None:
    a, b, c = meeting("a", "b", "c")
    seen: dict[str, int] = {}

    def note(message: Message, sender: str) -> Message:
        seen["c"] = current_batch()
        return Message("noted")

    def pass_on(message: Message, sender: str) -> Message:
        seen["b"] = current_batch()
        return b.channel("c").call(Message("note"))

    c.serve("note", note)
    b.serve("pass on", pass_on)
    with within_batch(7):
        a.channel("b").call(Message("pass on"))
    assert seen == {"b": 7, "c": 7}
    a.channel("b").call(Message("pass on"))
    assert seen == {"b": 0, "c": 0}


def test_a_meter_counts_what_its_own_thread_asked_for(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    own_meter().take()
    for flow, count in (("", 10), ("rows", 1000)):
        a.channel("b", flow).call(Message("echo", arrays=(np.zeros(count, np.uint8),)))
    other = threading.Thread(target=lambda: a.channel("b").call(Message("echo", arrays=(np.zeros(5000, np.uint8),))))
    other.start()
    other.join()
    found = own_meter().take()
    assert set(found) == {("b", ""), ("b", "rows")}
    assert 10 < found["b", ""] < 200 < 1000 < found["b", "rows"] < 1200
    assert own_meter().take() == {}
    assert 0 < b.served()["a"] < 10
