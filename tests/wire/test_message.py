"""Every message comes out as it went in, and nothing else comes out at all."""

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.graph.arrays import Array
from penstock.wire.coflows import Coflow
from penstock.wire.message import SIGNS, VERSION, Limits, Malformed, Message, decode, encode, frame_bytes
from refusals import refused

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
    | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
arrays = st.one_of(
    hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)) for dtype in DTYPES
)
messages = st.builds(
    Message,
    kind=st.text(max_size=20),
    body=st.dictionaries(st.text(max_size=9), values, max_size=4),
    arrays=st.lists(arrays, max_size=4).map(tuple),
)


def on_the_wire(frames: list[bytes | Array]) -> list[bytes]:
    return [frame if isinstance(frame, bytes) else frame.tobytes() for frame in frames]


coflows = st.builds(Coflow, st.text(max_size=9), st.text(max_size=9), st.integers(0, (1 << 63) - 1))


@given(
    messages, st.integers(0, (1 << 63) - 1), st.sampled_from(SIGNS), st.integers(-5, 5), st.text(max_size=9), coflows
)
def test_comes_out_as_it_went_in(
    message: Message, call: int, sign: str, priority: int, flow: str, coflow: Coflow
) -> None:
    received = decode(on_the_wire(encode(message, call, sign, 7, flow, priority, coflow)))
    assert received[1:] == (call, sign, 7, flow, priority, coflow)
    assert (received.message.kind, received.message.body) == (message.kind, message.body)
    assert len(received.message.arrays) == len(message.arrays)
    for sent, got in zip(message.arrays, received.message.arrays, strict=True):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert got.tobytes() == sent.tobytes()
        assert got.flags.aligned
        assert not got.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4), (1,) * 8])
def test_every_type_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    sent = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    (got,) = decode(on_the_wire(encode(Message("m", arrays=(sent,)), 1, "ask"))).message.arrays
    assert (got.dtype, got.shape) == (sent.dtype, shape)
    np.testing.assert_array_equal(got, sent)


def test_other_orders_travel_as_copies() -> None:
    base = np.arange(24, dtype=">i4").reshape(4, 6)
    (got,) = decode(on_the_wire(encode(Message("m", arrays=(base[::2, ::3].T,)), 1, "ask"))).message.arrays
    np.testing.assert_array_equal(got, base[::2, ::3].T)


def test_sends_and_receives_the_memory_itself() -> None:
    sent = np.arange(1000, dtype=np.int64).reshape(10, 100)
    frames = encode(Message("m", arrays=(sent,)), 1, "ask")
    assert isinstance(frames[1], np.ndarray)
    assert np.shares_memory(frames[1], sent)
    arrived = [bytes(frame) for frame in frames]
    (got,) = decode(arrived).message.arrays
    assert np.shares_memory(got, np.frombuffer(arrived[1], np.uint8))
    assert frame_bytes(frames) == len(arrived[0]) + sent.nbytes


@given(st.lists(st.binary(max_size=200), max_size=4))
@settings(max_examples=2 * settings.default.max_examples)
def test_random_bytes_are_no_message(frames: list[bytes]) -> None:
    with pytest.raises(Malformed):
        decode(frames)


@given(messages, st.data())
@settings(max_examples=2 * settings.default.max_examples)
def test_damaged_messages_are_refused_or_sound(message: Message, data: st.DataObject) -> None:
    """Bytes changed, cut, added or moved: either Malformed, or a message that would be sent like that."""
    frames = on_the_wire(encode(message, 1, "part"))
    place = data.draw(st.integers(0, len(frames) - 1))
    frame = bytearray(frames[place])
    change = data.draw(st.sampled_from(["byte", "cut", "add", "drop", "twice"]))
    if change == "byte" and frame:
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    elif change == "cut":
        frame = frame[: data.draw(st.integers(0, len(frame)))]
    elif change == "add":
        frame += data.draw(st.binary(max_size=20))
    frames[place : place + 1] = {"drop": [], "twice": [bytes(frame)] * 2}.get(change, [bytes(frame)])
    try:
        received = decode(frames)
    except Malformed:
        return
    again = encode(received.message, *received[1:])
    assert [frame_bytes([frame]) for frame in again[1:]] == [len(frame) for frame in frames[1:]]


plain_headers = st.tuples(
    st.just(VERSION) | values,
    st.sampled_from(SIGNS) | values,
    st.integers(0, 9) | values,
    st.integers(0, 9) | values,
    st.text(max_size=4) | values,
    st.integers(-3, 3) | values,
    st.tuples(st.text(max_size=4) | values, st.text(max_size=4), st.integers(-1, 3) | values) | values,
    st.text(max_size=4) | values,
    st.just({}) | values,
    st.lists(st.lists(st.sampled_from(["f4", "u1", "O", "f4,f4"]) | values, max_size=4), max_size=2) | values,
)


