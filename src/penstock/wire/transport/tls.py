"""TLS 1.3 as the wire uses it: both sides show a certificate, no session is resumed, and a peer is one task.

Python's `ssl` does all of it; here are its settings, and the identification of a certificate's owner. By default every
task has a certificate that was made for the run, and is identified by the public key in it. An operator may have tasks
show certificates of an authority of their own instead: those belong to hosts, so a task then also signs its name,
together with both certificates, with the key that the run gave it.
"""

import datetime
import hashlib
import hmac
import json
import os
import re
import secrets
import socket
import ssl
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import ValidationError

from penstock.errors import PenstockError
from penstock.graph.documents import StrictDocument, first_problem
from penstock.wire.options import WireOptions

# Certificates that authenticate a task: made for one run and passed to each task by the launcher. Every task has a
# private key and a certificate of its own. An authority that is made for the run signs the certificates, and its
# private key is then discarded: no further certificate can be made. A peer is identified not by what a certificate says
# but by the public key in it, which must be the one that the run has for the task. A restarted task has the same key,
# so the others need not be informed.

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
_KEY = re.compile(r"[0-9a-f]{64}")
_SEED_BYTES = 32
_AUTHORITY = ">authority"
"""A name that no task can have."""
_BEGINS = datetime.datetime(2000, 1, 1)
_ENDS = datetime.datetime(9999, 12, 31, 23, 59, 59)
"""RFC 5280's value for no known end: certificates end with the run, whatever the clocks of its hosts say."""


@dataclass(frozen=True)
class Credentials:
    """The credentials of one task of a run: its own key and certificate, and the public keys of all tasks."""

    name: str
    secret: str = field(repr=False)
    """The private key (Ed25519), 64 hexadecimal digits."""
    certificate: str
    """Signed by the run's authority, in PEM."""
    authority: str
    """The certificate of the run's authority, in PEM."""
    peers: Mapping[str, str]
    """Public keys by task name, of all tasks of the run, 64 hexadecimal digits each."""

    def to_json(self) -> str:
        """For a file or a pipe that no other process reads."""
        return json.dumps({**vars(self), "peers": dict(self.peers)})

    @classmethod
    def from_json(cls, text: str) -> "Credentials":
        """Read and validate what `to_json` wrote."""
        try:
            credentials = cls(**_Document.model_validate_json(text).model_dump())
            problem = _problem(credentials)
        except ValidationError as error:
            problem = first_problem(error)
        if problem:
            raise PenstockError(
                f"The credentials are not valid ({problem}): hand them out again.", code="invalid-document"
            )
        return credentials

    @property
    def private_key(self) -> Ed25519PrivateKey:
        """The key that belongs to the certificate."""
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.secret))

    def private_pem(self) -> str:
        """Certificate and private key in PEM, as OpenSSL reads them."""
        return self.certificate + self.private_key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        ).decode("ascii")


def make_credentials(names: Sequence[str], seed: bytes | None = None) -> dict[str, Credentials]:
    """Keys and certificates for the tasks of a new run, by name.

    The same secret `seed` gives the same ones: processes that share it need not exchange keys.
    """
    often = Counter(names)
    for name in names:
        if not _NAME.fullmatch(name):
            raise PenstockError(
                f"{name!r} cannot name a task: use up to 64 letters, digits and . _ : @ -, a letter or digit first.",
                code="invalid-value",
            )
        if often[name] > 1:
            raise PenstockError(f"Two tasks are called {name!r}: give each a name of its own.", code="duplicate")
    seed = secrets.token_bytes(_SEED_BYTES) if seed is None else seed
    secret = {name: hmac.digest(seed, name.encode(), "sha256") for name in [*names, _AUTHORITY]}
    keys = {name: Ed25519PrivateKey.from_private_bytes(each) for name, each in secret.items()}
    authority = keys.pop(_AUTHORITY)
    certificates = {name: _certificate(name, key.public_key(), authority) for name, key in keys.items()}
    signer = _certificate(_AUTHORITY, authority.public_key(), authority)
    peers = {name: _hex(key.public_key()) for name, key in keys.items()}
    return {name: Credentials(name, secret[name].hex(), certificates[name], signer, peers) for name in names}


def public_key_of(certificate: bytes) -> str:
    """The public key in a certificate (DER), in the form of `Credentials.peers`; empty where it is of another kind."""
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except Exception:  # whatever a parser finds wrong with what a stranger sent, it is no task's key
        return ""
    return _hex(key) if isinstance(key, Ed25519PublicKey) else ""


def _certificate(name: str, key: Ed25519PublicKey, authority: Ed25519PrivateKey) -> str:
    """A certificate signed by the authority, in PEM, fully determined by the arguments."""
    is_authority = name == _AUTHORITY
    signs = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY)]))
        .public_key(key)
        .serial_number(int.from_bytes(key.public_bytes_raw()[:8], "big") | 1)
        .not_valid_before(_BEGINS)
        .not_valid_after(_ENDS)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )
    if not is_authority:
        builder = builder.add_extension(usages, critical=False)
    return builder.sign(authority, None).public_bytes(Encoding.PEM).decode("ascii")


