"""Who is let in, asked as ZeroMQ asks."""

import pytest
from zmq.utils import z85

from penstock.wire import make_credentials, make_keys
from penstock.wire.gate import Gate, password
from penstock.wire.options import Security

RUN = make_credentials(["a", "b"])
CURVE = [b"1.0", b"1", b"penstock", b"127.0.0.1", b"", b"CURVE"]
PLAIN = [*CURVE[:5], b"PLAIN"]


def key(public: str) -> bytes:
    return bytes(z85.decode(public.encode()))


def test_names_are_proven_by_keys() -> None:
    gate = Gate(RUN["a"], "curve")
    assert gate.answer([*CURVE, key(RUN["b"].keys.public)])[1:5] == [b"1", b"200", b"OK", b"b"]
    assert gate.refused == 0


def test_names_are_proven_by_the_token() -> None:
    gate = Gate(RUN["a"], "token")
    proof = password(RUN["b"].token, "b", "a")
    assert gate.answer([*PLAIN, b"b", proof])[2:5] == [b"200", b"OK", b"b"]
    assert RUN["b"].token.encode() not in proof


@pytest.mark.parametrize(
    ("security", "request_"),
    [
        ("curve", [*CURVE, key(make_keys().public)]),
        ("curve", [*CURVE, b""]),
        ("curve", [*CURVE]),
        ("curve", [*PLAIN, b"b", password(RUN["b"].token, "b", "a")]),
        ("curve", [*CURVE[:5], b"NULL"]),
        ("curve", [*CURVE[:2], b"other", *CURVE[3:], key(RUN["b"].keys.public)]),
        ("curve", [b"2.0", *CURVE[1:], key(RUN["b"].keys.public)]),
        ("curve", []),
        ("curve", [b"1.0"]),
        ("token", [*PLAIN, b"b", password("another", "b", "a")]),
        ("token", [*PLAIN, b"b", password(RUN["b"].token, "a", "b")]),
        ("token", [*PLAIN, b"c", password(RUN["b"].token, "c", "a")]),
        ("token", [*PLAIN, b"b", b""]),
        ("token", [*PLAIN, b"b", "é".encode()]),
        ("token", [*PLAIN, b"\xff", b""]),
        ("token", [*PLAIN]),
        ("token", [*CURVE, key(RUN["b"].keys.public)]),
    ],
)
def test_strangers_are_refused(security: Security, request_: list[bytes]) -> None:
    gate = Gate(RUN["a"], security)
    answer = gate.answer(request_)
    assert (answer[2], answer[4]) == (b"400", b"")
    assert gate.refused == 1
