"""What is cut comes together again as it was, whatever arrives twice, mixed or damaged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meetings import Cable, Meeting, until

from penstock.graph.arrays import Array
from penstock.wire.coflows import Coflow
from penstock.wire.message import (
    SLICE_BYTES,
    Joining,
    Limits,
    Malformed,
    Message,
    Received,
    cut,
    decode,
    encode,
    frame_bytes,
)
from refusals import refused

COFLOW = Coflow("batch", "a", 3)


def frames_of(message: Message, call: int = 1, sign: str = "answer") -> list[bytes | Array]:
    return encode(message, call, sign, 2, "", 1, COFLOW)


def sent(pieces: list[Message], call: int = 1) -> list[Received]:
    """As the other side reads them."""
    return [decode([bytes(f) for f in encode(piece, call, "slice", n)]) for n, piece in enumerate(pieces)]


lengths = st.lists(st.integers(0, 400), max_size=6)


@given(lengths, st.integers(1, 300), st.randoms(use_true_random=False))
def test_slices_come_together_in_any_order(sizes: list[int], size: int, chance: object) -> None:
    message = Message("m", {"x": 1}, tuple(np.arange(each, dtype=np.int32) for each in sizes))
    frames = frames_of(message)
    pieces = cut(frames, size)
    assert all(frame_bytes(piece.arrays) <= size for piece in pieces)
    arrived = sent(pieces)
    chance.shuffle(arrived)  # type: ignore[attr-defined]
    within_kind = Joining()
    found = [within_kind.take(each) for each in arrived]
    whole = found.pop()
    assert found == [None] * len(found)
    assert whole is not None
    assert whole[1:] == (1, "answer", 2, "", 1, COFLOW)
    assert (whole.message.kind, whole.message.body) == ("m", {"x": 1})
    for given_array, got in zip(message.arrays, whole.message.arrays, strict=True):
        np.testing.assert_array_equal(given_array, got)
        assert got.flags.aligned


def test_no_slice_has_too_many_arrays() -> None:
    pieces = cut(frames_of(Message("m", arrays=(np.zeros(1),) * 64)), 1 << 20, Limits(arrays=10))
    assert max(len(piece.arrays) for piece in pieces) == 10
    within_kind = Joining()
    *_, whole = [within_kind.take(each) for each in sent(pieces)]
    assert whole is not None and len(whole.message.arrays) == 64


def test_slices_of_two_answers_are_not_mixed() -> None:
    """A call that was repeated may be answered twice, and differently."""
    one, two = (sent(cut(frames_of(Message("m", arrays=(np.full(300, n),))), 500)) for n in (1, 2))
    within_kind = Joining()
    assert all(within_kind.take(each) is None for each in [*one[:-1], *two[:-1], one[0]])
    whole = within_kind.take(two[-1])
    assert whole is not None and (whole.message.arrays[0] == 2).all()


@pytest.mark.parametrize(
    ("body", "arrays"),
    [
        ({}, ()),
        ({"of": 1, "slices": 1, "sizes": []}, ()),
        ({"of": "a", "slices": True, "sizes": []}, ()),
        ({"of": "a", "slices": 1, "sizes": [5]}, (np.zeros(4, np.uint8),)),
        ({"of": "a", "slices": 1, "sizes": [-4, 8]}, (np.zeros(4, np.uint8),)),
        ({"of": "a", "slices": 1, "sizes": [8]}, (np.zeros(1),)),
        ({"of": "a", "slices": 1, "sizes": [4]}, (np.zeros(4, np.uint8),)),
        ({"of": "a", "slices": -1, "sizes": []}, ()),
        ({"of": "a", "slices": 9, "sizes": [3]}, (np.zeros(4, np.uint8),)),
        ({"of": "a", "slices": 9, "sizes": [3.0]}, ()),
    ],
)
def test_what_is_no_slice_is_refused(body: dict[str, object], arrays: tuple[Array, ...]) -> None:
    with pytest.raises(Malformed):
        Joining().take(Received(Message("slice", body, arrays), 1, "slice", 0, "", 0, COFLOW))


@pytest.mark.parametrize(("call", "sign"), [(2, "answer"), (1, "ask"), (1, "end")])
def test_slices_of_something_else_are_refused(call: int, sign: str) -> None:
    (only,) = sent(cut(frames_of(Message("m"), call, sign)))
    with refused("malformed-message", Malformed):
        Joining().take(only)


def test_large_answers_and_parts_travel_in_slices(meeting: Meeting) -> None:
    a, b = meeting("a", "b", egress="coflow", security="token")
    large, done = np.arange(SLICE_BYTES, dtype=np.int64), []
    b.serve("whole", lambda message, sender: Message("w", {"x": 1}, (large,), done=lambda: done.append(1)))
    b.serve("parts", lambda message, sender: (Message("p", {"n": n}, (large + n,)) for n in range(3)))
    answer = a.channel("b").call(Message("whole"))
    assert (answer.kind, answer.body) == ("w", {"x": 1})
    until(lambda: done == [1])
    np.testing.assert_array_equal(answer.arrays[0], large)
    for number, part in enumerate(a.channel("b").start(Message("parts")).parts()):
        assert part.body == {"n": number}
        np.testing.assert_array_equal(part.arrays[0], large + number)
    (flow,) = a.flows()
    # Four answers of 8 slices and a bit, and the end.
    assert flow.received_messages == 4 * 9 + 1


def test_what_was_left_of_lost_connections_is_not_kept() -> None:
    """A link that breaks again and again in the middle of an answer would else fill the caller's memory."""
    within_kind = Joining()
    for number in range(20):
        *some, last = sent(cut(frames_of(Message("m", arrays=(np.full(300, number),))), 500))
        assert all(within_kind.take(each) is None for each in some)
        assert sum(len(pieces.found) for pieces in within_kind._found.values()) <= 4 * len(some)
    whole = within_kind.take(last)
    assert whole is not None and (whole.message.arrays[0] == 19).all()
    within_kind.clear()
    assert not within_kind._found


def test_slices_that_do_not_agree_are_refused_and_forgotten() -> None:
    pieces = cut(frames_of(Message("m", arrays=(np.zeros(300),))), 500)
    within_kind = Joining()
    assert within_kind.take(sent(pieces)[0]) is None
    other = Message("slice", {**pieces[1].body, "slices": 2}, pieces[1].arrays)
    with refused("malformed-message", Malformed):
        within_kind.take(sent([other])[0])
    assert not within_kind._found


def test_an_answer_in_slices_survives_a_cut_link(meeting: Meeting) -> None:
    a, b = meeting("a", "b", egress="coflow", security="token")
    large, asked = np.arange(SLICE_BYTES), []

    def answer(message: Message, sender: str) -> Message:
        asked.append(sender)
        return Message("w", {"n": len(asked)}, (large + len(asked),))

    b.serve("whole", answer)
    with Cable(b) as cable:
        a.meet("b", cable.address)
        channel = a.channel("b")
        receive, names = channel.receive, []

        def cut_once(received: Received, size: int) -> None:
            """Of the first answer three slices come through, however many the system has on its way."""
            names.append(received.message.body["of"])
            if len(names) == 3:
                cable.cut()
            if len(names) <= 3 or names[-1] != names[0]:
                receive(received, size)

        channel.receive = cut_once  # type: ignore[method-assign]
        got = channel.call(Message("whole"))
    assert len(asked) > 1
    np.testing.assert_array_equal(got.arrays[0], large + got.body["n"])
