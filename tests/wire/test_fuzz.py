"""Whatever a peer with a valid key sends, nothing but Malformed comes of it, and the wire goes on."""

import socket
import struct
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from meetings import Cable, Meeting, echo, until
from raw_peer import RawPeer

from penstock.errors import PenstockError
from penstock.wire.channel import RemoteError
from penstock.wire.message import LIMITS, SIGNS, VERSION, Joining, Limits, Malformed, Message, Received, decode, encode
from penstock.wire.transport.frames import LENGTH, Inbox, pack_head, read_head
from refusals import refused

HUGE = [1 << 29, 1 << 29, 1 << 29]
sizes = st.integers(0, 5) | st.sampled_from(
    [1 << 29, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1]
)
anything = st.recursive(
    st.none() | st.booleans() | sizes | st.floats() | st.text(max_size=5) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
codes = st.sampled_from(["b1", "i1", "i8", "u2", "f2", "f4", "f8", "O", "S9", "V8", "M8", ""]) | anything
specs = st.lists(
    st.tuples(codes, st.lists(sizes | anything, max_size=9)).map(lambda pair: [pair[0], *pair[1]]), max_size=4
)
bodies = st.lists(st.binary(max_size=40) | st.integers(0, 64).map(bytes), max_size=5)
headers = st.builds(
    lambda *fields: list(fields),
    st.just(VERSION) | anything,
    st.sampled_from(SIGNS) | anything,
    sizes,
    sizes,
    st.text(max_size=3) | anything,
    st.integers(-5, 5) | anything,
    st.just(["", "", 0]) | anything,
    st.text(max_size=3) | anything,
    st.dictionaries(st.text(max_size=3), anything, max_size=2) | anything,
    specs | anything,
)


def packed(header: object) -> bytes:
    return bytes(msgpack.packb(header, use_bin_type=True))


def shaped(*shape: int, code: str = "f8") -> list[object]:
    return [VERSION, "ask", 1, 0, "", 0, ["", "", 0], "echo", {}, [[code, *shape]]]


@settings(max_examples=2 * settings.default.max_examples)
@given(headers, bodies)
@example(shaped(*HUGE, 0), [b""])
@example(shaped(0, *HUGE), [b""])
@example(shaped(*HUGE), [b""])
@example(shaped(1 << 32, 1 << 32), [b""])
@example(shaped(*[1 << 62] * 7, 0), [b""])
def test_headers_of_any_kind_are_a_message_or_malformed(header: object, rest: list[bytes]) -> None:
    try:
        received = decode([packed(header), *rest])
    except Malformed:
        return
    assert sum(array.nbytes for array in received.message.arrays) == sum(map(len, rest))


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_bytes_of_any_kind_are_a_message_or_malformed(frames: list[bytes]) -> None:
    with pytest.raises(Malformed):
        decode(frames)


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.binary(max_size=200)
    | st.lists(st.integers(0, (1 << 64) - 1), max_size=9).map(lambda x: struct.pack(f"<H{len(x)}Q", len(x), *x))
)
@example(struct.pack("<HQ", 1, 1 << 63))
@example(struct.pack("<H", 65535))
def test_heads_of_any_kind_are_within_the_limits_or_malformed(data: bytes) -> None:
    try:
        head = read_head(data, LIMITS)
    except Malformed:
        return
    assert len(head.sizes) <= LIMITS.arrays + 1
    assert all(size <= LIMITS.array_bytes for size in head.sizes)


@given(st.lists(st.binary(max_size=60_000).map(bytearray).map(bytes), max_size=5))
def test_what_a_head_says_is_what_was_packed(frames: list[bytes]) -> None:
    data, large = pack_head(frames)
    head = read_head(data, LIMITS)
    assert head.sizes == [len(frame) for frame in frames]
    assert [frames[number] for number in head.large] == [frame.tobytes() for frame in large]
    assert all(frames[number] == small for number, small in head.small.items())


@given(st.lists(st.binary(max_size=300) | sizes.filter(lambda n: 0 <= n < 1 << 32).map(LENGTH.pack), max_size=8))
@example([LENGTH.pack((1 << 32) - 1)])
@example([LENGTH.pack(1 << 30), bytes(4000)])
def test_streams_of_any_kind_end_a_connection_at_most(pieces: list[bytes]) -> None:
    """In the clear, where nothing protects what is read."""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        inbox = Inbox(Limits(array_bytes=1 << 16), encrypted=False)
        for piece in pieces:
            far.sendall(piece)
        try:
            inbox.read(near)
            while inbox.take() is not None:
                pass
        except Malformed:
            return


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "of": st.text(max_size=3) | anything,
            "slices": sizes | anything,
            "sizes": st.lists(sizes, max_size=4) | anything,
        },
    ),
    st.lists(st.integers(0, 20), max_size=3),
    st.integers(0, 3),
)
def test_slices_of_any_kind_are_joined_or_malformed(body: dict[str, Any], lengths: list[int], number: int) -> None:
    within_kind = Joining()
    arrays = tuple(np.zeros(length, np.uint8) for length in lengths)
    received = decode([bytes(frame) for frame in encode(Message("slice", {}, arrays), 1, "slice", number)])
    message = Message("slice", body, received.message.arrays)
    for _ in range(2):
        try:
            whole = within_kind.take(received._replace(message=message))
        except Malformed:
            continue
        assert whole is None or isinstance(whole, Received)