class _Document(StrictDocument):
    name: str
    secret: str
    certificate: str
    authority: str
    peers: dict[str, str]


def _problem(credentials: Credentials) -> str:
    """What is wrong with the credentials; empty if nothing is."""
    for name, key in credentials.peers.items():
        if not _NAME.fullmatch(name):
            return f"{name!r} cannot name a task"
        if not _KEY.fullmatch(key):
            return f"the key of {name} is no key"
    if len(set(credentials.peers.values())) < len(credentials.peers):
        return "two tasks have one key"
    if not _KEY.fullmatch(credentials.secret):
        return "the secret key is no key"
    public = _hex(credentials.private_key.public_key())
    if credentials.peers.get(credentials.name) != public:
        return f"the key of {credentials.name} is not the one its peers know"
    try:
        x509.load_pem_x509_certificate(credentials.authority.encode())
        own = x509.load_pem_x509_certificate(credentials.certificate.encode()).public_bytes(Encoding.DER)
    except ValueError:
        return "a certificate cannot be read"
    return "" if public_key_of(own) == public else "the certificate does not belong to the secret key"


def _hex(key: Ed25519PublicKey) -> str:
    return key.public_bytes_raw().hex()


PROTOCOL = "penstock/5"
"""The protocol that both sides must speak over TLS (ALPN)."""
RECORD_BYTES = 1 << 14
"""The most bytes in one TLS record."""
PROOF_BYTES = 64
_NO_PROOF = bytes(PROOF_BYTES)
_ULP, _ULP_BYTES = 31, 16
"""Linux's TCP_ULP: the protocol that the kernel speaks over a TCP connection."""


class HandshakeError(Exception):
    """The other side is not a task of this run, or not the one that it claims to be."""


class Tls:
    """One endpoint's certificate and its checks of others'. Any thread may use it."""

    def __init__(self, credentials: Credentials, options: WireOptions) -> None:
        self.credentials, self.security = credentials, options.security
        self.encrypts = options.security != "token"
        """Whether connections stay encrypted after both sides are authenticated."""
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
        """The connected socket wrapped in TLS, which replaces the socket; its handshake is still to come."""
        # If the peer is gone already, `ssl` would take the socket, raise, and leave it open.
        own.getpeername()
        context = self._server if server_side else self._caller
        return context.wrap_socket(own, server_side=server_side, do_handshake_on_connect=False)

    def check(self, own: ssl.SSLSocket) -> None:
        """Refuse a connection that does not meet the requirements of both contexts. Raises HandshakeError."""
        if own.selected_alpn_protocol() != PROTOCOL:
            raise HandshakeError("it does not speak Penstock's protocol")
        if own.version() != "TLSv1.3" or own.session_reused:
            raise HandshakeError("it has not made a new session of TLS 1.3")

    def owner(self, own: ssl.SSLSocket) -> str:
        """The task whose certificate the other side has shown. Raises HandshakeError if it is no task's."""
        key = public_key_of(own.getpeercert(True) or b"")
        found = [name for name, known in self.credentials.peers.items() if known == key]
        if not key or len(found) != 1:
            raise HandshakeError("its certificate is not one of a task of this run")
        return found[0]

    def proof(self, own: ssl.SSLSocket, role: str, caller: str, server: str) -> bytes:
        """The signature by which this task proves its name over a connection with the operator's certificates."""
        if self.pinned:
            return _NO_PROOF
        return self.credentials.private_key.sign(self._signed(own, role, caller, server))

    def verify(self, own: ssl.SSLSocket, role: str, caller: str, server: str, proof: bytes) -> None:
        """Raise HandshakeError unless the other side, in its role, is the task that it claims to be."""
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
        """The signed bytes. They include both certificates, so a signature for one connection is useless on another."""
        shown = {own.server_side: self._own_der, not own.server_side: own.getpeercert(True) or b""}
        digests = [hashlib.sha256(shown[side]).digest() for side in (False, True)]
        return b"\0".join([b"penstock task", role.encode(), caller.encode(), server.encode(), *digests])

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        # Messages have their own lengths, so the end of a connection needs no record of its own.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_IGNORE_UNEXPECTED_EOF
        if self.encrypts:
            # The kernel encrypts if OpenSSL and Linux support it; `kernel_tls` tells whether it does.
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
    """Whether the kernel encrypts or decrypts a connection."""
    try:
        return own.getsockopt(socket.IPPROTO_TCP, _ULP, _ULP_BYTES).rstrip(b"\0") == b"tls"
    except OSError:
        return False


def _load_files(context: ssl.SSLContext, options: WireOptions) -> bytes:
    """Have a context use the operator's files; returns the certificate of this host, in DER."""
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
    """The path of a file that holds a secret, for functions that only read files: in memory where Linux supports it."""
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
