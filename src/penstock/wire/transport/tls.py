"""TLS 1.3 as the wire uses it: both sides show a certificate, no session is resumed, and a peer is one task.

Python's `ssl` does all of it; here are its settings, and the answer to the question whose a certificate is. By default
every task has a certificate that was made for the run, and is known by the public key in it. An operator may have tasks
show certificates of an authority of their own instead: those belong to hosts, so that a task then also signs its name,
together with both certificates, by the key that the run gave it.
"""

import hashlib
import os
import socket
import ssl
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from penstock.errors import PenstockError
from penstock.wire.keys import Credentials, public_key_of
from penstock.wire.options import WireOptions

PROTOCOL = "penstock/5"
"""What both sides must speak over TLS (ALPN)."""
RECORD_BYTES = 1 << 14
"""The most that one of TLS's records carries."""
PROOF_BYTES = 64
_NO_PROOF = bytes(PROOF_BYTES)
_ULP, _ULP_BYTES = 31, 16
"""TCP_ULP of Linux: which protocol the kernel speaks over a TCP connection."""


class HandshakeError(Exception):
    """The other side is no task of this run, or not the one it says it is."""


class Tls:
    """One endpoint's certificate and what it accepts of others'. Any thread may use it."""

    def __init__(self, credentials: Credentials, options: WireOptions) -> None:
        self.credentials, self.security = credentials, options.security
        self.encrypts = options.security != "token"
        """Whether connections stay encrypted when both sides have proven who they are."""
        self._options = options
        self._own_der = b""
        self._caller, self._server = (
            self._context(side) for side in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)
        )

    @property
    def pinned(self) -> bool:
        """Whether certificates are the run's own, one for each task; otherwise they are the operator's."""
        return self._options.tls_ca is None

    def wrap(self, own: socket.socket, server_side: bool) -> ssl.SSLSocket:
        """The connected socket with TLS over it, which takes the socket's place; its handshake is still to come."""
        # Where the peer is gone already, `ssl` would take the socket, raise, and leave it open.
        own.getpeername()
        context = self._server if server_side else self._caller
        return context.wrap_socket(own, server_side=server_side, do_handshake_on_connect=False)

    def check(self, own: ssl.SSLSocket) -> None:
        """Refuse a connection that is not what both contexts ask for. Raises HandshakeError."""
        if own.selected_alpn_protocol() != PROTOCOL:
            raise HandshakeError("it does not speak Penstock's protocol")
        if own.version() != "TLSv1.3" or own.session_reused:
            raise HandshakeError("it has not made a new session of TLS 1.3")

    def owner(self, own: ssl.SSLSocket) -> str:
        """The task whose certificate the other side has shown. Raises HandshakeError where it is no task's."""
        key = public_key_of(own.getpeercert(True) or b"")
        found = [name for name, known in self.credentials.peers.items() if known == key]
        if not key or len(found) != 1:
            raise HandshakeError("its certificate is not one of a task of this run")
        return found[0]

    def proof(self, own: ssl.SSLSocket, role: str, caller: str, server: str) -> bytes:
        """By which this task shows, over a connection with the operator's certificates, that it is who it says."""
        if self.pinned:
            return _NO_PROOF
        return self.credentials.private_key.sign(self._signed(own, role, caller, server))

    def verify(self, own: ssl.SSLSocket, role: str, caller: str, server: str, proof: bytes) -> None:
        """Raise HandshakeError unless the other side, in its role, is the task that it says it is."""
        peer = caller if role == "caller" else server
        if self.pinned:
            if self.owner(own) != peer:
                raise HandshakeError(f"its certificate is not that of {peer}")
            return
        key = self.credentials.peers.get(peer)
        if key is None:
            raise HandshakeError("it is no task of this run")
        try:
            signed = self._signed(own, role, caller, server)
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(proof, signed)
        except InvalidSignature:
            raise HandshakeError(f"it does not hold the key of {peer}") from None

    def _signed(self, own: ssl.SSLSocket, role: str, caller: str, server: str) -> bytes:
        """With both certificates in it, what was signed for one connection is worth nothing in another's middle."""
        shown = {own.server_side: self._own_der, not own.server_side: own.getpeercert(True) or b""}
        digests = [hashlib.sha256(shown[side]).digest() for side in (False, True)]
        return b"\0".join([b"penstock task", role.encode(), caller.encode(), server.encode(), *digests])

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        # Messages say themselves whether they are whole: the end of a connection needs no record of its own.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_IGNORE_UNEXPECTED_EOF
        if self.encrypts:
            # The kernel encrypts where OpenSSL and Linux can; which it is, `kernel_tls` says.
            context.options |= getattr(ssl, "OP_ENABLE_KTLS", 0)
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        context.set_alpn_protocols([PROTOCOL])
        if self.pinned:
            with _private_file(self.credentials.private_pem()) as path:
                context.load_cert_chain(path)
            context.load_verify_locations(cadata=self.credentials.authority)
        else:
            self._own_der = _load_files(context, self._options)
        return context


def kernel_tls(own: socket.socket) -> bool:
    """Whether the kernel encrypts or decrypts what travels over a connection."""
    try:
        return own.getsockopt(socket.IPPROTO_TCP, _ULP, _ULP_BYTES).rstrip(b"\0") == b"tls"
    except OSError:
        return False


def _load_files(context: ssl.SSLContext, options: WireOptions) -> bytes:
    """Have a context use the operator's files; the certificate of this host, in DER."""
    ca, certificate, key = (
        Path(path or "").expanduser() for path in (options.tls_ca, options.tls_cert, options.tls_key)
    )
    try:
        if stat.S_IMODE(key.stat().st_mode) & 0o077:
            raise PenstockError(
                f"wire.tls_key: {key} can be read by others than its owner: `chmod 600 {key}`.", code="invalid-value"
            )
        context.load_verify_locations(cafile=ca)
        context.load_cert_chain(certificate, key)
        first = certificate.read_text(encoding="ascii").partition(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER + "\n"
        return ssl.PEM_cert_to_DER_cert(first[first.index(ssl.PEM_HEADER) :])
    except (OSError, ValueError) as error:
        # OpenSSL's errors are OSErrors, and name no file.
        raise PenstockError(
            f"wire.tls_ca, wire.tls_cert and wire.tls_key ({ca}, {certificate}, {key}) cannot be used on this host"
            f" ({error}): name files in PEM with an authority's certificate, this host's and its private key.",
            code="damaged-file",
        ) from None


@contextmanager
def _private_file(text: str) -> Iterator[str]:
    """The path of a file that holds a secret, for functions that read nothing else: in memory where Linux can."""
    if hasattr(os, "memfd_create"):
        descriptor, path = os.memfd_create("penstock"), ""
        folder = Path("/proc/self/fd")
    else:
        descriptor, path = tempfile.mkstemp()
    try:
        os.write(descriptor, text.encode("ascii"))
        yield path or str(folder / str(descriptor))
    finally:
        os.close(descriptor)
        if path:
            Path(path).unlink()