NASTY: list[list[bytes]] = [
    [packed(shaped(*HUGE, 0)), b""],
    [packed(shaped(0, *HUGE)), b""],
    [packed(shaped(*HUGE)), bytes(64)],
    [packed(shaped(1 << 63)), b""],
    [packed(shaped(-1)), b""],
    [packed(shaped(4, code="O")), bytes(32)],
    [packed([VERSION] * 10)],
    [packed({"a": 1})],
    [b"\x91" * 2000],
    [b"\xdd\xff\xff\xff\xff"],
    [b"\xc9\xff\xff\xff\xff\x01"],
    [b"x"] * 65,
]


def test_a_peer_that_sends_them_ends_no_thread(meeting: Meeting, security: str) -> None:
    a, b, c = meeting("a", "b", "c", security=security)
    b.serve("echo", echo)
    loop = b._exchange.loop._thread
    with RawPeer.call(c._credentials, "b", b.address, security) as raw:
        for number, frames in enumerate(NASTY, 1):
            raw.send(frames)
            until(lambda number=number: b.malformed == number)  # type: ignore[misc]
    assert a.channel("b").call(Message("echo", arrays=(np.zeros((0, 7)),))).arrays[0].shape == (0, 7)
    assert loop.is_alive()


@given(st.lists(headers.map(packed) | st.binary(max_size=50), min_size=1, max_size=5), bodies)
def test_a_live_post_goes_on(meeting: Meeting, shared: dict[str, Any], heads: list[bytes], rest: list[bytes]) -> None:
    if not shared:
        shared["posts"] = meeting("a", "b", "c")
        shared["posts"][1].serve("echo", echo)
    a, b, c = shared["posts"]
    with RawPeer.call(c._credentials, "b", b.address) as raw:
        for head in heads:
            raw.send([head, *rest])
    assert a.channel("b").call(Message("echo")).kind == "back"


@pytest.fixture
def shared() -> dict[str, Any]:
    """Between the examples of one test."""
    return {}


def test_too_many_frames_end_the_connection_and_nothing_else(
    meeting: Meeting, security: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = meeting("a", "b", "c", security=security)
    b.serve("echo", echo)
    with RawPeer.call(c._credentials, "b", b.address, security) as raw:
        raw.send([b"x"] * 66)
        with pytest.raises(AssertionError, match="connection was ended"):
            raw.receive()
    assert "A message from c is malformed (its 66 frames are over 65" in caplog.text
    assert a.channel("b").call(Message("echo")).kind == "back"


def test_an_altered_record_ends_the_connection(meeting: Meeting, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes that nobody encrypted, behind TLS's back."""
    a, b, c = meeting("a", "b", "c")
    b.serve("echo", echo)
    with RawPeer.call(c._credentials, "b", b.address) as raw:
        socket.socket.send(raw.socket, b"\x17\x03\x03\x00\x28" + bytes(40))
        with pytest.raises((AssertionError, OSError)):
            raw.receive()
    until(lambda: "does not open" in caplog.text)
    assert b._serving._under_way == set()
    assert a.channel("b").call(Message("echo")).kind == "back"


def test_a_repeated_record_ends_the_connection(meeting: Meeting) -> None:
    """What was sent once, and recorded on its way, does not count again."""
    _, b, c = meeting("a", "b", "c")
    asked: list[str] = []
    b.serve("once", lambda message, sender: asked.append(sender) or Message("done"))  # type: ignore[func-returns-value]
    with Cable(b) as cable, RawPeer.call(c._credentials, "b", cable.address) as raw:
        cable.recorded.clear()
        raw.send(encode(Message("once"), 1, "ask"))
        raw.receive()
        cable.send_again()
        with pytest.raises((AssertionError, OSError)):
            raw.receive()
    assert asked == ["c"]


def test_an_error_that_is_no_text_is_told(meeting: Meeting) -> None:
    a, b = meeting("a", "b")

    def broken(message: Message, sender: str) -> Message:
        raise PenstockError("no file \udcff here", code="unexpected-failure")

    b.serve("broken", broken)
    for _ in range(2):
        with refused("unexpected-failure", RemoteError):
            a.channel("b").call(Message("broken"))
    until(lambda: b._serving._under_way == set())
