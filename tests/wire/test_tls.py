"""Connections are of TLS 1.3, both sides prove who they are, and no other certificate, key or record is believed."""

import datetime
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from meetings import Cable, Meeting, echo, until
from raw_peer import RawPeer

from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.options import WireOptions
from penstock.wire.sockets import split_address
from penstock.wire.transport.connection import new_group
from penstock.wire.transport.tls import Credentials, HandshakeError, Tls, kernel_tls, make_credentials
from refusals import refused

RUN = make_credentials(["a", "b", "c"])


def connected(caller: ssl.SSLContext | Tls, server: Tls) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Both ends of a connection after TLS's handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), 20)
        far, _ = listener.accept()
        far.settimeout(20)
    ends: list[ssl.SSLSocket] = []

    def accept() -> None:
        ends.append(server.wrap(far, server_side=True))
        with suppress(OSError):
            ends[0].do_handshake()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        if isinstance(caller, Tls):
            own = caller.wrap(near, server_side=False)
            own.do_handshake()
        else:
            own = caller.wrap_socket(near)
    finally:
        thread.join(20)
    return own, ends[0]


def test_connections_are_of_tls_1_3_and_no_session_can_be_resumed() -> None:
    caller, server = (Tls(RUN[name], WireOptions()) for name in "ab")
    near, far = connected(caller, server)
    with near, far:
        assert near.version() == far.version() == "TLSv1.3"
        assert "AES" in str(near.cipher()) or "CHACHA20" in str(near.cipher())
        assert (caller.owner(near), server.owner(far)) == ("b", "a")
        far.send(b"x")
        assert near.recv(1) == b"x"
        # A ticket would have come before the first byte.
        assert near.session is None or not near.session.has_ticket
        assert not near.session_reused
        assert kernel_tls(near) in (False, True)
    assert server._server.num_tickets == 0
    assert caller._caller.minimum_version == server._server.maximum_version == ssl.TLSVersion.TLSv1_3


