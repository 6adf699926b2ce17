"""Both sides of a connection prove who they are, and a recording proves nothing."""

from dataclasses import replace

import pytest

from penstock.wire import make_credentials
from penstock.wire.transport.handshake import (
    HELLO_BYTES,
    PROOF_BYTES,
    REPLY_BYTES,
    ClientHandshake,
    HandshakeError,
    ServerHandshake,
)

RUN = make_credentials(["a", "b", "c"])


def test_both_sides_have_the_same_keys_and_other_ones_every_time() -> None:
    seen = set()
    for _ in range(2):
        client = ClientHandshake(RUN["a"], "b", "aes")
        server = ServerHandshake(RUN["b"], "aes", client.hello)
        proof, keys = client.finish(server.reply)
        assert (len(client.hello), len(server.reply), len(proof)) == (HELLO_BYTES, REPLY_BYTES, PROOF_BYTES)
        assert server.peer == "a"
        assert server.finish(proof) == keys
        assert keys.to_server != keys.to_caller
        seen |= {keys.to_server, keys.to_caller}
    assert len(seen) == 4


@pytest.mark.parametrize("security", ["aes", "curve", "token"])
def test_a_recorded_handshake_is_worth_nothing(security: str) -> None:
    """What a listener has recorded is sent again, to the same server: its keys are others now."""
    client = ClientHandshake(RUN["a"], "b", security)
    server = ServerHandshake(RUN["b"], security, client.hello)
    proof, _ = client.finish(server.reply)
    server.finish(proof)
    again = ServerHandshake(RUN["b"], security, client.hello)
    with pytest.raises(HandshakeError, match="does not hold the key of a"):
        again.finish(proof)
    with pytest.raises(HandshakeError, match="task that was called"):
        ClientHandshake(RUN["a"], "b", security).finish(server.reply)


def test_a_task_cannot_pass_for_another() -> None:
    """c knows the run's token and a's name, but not a's secret key."""
    client = ClientHandshake(replace(RUN["c"], name="a"), "b", "aes")
    server = ServerHandshake(RUN["b"], "aes", client.hello)
    with pytest.raises(HandshakeError, match="task that was called"):
        client.finish(server.reply)
    with pytest.raises(HandshakeError, match="does not hold the key of a"):
        server.finish(bytes(PROOF_BYTES))


def test_a_server_cannot_pass_for_another() -> None:
    client = ClientHandshake(RUN["a"], "b", "aes")
    server = ServerHandshake(replace(RUN["c"], name="b"), "aes", client.hello)
    with pytest.raises(HandshakeError, match="task that was called"):
        client.finish(server.reply)


@pytest.mark.parametrize("place", [0, 12, 20, 90, HELLO_BYTES - 1])
def test_an_altered_hello_is_refused(place: int) -> None:
    hello = bytearray(ClientHandshake(RUN["a"], "b", "aes").hello)
    hello[place] ^= 1
    with pytest.raises(HandshakeError):
        ServerHandshake(RUN["b"], "aes", bytes(hello))


@pytest.mark.parametrize("place", [0, REPLY_BYTES - 1])
def test_an_altered_reply_is_refused(place: int) -> None:
    client = ClientHandshake(RUN["a"], "b", "aes")
    reply = bytearray(ServerHandshake(RUN["b"], "aes", client.hello).reply)
    reply[place] ^= 1
    with pytest.raises(HandshakeError):
        client.finish(bytes(reply))


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31)])
def test_keys_that_lead_to_no_secret_are_refused(key: bytes) -> None:
    with pytest.raises(HandshakeError):
        ClientHandshake(RUN["a"], "b", "aes").finish(key + bytes(32))


@pytest.mark.parametrize(
    ("caller", "peer", "security", "said"),
    [
        (make_credentials(["a", "b"])["a"], "b", "aes", "run's token"),
        (RUN["a"], "c", "aes", "calls another task"),
        (RUN["a"], "b", "token", "another setting of security"),
    ],
)
def test_strangers_are_refused(caller: object, peer: str, security: str, said: str) -> None:
    hello = ClientHandshake(caller, peer, security).hello  # type: ignore[arg-type]
    with pytest.raises(HandshakeError, match=said):
        ServerHandshake(RUN["b"], "aes", hello)