@given(plain_headers, st.lists(st.binary(max_size=16), max_size=2))
@settings(max_examples=2 * settings.default.max_examples)
def test_headers_of_the_wrong_types_are_refused(header: tuple[Any, ...], frames: list[bytes]) -> None:
    try:
        received = decode([msgpack.packb(list(header)), *frames])
    except Malformed:
        return
    assert received.sign in SIGNS
    assert received.coflow.turn >= 0
    assert sum(array.nbytes for array in received.message.arrays) == sum(map(len, frames))


def header(body: Any = None, specs: Any = None, coflow: Any = ("", "", 0)) -> bytes:
    fields = [VERSION, "ask", 1, 0, "", 0, coflow, "m", {} if body is None else body, [] if specs is None else specs]
    return bytes(msgpack.packb(fields))


def test_messages_of_the_version_before_are_read_where_they_are_kept() -> None:
    """Journals of runs that were begun before there were coflows."""
    old = [msgpack.packb([1, "answer", 0, 0, "", 0, "clock", {"step": 3}, [["u1", 2]]]), b"ab"]
    received = decode(old, former=True)
    assert (received.message.kind, received.message.body, received.coflow) == ("clock", {"step": 3}, Coflow())
    assert received.message.arrays[0].tobytes() == b"ab"
    with refused("malformed-message 2", Malformed):
        decode(old)
    with refused("malformed-message 2", Malformed):
        decode([msgpack.packb([0, *msgpack.unpackb(old[0])[1:]]), b"ab"], former=True)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return {"deep": value}


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([], "malformed-message"),
        ([header(specs=[["f4", 1 << 62, 4]]), b""], "malformed-message"),
        ([header(specs=[["f4", 0, 1 << 60]]), b""], "malformed-message"),
        ([header(specs=[["f4", -1]]), b"1234"], "malformed-message"),
        ([header(specs=[["f4", True]]), b"1234"], "malformed-message"),
        ([header(specs=[["f4"] + [1] * 9]), b"1234"], "malformed-message 8"),
        ([header(specs=[["O", 1]]), b"12345678"], "malformed-message"),
        ([header(specs=[["f4", 1]])], "malformed-message"),
        ([header(specs=[]), b"1234"], "malformed-message"),
        ([header(body=nested(17))], "malformed-message"),
        ([header(body=nested(900))], "malformed-message"),
        ([header(body={"t": msgpack.Timestamp(1)})], "malformed-message"),
        ([header(body={"t": msgpack.ExtType(5, b"x")})], "malformed-message"),
        ([header(body={1: 2})], "malformed-message"),
        ([header(body=[])], "malformed-message"),
        ([b"\xdd\xff\xff\xff\xff"], "malformed-message"),
        ([b"\xc1"], "malformed-message"),
        ([header() + b"\x00"], "malformed-message"),
        ([header(coflow=[])], "malformed-message"),
        ([header(coflow=["batch", "a", -1])], "malformed-message"),
        ([header(coflow=["batch", "a", True])], "malformed-message"),
        ([header(coflow=["batch", 1, 1])], "malformed-message"),
        ([header(coflow=["b" * 129, "a", 1])], "malformed-message"),
        ([msgpack.packb([1, "ask", 1, 0, "", 0, "m", {}, []])], "malformed-message 2"),
        ([msgpack.packb([3, "ask", 1, 0, "", 0, ["", "", 0], "m", {}, []])], "malformed-message 2"),
    ],
)
def test_what_is_refused_and_why(frames: list[bytes], said: str) -> None:
    with refused(said, Malformed):
        decode(frames)


def test_limits_hold_on_both_sides() -> None:
    small = Limits(header_bytes=64, arrays=1, array_bytes=8, dims=1, name_chars=4)
    cases = [
        Message("m", {"text": "x" * 64}),
        Message("m", arrays=(np.zeros(1), np.zeros(1))),
        Message("m", arrays=(np.zeros(2),)),
        Message("m", arrays=(np.zeros((1, 1)),)),
        Message("long kind"),
    ]
    for message in cases:
        frames = on_the_wire(encode(message, 1, "ask"))
        with pytest.raises(Malformed):
            decode(frames, small)
        with refused("wrong-type"):
            encode(message, 1, "ask", limits=small)


@pytest.mark.parametrize(
    "message",
    [
        Message("m", {"x": object()}),
        Message("m", {"x": 1 << 64}),
        Message("m", {"x": np.float32(1)}),
        Message("m", arrays=(np.array(["a"]),)),
        Message("m", arrays=(np.array([None]),)),
        Message("m", arrays=(np.zeros(1, complex),)),
    ],
)
def test_what_cannot_be_sent_is_said_so(message: Message) -> None:
    with refused("wrong-type"):
        encode(message, 1, "ask")