def stranger_context(**settings: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for name, value in settings.items():
        setattr(context, name, value)
    return context


def test_a_client_of_tls_1_2_is_refused(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    old = stranger_context(maximum_version=ssl.TLSVersion.TLSv1_2)
    with pytest.raises(ssl.SSLError), socket.create_connection(split_address(b.address), 20) as plain:
        old.wrap_socket(plain)
    until(lambda: b.refused == 1)
    assert a.channel("b").call(Message("echo")).kind == "back"


def test_a_client_without_a_certificate_is_refused(meeting: Meeting) -> None:
    a, b = meeting("a", "b")
    b.serve("echo", echo)
    # In TLS 1.3 the client is done before the server has missed its certificate.
    with stranger_context().wrap_socket(socket.create_connection(split_address(b.address), 20)) as own:
        with suppress(OSError):
            own.sendall(bytes(200))
        with pytest.raises(ssl.SSLError, match="certificate required"):
            own.recv(1)
    until(lambda: b.refused == 1)
    assert a.channel("b").call(Message("echo")).kind == "back"


def test_what_speaks_another_protocol_over_tls_is_refused(meeting: Meeting) -> None:
    """A task of the run with the right certificate, that does not ask for the wire's protocol."""
    a, b = meeting("a", "b")
    tls = Tls(a._credentials, WireOptions())
    tls._caller.set_alpn_protocols(["http/1.1"])
    with tls.wrap(socket.create_connection(split_address(b.address), 20), server_side=False) as own:
        own.do_handshake()
        assert own.recv(1) == b""
    until(lambda: b.refused == 1)


STRANGERS: dict[str, Callable[[Credentials], Credentials]] = {
    # A certificate of another run, from one who believes this run's servers.
    "another run": lambda known: replace(make_credentials(["a"])["a"], peers=known.peers, authority=known.authority),
    # A task of this run that says it is another one.
    "another task": lambda known: replace(known, name="a"),
}


@pytest.mark.parametrize("make", STRANGERS.values(), ids=STRANGERS)
def test_who_is_not_who_it_says_is_refused(
    meeting: Meeting, security: str, make: Callable[[Credentials], Credentials]
) -> None:
    a, b, c = meeting("a", "b", "c", security=security)
    b.serve("echo", echo)
    with pytest.raises((HandshakeError, OSError)):
        RawPeer.call(make(c._credentials), "b", b.address, security)
    until(lambda: b.refused == 1)
    assert b.flows() == []
    assert a.channel("b").call(Message("echo")).body["sender"] == "a"


def test_a_task_that_answers_in_the_place_of_another_is_not_asked() -> None:
    heard: list[str] = []
    with Endpoint(RUN["c"]) as c, Endpoint(RUN["a"]) as a:
        c.serve("echo", lambda message, sender: heard.append(sender) or Message("back"))  # type: ignore[func-returns-value]
        a.meet("b", c.address)
        channel = a.channel("b")
        pending = channel.start(Message("echo"), timeout=20)
        until(lambda: "refuses this task, or is not b (its certificate is not that of b)" in channel.state)
        a.close()
        with refused("closed"):
            pending.result()
    assert heard == []


def test_connections_join_no_group_of_another(meeting: Meeting) -> None:
    """Neither one that is not there, nor one that another peer has begun."""
    a, b, c = meeting("a", "b", "c")
    b.serve("echo", echo)
    a.channel("b").call(Message("echo"))
    (group,) = b._exchange.listeners[0].groups.values()
    for name in (new_group(), group.first.group):
        raw = RawPeer.call(c._credentials, "b", b.address, group=name, stripe=1)
        with raw, pytest.raises((AssertionError, OSError)):
            raw.receive()
    until(lambda: b.refused == 2)
    with pytest.raises((HandshakeError, OSError)):
        RawPeer.call(c._credentials, "b", b.address, stripe=200)
    assert group.connections() == [group.first]
    assert a.channel("b").call(Message("echo")).kind == "back"


@pytest.mark.parametrize("security", ["tls", "token"])
def test_what_was_sent_can_be_read_on_the_way_with_token_only(meeting: Meeting, security: str) -> None:
    a, b = meeting("a", "b", security=security)
    b.serve("echo", echo)
    with Cable(b) as cable:
        a.meet("b", cable.address)
        a.channel("b").call(Message("echo", {"said": "a word that is easily found"}, (np.arange(20_000),)))
        sent = b"".join(data for _, data in cable.recorded)
    assert (b"a word that is easily found" in sent) == (security == "token")
    assert (np.arange(500, 600).tobytes() in sent) == (security == "token")


def test_half_a_record_is_no_message(meeting: Meeting) -> None:
    """A peer sends all but the last byte of what TLS made of its message, and hangs up."""
    a, b, c = meeting("a", "b", "c")
    asked: list[str] = []
    b.serve("once", lambda message, sender: asked.append(sender) or Message("done"))  # type: ignore[func-returns-value]
    b.serve("echo", echo)
    with socket.create_server(("127.0.0.1", 0)) as middle:
        near = RawPeerThrough(c._credentials, middle, b.address)
        near.send_but_one_byte()
    until(lambda: not b._exchange.listeners[0]._of_peer["c"])
    assert asked == []
    assert a.channel("b").call(Message("echo")).kind == "back"


class RawPeerThrough:
    """A peer whose bytes pass through this test."""

    def __init__(self, credentials: Credentials, middle: socket.socket, address: str) -> None:
        self._far = socket.create_connection(split_address(address), 20)
        self._middle, self._credentials = middle, credentials

    def send_but_one_byte(self) -> None:
        host, port = self._middle.getsockname()
        made: list[RawPeer] = []
        thread = threading.Thread(
            target=lambda: made.append(RawPeer.call(self._credentials, "b", f"tcp://{host}:{port}"))
        )
        thread.start()
        near, _ = self._middle.accept()
        over = threading.Event()
        back = threading.Thread(target=_forward, args=(self._far, near, over), daemon=True)
        back.start()
        near.settimeout(0.05)
        while not made:
            with suppress(TimeoutError):
                self._far.sendall(near.recv(1 << 16))
        thread.join()
        made[0].send([b"x" * 100])
        near.settimeout(20)
        data = near.recv(1 << 16)
        self._far.sendall(data[:-1])
        over.set()
        for end in (self._far, near, made[0].socket):
            end.close()


def _forward(one: socket.socket, other: socket.socket, over: threading.Event) -> None:
    with suppress(OSError):
        while not over.is_set() and (data := one.recv(1 << 16)):
            other.sendall(data)


@pytest.mark.parametrize("lanes", [0, 2])
def test_keys_are_replaced_and_nothing_is_lost_or_repeated(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """Connections that have carried 2 MiB are replaced, in the middle of an answer of 24 MiB: all of it comes once."""
    monkeypatch.setattr("penstock.wire.transport.connection.KEY_BYTES", 2 << 20)
    a, b = meeting("a", "b", io_threads=lanes, window_bytes=1 << 20)
    made: list[int] = []

    def current() -> object:
        """The connection that a part of an answer takes."""
        (group,) = b._exchange.listeners[0].groups.values()
        return group.choose(1 << 20)

    def parts(message: Message, sender: str) -> Iterator[Message]:
        former = current()
        for number in range(24):
            if number in (8, 16):
                until(lambda former=former: current() is not former)  # type: ignore[misc]
                former = current()
            made.append(number)
            yield Message("part", {"n": number}, (np.full(1 << 20, number, np.uint8),))

    b.serve("parts", parts)
    for number, part in enumerate(a.channel("b").start(Message("parts")).parts()):
        assert part.body["n"] == number and (part.arrays[0] == number).all()
    assert made == list(range(24))
    until(lambda: len(b._exchange.listeners[0]._numbers) <= 1 + lanes)


def authority(name: str) -> tuple[EllipticCurvePrivateKey, x509.Certificate]:
    key = generate_private_key(SECP256R1())
    return key, signed(name, key, name, key, True)


def signed(
    name: str, key: EllipticCurvePrivateKey, by: str, signer: EllipticCurvePrivateKey, is_authority: bool = False
) -> x509.Certificate:
    now = datetime.datetime(2020, 1, 1)
    subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, by))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now.replace(year=2099))
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .sign(signer, SHA256())
    )


@pytest.fixture
def own_files(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Files of a host by the name of its authority: as an operator would hand them out."""
    authorities: dict[str, tuple[EllipticCurvePrivateKey, x509.Certificate]] = {}

    def make(by: str) -> dict[str, str]:
        signer, root = authorities.setdefault(by, authority(by))
        folder = tmp_path / f"{by}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        key = generate_private_key(SECP256R1())
        (folder / "ca.pem").write_bytes(root.public_bytes(Encoding.PEM))
        (folder / "cert.pem").write_bytes(signed("host", key, by, signer).public_bytes(Encoding.PEM))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        descriptor = os.open(folder / "key.pem", os.O_CREAT | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(private)
        return {f"tls_{name}": str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}

    return make


def test_tasks_with_certificates_of_the_operators_authority(own_files: Callable[[str], dict[str, str]]) -> None:
    """One certificate for each host; who a task is it shows by the key that the run gave it."""
    options = {name: WireOptions.model_validate(own_files("ours")) for name in "abc"}
    with Endpoint(RUN["a"], options=options["a"]) as a, Endpoint(RUN["b"], options=options["b"]) as b:
        b.serve("echo", echo)
        a.meet("b", b.address)
        assert a.channel("b").call(Message("echo")).body["sender"] == "a"
        # A task that says it is another, certificates of another authority, and certificates of the run.
        strangers = [
            (replace(RUN["c"], name="a"), options["c"]),
            (RUN["a"], WireOptions.model_validate({**own_files("theirs"), "tls_ca": options["a"].tls_ca})),
            (RUN["a"], WireOptions()),
        ]
        for number, (credentials, own) in enumerate(strangers, 1):
            with Endpoint(credentials, options=own) as stranger:
                stranger.meet("b", b.address)
                channel = stranger.channel("b")
                channel.start(Message("echo"))
                until(lambda channel=channel: "refuses this task" in channel.state)  # type: ignore[misc]
            until(lambda number=number: b.refused >= number)  # type: ignore[misc]
        assert sum(count.received_messages for count in b.flows()) == 1


def test_a_signature_for_one_connection_is_worth_nothing_in_another(own_files: Callable[[str], dict[str, str]]) -> None:
    """Somebody with a certificate of the same authority, in the middle, hands on what a task has signed."""
    caller, server = (Tls(RUN[name], WireOptions.model_validate(own_files("ours"))) for name in "ab")
    near, far = connected(caller, server)
    with near, far:
        proof = caller.proof(near, "caller", "a", "b")
        server.verify(far, "caller", "a", "b", proof)
        for role, name, peer in (("server", "a", "b"), ("caller", "c", "b"), ("caller", "a", "c")):
            with pytest.raises(HandshakeError):
                server.verify(far, role, name, peer, proof)
        caller._own_der = b"another certificate"
        with pytest.raises(HandshakeError, match="does not hold the key of a"):
            server.verify(far, "caller", "a", "b", caller.proof(near, "caller", "a", "b"))


def test_files_that_cannot_be_used_are_named(own_files: Callable[[str], dict[str, str]]) -> None:
    files = own_files("ours")
    Path(files["tls_key"]).chmod(0o644)
    with refused(f"invalid-value wire.tls_key chmod 600 {files['tls_key']}"):
        Endpoint(RUN["a"], options=WireOptions.model_validate(files))
    Path(files["tls_key"]).chmod(0o600)
    for name in files:
        with refused("damaged-file wire.tls_ca wire.tls_key nowhere"):
            Endpoint(RUN["a"], options=WireOptions.model_validate({**files, name: "/nowhere.pem"}))
    other = own_files("ours")
    with refused("damaged-file wire.tls_cert"):
        Endpoint(RUN["a"], options=WireOptions.model_validate({**files, "tls_key": other["tls_key"]}))
